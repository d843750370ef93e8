"""A DataLoader over a built dataset: shuffled, sharded over ranks, with one vectorized gather per batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.datasets.trace import TracedRow
from tokenloom.loaders.order.batch_plan import (
    FILLER,
    LARGEST_COUNT,
    FixedBatches,
    Place,
    Step,
    TokenBudget,
    epoch_number,
    integer,
    place_among_ranks,
)
from tokenloom.loaders.order.resume_state import (
    BLOCK_STATE_VERSION,
    BUDGET_STATE_VERSION,
    STATE_VERSION,
    VERSIONS,
    read_state,
    version_for,
)
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.reading.ahead import DeviceCopy, ReadAhead, pinned, prefetched, warn_if_too_small, worker_options
from tokenloom.loaders.reading.batch import Batch, Padding, PaddingPolicy, to_tensors
from tokenloom.resources.tables.ragged import Ints

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tokenloom.loaders.reading.images import ImageSource

SAVED_DIGITS = 16
"""Digits of a version that states name."""

_ROWS_AT_ONCE, _FAR_ROWS_AT_ONCE = 2048, 512
"""Rows located at once; more give no measurable speedup. Fewer if their chunks are downloaded, since all of them are
downloaded first."""


class _Batches(Dataset[Batch]):
    """A dataset from which `DataLoader` fetches whole batches."""

    def __init__(self, dataset: TokenDataset | MixedDataset, policy: PaddingPolicy):
        self.dataset, self.policy = dataset, policy

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__(np.array([row]))

    def __getitems__(self, rows: Ints) -> Batch:
        return self.dataset.reader.batch(rows, self.policy)


class _Rows:
    """The batch sampler of a `DataLoader`: the rows of each remaining step of the epoch.

    It has no reference to the loader, so that worker processes end with the loader's last reference, not only when
    garbage is collected.

    Attributes:
        resumed: whether the next iteration continues from `place` instead of starting its epoch.
    """

    def __init__(self, plan: FixedBatches | TokenBudget, rank: int, world_size: int):
        self.plan, self.place, self.resumed = plan, Place(), False
        self.sampler = self  # frameworks look for set_epoch in either
        self._rank, self._world_size = rank, world_size

    def set_epoch(self, epoch: int) -> None:
        epoch = epoch_number(epoch, self.plan.rows)
        if epoch != self.place.epoch or not self.resumed:
            self.place, self.resumed = Place(epoch), False

    def steps(self, place: Place | None = None) -> Iterator[Step]:
        return self.plan.steps(place or self.place, self._rank, self._world_size)

    def __iter__(self) -> Iterator[Ints]:
        return (step.rows for step in self.steps())

    def __len__(self) -> int:
        return self.plan.count(self._world_size)


class TokenLoader(DataLoader[Any]):
    """A DataLoader over a `TokenDataset` or `MixedDataset`.

    Batches are dicts of int64 `input_ids`, `attention_mask` and `labels`, [batch_size, length]. `labels` are not
    shifted and are -100 where nothing is trained. Packed datasets add int64 `position_ids` of that shape, int32
    `cu_seqlens` [documents + 1] and int `max_seqlen`, and with `length.document_multiple` int32 `cu_seqlens_unpadded`,
    the cumulated lengths of documents without padding; those with `packing: tree` have int32 `attention_ends`
    [batch_size, length] instead of the last two: the place in its row of the first token after each that does not see
    it. Datasets with weights other than 0 and 1 add float32 `loss_weights` of that shape. Preference datasets have all
    keys twice, prefixed with `chosen_` and `rejected_`, each side padded separately. KTO datasets add `label`, bool
    [batch_size]. Prompts have no `labels`. Each column of `keep_columns` is a list with a Python value per row; for
    packed rows, a list of one value per document. Columns of `token_columns` are float32 [batch_size, length], 0 in
    padding. Datasets with images add what their model takes: `pixel_values` and similar keys, in batches that have an
    image, and type ids such as `mm_token_type_ids`; the `position_ids` of packed rows can be [4, batch_size, length].

    Each iteration is one epoch. The order is a pure function of the dataset's content, the seed, the epoch and the
    position. `state_dict` and `load_state_dict` resume at any step, on any number of ranks and workers, and with any
    batch size (not with a token budget). All ranks take the same number of steps; padding rows without loss fill the
    last one.

    Args:
        dataset: the dataset to read; a `MixedDataset` for several.
        batch_size: rows per rank and batch.
        shuffle: `full` or True: shuffle all rows; `block`: shuffle the chunks of the store, then the rows within
            windows of several chunks, so that an epoch reads each chunk once, for stores in a bucket; `none` or False:
            keep the order.
        seed: determines the order, together with the dataset's digest and the epoch.
        drop_last: drop the last global batch if it is not full.
        padding: `max_length`; `longest`: to the longest row of the batch; or an integer: to the longest row, rounded up
            to a multiple of it.
        padding_side: the side on which rows are padded.
        rank, world_size: default: those of `mesh`, else of `torch.distributed` if it is initialized, else 0 and 1.
        num_workers, pin_memory, persistent_workers: as in `torch.utils.data.DataLoader`. `pin_memory` None: if there
            is a CUDA device; `persistent_workers` None: if there are workers.
        prefetch_factor: batches prefetched by each worker process; without workers, by a background thread. Without
            workers, None or 0 disables prefetching.
        token_budget: replaces `batch_size`: maximum tokens per rank and batch, padding included; batches consist of
            rows of similar length.
        mesh: a DeviceMesh; ranks that differ only in dimensions other than `mesh_dim` get the same batches.
        mesh_dim: the data-parallel dimension, or several, such as `("dp_replicate", "dp_shard")`.
        prefetch_to_device: a CUDA device to which batches are copied while the previous ones are in use.

    Raises:
        ValueError: an argument is out of range, or arguments contradict each other.
    """

    _is_accelerate_prepared = True  # or Accelerate's `prepare` would shard the batches a second time

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
        batch_size, seed = integer("batch_size", batch_size, 1, LARGEST_COUNT), integer("seed", seed)
        if token_budget is not None:
            token_budget = integer("token_budget", token_budget, 1, LARGEST_COUNT)
        self._policy = dataset.padding(padding, padding_side)
        order, rows = dataset.order(seed, kind), len(dataset)
        plan: FixedBatches | TokenBudget
        if token_budget is None:
            plan = FixedBatches(order, rows, batch_size, drop_last)
            sizes: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
        else:
            lengths, digest = dataset.lengths, dataset.order_digest
            plan = TokenBudget(order, rows, token_budget, lengths, digest, seed, self._policy.width)
            sizes = {"token_budget": token_budget, "padding": padding}
        self._data, far = dataset, getattr(dataset, "far", None)  # raw text has none
        self._is_far = far is not None
        if far is not None:
            warn_if_too_small(far, dataset.bytes_at_once(kind), kind)
        self._settings = {"rows": rows, "seed": seed, "shuffle": kind, **sizes, "world_size": self.world_size}
        self._rows = _Rows(plan, self.rank, self.world_size)
        options: dict[str, Any] = worker_options(num_workers, pin_memory, prefetch_factor, persistent_workers)
        if num_workers:  # or torch would draw the workers' seed from the generator of the model's dropout
            options["generator"] = torch.Generator().manual_seed(seed & (1 << 63) - 1)
        self._depth = 0 if num_workers else prefetch_factor or 0
        self._copy = DeviceCopy(prefetch_to_device) if prefetch_to_device is not None else None
        if self._copy is not None:  # it pins the batches itself
            options["pin_memory"] = bool(pin_memory)
        super().__init__(
            _Batches(dataset, self._policy),
            batch_sampler=self._rows,  # pyright: ignore[reportArgumentType]
            collate_fn=to_tensors,  # pyright: ignore[reportArgumentType]
            **options,
        )

    def __len__(self) -> int:
        """Number of steps in an epoch."""
        return len(self._rows)

    @property
    def plan(self) -> FixedBatches | TokenBudget:
        """The rows that each rank reads at each step."""
        return self._rows.plan

    @plan.setter
    def plan(self, plan: FixedBatches | TokenBudget) -> None:
        self._rows.plan = plan

    @property
    def place(self) -> Place:
        """The loader's position."""
        return self._rows.place

    @place.setter
    def place(self, place: Place) -> None:
        self._rows.place = place

    @property
    def images(self) -> ImageSource | None:
        """The image processor, if rows can have images."""
        return getattr(self._data, "images", None)  # raw text has none

    def steps(self) -> Iterator[Step]:
        """Yield the remaining steps of the epoch, as this rank reads them."""
        return self._rows.steps()

    def __iter__(self) -> Iterator[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self._rows.resumed:
            done = self.place.position > 0 and next(self.steps(), None) is None  # stopped right after the last batch
            self.place = Place(self.place.epoch + done)
        self._rows.resumed = False
        batches = self._read_ahead(self._batches()) if self._is_far else self._batches()
        if self.pin_memory and not self.num_workers and torch.cuda.is_available():
            device = torch.cuda.current_device()  # read here: the prefetching thread has its own current device
            batches = ((after, pinned(batch, device)) for after, batch in batches)
        if self._depth or self._copy:
            batches = prefetched(batches, self._depth, self._copy)
        rows = self._rows
        for after, batch in batches:
            rows.place = after
            yield batch
        self.place = Place(self.place.epoch + 1)

    def _read_ahead(self, batches: Iterator[tuple[Place, dict[str, Any]]]) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield the batches. From the first one on, a background thread downloads the chunks of the next ones."""
        for after, batch in batches:  # the first: worker processes were forked before the thread starts
            steps = filter(None, self._grouped(self._rows.steps(after)))
            with ReadAhead(self._data.reader, ([step.rows for step in group] for group in steps)) as ahead:
                yield after, batch
                for following in batches:
                    ahead.step_read()
                    yield following

    def _batches(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield the remaining batches of the epoch, each with the place after it."""
        if self.num_workers:
            for step, batch in zip(self.steps(), super().__iter__(), strict=True):
                yield step.after, batch
            return
        for steps in filter(None, self._grouped(self.steps())):
            batches = self._data.reader.batches([step.rows for step in steps], self._policy)
            for step, batch in zip(steps, batches, strict=True):
                yield step.after, to_tensors(batch)

    def _grouped(self, steps: Iterator[Step]) -> Iterator[list[Step]]:
        """Group steps whose rows are located at once: one at first, so that the first batch comes early, then more."""
        group, rows, enough = list[Step](), 0, 1
        most = _FAR_ROWS_AT_ONCE if self._is_far else _ROWS_AT_ONCE
        try:
            for step in steps:
                group.append(step)
                rows += len(step.rows)
                if rows >= enough:
                    yield group
                    group, rows, enough = [], 0, min(2 * enough, most)
        except Exception:  # a step failed; the steps before it are still yielded
            yield group
            raise
        yield group

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. After a finished epoch the loader moves on by itself.

        If a loaded state is inside this epoch, iteration continues from there.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        self._rows.set_epoch(epoch)

    def skip(self, begin: int, end: int) -> None:
        """Skip the steps [begin, end), counted from 0 across epochs. Skips are part of the state.

        Raises:
            ValueError: the range is not valid, or the loader has a `token_budget`.
        """
        begin, end = (integer("a step to skip", step, 0, LARGEST_COUNT) for step in (begin, end))
        if begin >= end:
            raise ValueError(f"steps to skip must be a range with 0 <= begin < end, got {begin} to {end}")
        if not isinstance(self.plan, FixedBatches):
            raise ValueError("a loader with a token_budget cannot skip steps")
        self.plan = self.plan.without(begin, end, self.world_size)

    def trace(self, step: int | Place, rank: int | None = None) -> list[TracedRow]:
        """Return where the rows of a batch come from, without reading other batches.

        Padding rows are omitted. If everything from the step to the end of its epoch is skipped, the list is empty.

        Args:
            step: counted from 0 across epochs, as if nothing were skipped; or the place before the batch.
            rank: default: this rank.

        Raises:
            ValueError: `step` or `rank` is out of range.
        """
        rank = self.rank if rank is None else integer("rank", rank, 0, self.world_size - 1)
        if not isinstance(step, Place):
            step = self.plan.place_of(integer("step", step, 0, LARGEST_COUNT), self.world_size)
        batch = next(self.plan.steps(step, rank, self.world_size), None)
        return [self._data.trace(row) for row in batch.rows.tolist() if row != FILLER] if batch else []

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch, as less than 1 KB of JSON."""
        return self._state_at(self.place)

    def _state_at(self, place: Place) -> dict[str, Any]:
        skips = [list(skip) for skip in self.plan.skips] if isinstance(self.plan, FixedBatches) else []
        end, version = place.epoch * len(self._data) + place.position, version_for(self._settings["shuffle"])
        if isinstance(self.plan, TokenBudget) and not self.plan.aligned:
            version = BUDGET_STATE_VERSION
            end = self.plan.end_of(place.epoch, place.position) if place.batch else end
        data = self._data.digest_until(end)
        state = {"version": version, "data": data, **self._settings, **place._asdict(), "skips": skips}
        versions = getattr(self._data, VERSIONS, {})  # raw text has none
        named = [f"{name}@{version[:SAVED_DIGITS]}" for name, version in versions.items()]
        return {**state, VERSIONS: named} if named else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of its epoch.

        Raises:
            LoaderStateError: the state is damaged, or belongs to other data, another order or another plan; the
                message names the field.
        """
        free = ["batch_size"] if isinstance(self.plan, FixedBatches) else []
        free += ["rows"] if isinstance(self._data, MixedDataset) else []  # another epoch length after a change
        before = self.plan
        if isinstance(before, TokenBudget):  # a run of an earlier version keeps its steps
            found = state_dict.get("version") if isinstance(state_dict, Mapping) else None
            self.plan = before.as_aligned(found in (STATE_VERSION, BLOCK_STATE_VERSION))
        try:
            place, skips = read_state(state_dict, self._state_at, self.plan.rows, self.plan.is_place, free)
        except BaseException:
            self.plan = before
            raise
        if isinstance(self.plan, FixedBatches):
            self.plan = replace(self.plan, skips=skips)
        self.place, self._rows.resumed = place, True
