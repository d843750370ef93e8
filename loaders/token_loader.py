"""A DataLoader over a built dataset: shuffled, sharded over ranks, each batch one vectorized gather."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tokenloom.loaders.collation.batch import Batch, Padding, PaddingPolicy
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.datasets.trace import TracedRow
from tokenloom.loaders.order.plan import FILLER, FixedBatches, Place, Step, TokenBudget
from tokenloom.loaders.order.ranks import place_among_ranks
from tokenloom.loaders.order.resume_state import STATE_VERSION, check_state, place_in
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.reading.prefetch import DeviceCopy, pinned, prefetched
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import Ints

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_ROWS_AT_ONCE = 512
"""Rows of batches that are found at once: more gain nothing that can be measured."""


class _Batches(Dataset[Batch]):
    """A dataset as `DataLoader` fetches from it: many rows at once come as one batch."""

    def __init__(self, dataset: TokenDataset | MixedDataset, policy: PaddingPolicy):
        self.dataset, self.policy = dataset, policy

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__(np.array([row]))

    def __getitems__(self, rows: Ints) -> Batch:
        return self.dataset.reader.batch(rows, self.policy)


class _Rows:
    """What a `DataLoader` draws batches from: the rows of each step of the rest of the epoch.

    It does not know the loader: worker processes end with the last reference to a loader, not with the garbage's.

    Attributes:
        resumed: whether the next iteration goes on from `place`, rather than to begin its epoch.
    """

    def __init__(self, plan: FixedBatches | TokenBudget, rank: int, world_size: int):
        self.plan, self.place, self.resumed = plan, Place(), False
        self.sampler = self  # frameworks look for set_epoch in either
        self._rank, self._world_size = rank, world_size

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.place.epoch or not self.resumed:
            self.place, self.resumed = Place(epoch), False

    def steps(self) -> Iterator[Step]:
        return self.plan.steps(self.place, self._rank, self._world_size)

    def __iter__(self) -> Iterator[Ints]:
        return (step.rows for step in self.steps())

    def __len__(self) -> int:
        return self.plan.count(self._world_size)


class TokenLoader(DataLoader[Any]):
    """Batches of a `TokenDataset`: dicts of int64 `input_ids`, `attention_mask` and `labels`, [batch_size, length].

    `labels` are not shifted and are -100 where nothing is trained. Packed datasets add `position_ids`, int32
    `cu_seqlens` and `max_seqlen`; datasets with weights other than 0 and 1 add float32 `loss_weights`, of the same
    shape. Preference datasets have all keys twice, under `chosen_` and `rejected_`, each side padded on its own; kto
    datasets add `label`, bool [batch_size].

    Each iteration is an epoch. The order is a pure function of the dataset's content, the seed, the epoch and the
    position: `state_dict` and `load_state_dict` resume at any step, also with another number of ranks or workers or
    another batch size. All ranks make the same number of steps; rows of padding without loss fill the last one.

    Args:
        dataset: what to read; a `MixedDataset` for several.
        batch_size: rows a rank and batch.
        token_budget: instead of `batch_size`: tokens a rank and batch, padding counted; rows of like length go
            together.
        shuffle: `full` or True; `block`: blocks of consecutive rows, then rows within some blocks; `none` or False.
        seed: chooses the order, together with the dataset's digest and the epoch.
        drop_last: leave out a last global batch that is not full.
        padding: `max_length`, `longest`, or a multiple.
        padding_side: which side is filled.
        rank, world_size: default: those of `mesh`, else of `torch.distributed` where it is initialized, else 0 of 1.
        mesh: a DeviceMesh; ranks that differ only in other dimensions than `mesh_dim` get the same batches.
        mesh_dim: the dimension of data parallelism, or several, such as `("dp_replicate", "dp_shard")`.
        num_workers, pin_memory, persistent_workers: as in `torch.utils.data.DataLoader`; None is chosen for the
            hardware.
        prefetch_factor: batches that each worker makes ahead; without workers, that a thread does, None or 0: none,
            they are made when they are asked for.
        prefetch_to_device: a CUDA device that batches are moved to while those before them are in use.

    Raises:
        ValueError: an argument is not one of these.
    """

    _is_accelerate_prepared = True  # Accelerate's prepare would shard what is sharded

    def __init__(
        self,
        dataset: TokenDataset | MixedDataset,
        batch_size: int = 8,
        shuffle: Shuffle | bool = "full",
        seed: int = 0,
        drop_last: bool = False,
        padding: Padding = "max_length",
        padding_side: Literal["left", "right"] = "right",
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        token_budget: int | None = None,
        mesh: DeviceMesh | None = None,
        mesh_dim: str | tuple[str, ...] = "dp",
        prefetch_to_device: torch.device | str | None = None,
    ):
        self.rank, self.world_size = place_among_ranks(rank, world_size, mesh, mesh_dim)
        kind: Any = {True: "full", False: "none"}.get(shuffle, shuffle) if isinstance(shuffle, bool) else shuffle
        if batch_size < 1 or (token_budget is not None and token_budget < 1):
            raise ValueError(f"batch_size {batch_size} and token_budget {token_budget} must be at least 1")
        self._policy = dataset.padding(padding, padding_side)
        order, rows = dataset.order(seed, kind), len(dataset)
        plan: FixedBatches | TokenBudget
        if token_budget is None:
            plan = FixedBatches(order, rows, batch_size, drop_last)
            planned: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
        else:
            lengths = partial(_lengths, dataset)
            key = ("batches", dataset.digest, seed)
            plan = TokenBudget(order, rows, token_budget, lengths, key, self._policy.width)
            planned = {"token_budget": token_budget, "padding": padding}
        self._data = dataset
        self._made = {"rows": rows, "seed": seed, "shuffle": kind, **planned, "world_size": self.world_size}
        self._rows = _Rows(plan, self.rank, self.world_size)
        self._depth = 0 if num_workers else prefetch_factor or 0
        self._copy = DeviceCopy(prefetch_to_device) if prefetch_to_device is not None else None
        if pin_memory is None:  # what is moved here is pinned here
            pin_memory = torch.cuda.is_available() and self._copy is None
        super().__init__(
            _Batches(dataset, self._policy),
            batch_sampler=self._rows,  # pyright: ignore[reportArgumentType]
            collate_fn=to_tensors,  # pyright: ignore[reportArgumentType]
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=num_workers > 0 and persistent_workers is not False,
        )

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return len(self._rows)

    @property
    def plan(self) -> FixedBatches | TokenBudget:
        """Which rows each rank reads at each step."""
        return self._rows.plan

    @plan.setter
    def plan(self, plan: FixedBatches | TokenBudget) -> None:
        self._rows.plan = plan

    @property
    def place(self) -> Place:
        """Where the loader stands."""
        return self._rows.place

    @place.setter
    def place(self, place: Place) -> None:
        self._rows.place = place

    def steps(self) -> Iterator[Step]:
        """What this rank reads in the rest of the epoch."""
        return self._rows.steps()

    def __iter__(self) -> Iterator[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self._rows.resumed:
            done = self.place.position > 0 and next(self.steps(), None) is None  # the last batch was taken, no more
            self.place = Place(self.place.epoch + done)
        self._rows.resumed = False
        batches = self._batches()
        if self.pin_memory and not self.num_workers and torch.cuda.is_available():
            device = torch.cuda.current_device()  # of this thread, which another one would not have
            batches = ((after, pinned(batch, device)) for after, batch in batches)
        if self._depth or self._copy:
            batches = prefetched(batches, self._depth, self._copy)
        rows = self._rows
        for after, batch in batches:
            rows.place = after
            yield batch
        self.place = Place(self.place.epoch + 1)

    def _batches(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The batches of the rest of the epoch, each with where the loader stands behind it."""
        if self.num_workers:
            for step, batch in zip(self.steps(), super().__iter__(), strict=True):
                yield step.after, batch
            return
        for steps in filter(None, _grouped(self.steps())):
            made = self._data.reader.batches([step.rows for step in steps], self._policy)
            for step, batch in zip(steps, made, strict=True):
                yield step.after, to_tensors(batch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes; a finished one moves on by itself. One that a loaded state
        stands in is gone on with."""
        self._rows.set_epoch(epoch)

    def skip(self, begin: int, end: int) -> None:
        """Leave out the steps [begin, end), counted from 0 on through epochs; also kept in the state.

        Raises:
            ValueError: there is no such range, or batches go by `token_budget`.
        """
        if not 0 <= begin < end:
            raise ValueError(f"steps {begin} to {end} are no range")
        if not isinstance(self.plan, FixedBatches):
            raise ValueError("steps of a token_budget cannot be skipped")
        self.plan = self.plan.without(begin, end, self.world_size)

    def trace(self, step: int, rank: int | None = None) -> list[TracedRow]:
        """Where the samples of a batch come from; rows of padding are left out, and there are none behind
        what is skipped to the epoch's end. No other batch is read.

        Args:
            step: counted from 0 on through epochs, without what is skipped.
            rank: default: this one.
        """
        place = self.plan.place_of(step, self.world_size)
        found = next(self.plan.steps(place, self.rank if rank is None else rank, self.world_size), None)
        return [self._data.trace(row) for row in found.rows.tolist() if row != FILLER] if found else []

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands behind the batch that was given last, as JSON of less than 1 KB."""
        skips = [list(skip) for skip in self.plan.skips] if isinstance(self.plan, FixedBatches) else []
        place = {"epoch": self.place.epoch, "position": self.place.position, "batch": self.place.batch}
        data = self._data.digest_until(self.place.epoch * len(self._data) + self.place.position)
        return {"version": STATE_VERSION, "data": data, **self._made, **place, "skips": skips}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: the next iteration makes the rest of its epoch.

        Raises:
            LoaderStateError: the state is of other data, another order or another plan; names what differs.
        """
        own = self.state_dict()
        if (place := place_in(state_dict)) is not None:
            own["data"] = self._data.digest_until(place.epoch * len(self._data) + place.position)
        check_state(state_dict, own, free=isinstance(self.plan, FixedBatches))
        if isinstance(self.plan, FixedBatches):
            self.plan = replace(self.plan, skips=tuple((int(a), int(b)) for a, b in state_dict["skips"]))
        self.place = Place(state_dict["epoch"], state_dict["position"], state_dict["batch"])
        self._rows.resumed = True


def _grouped(steps: Iterator[Step]) -> Iterator[list[Step]]:
    """Steps whose rows are found at once: few at first, lest the first batch wait, then more."""
    group, rows, enough = list[Step](), 0, 1
    try:
        for step in steps:
            group.append(step)
            rows += len(step.rows)
            if rows >= enough:
                yield group
                group, rows, enough = [], 0, min(2 * enough, _ROWS_AT_ONCE)
    except Exception:  # of a step whose rows cannot be found; those before it are given
        yield group
        raise
    yield group


def _lengths(dataset: TokenDataset | MixedDataset, rows: Ints) -> Ints:
    return dataset.reader.lengths(rows)


def batch_digest(batch: Mapping[str, Any]) -> str:
    """Hex BLAKE3 of a batch: equal for peers that hold the same one."""
    parts = []
    for name in sorted(batch):
        value = batch[name]
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        parts.append([name, str(array.dtype), list(array.shape), digest_bytes(np.ascontiguousarray(array).tobytes())])
    return digest_json(parts)


def to_tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a batch as tensors of the same memory; numbers stay numbers."""
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
