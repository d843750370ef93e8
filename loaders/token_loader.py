"""A DataLoader over a built dataset: shuffled, sharded over ranks, with one vectorized gather per batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from tokenloom.errors import ConfigError
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset, TracedRow
from tokenloom.loaders.order.batch_plan import FILLER, LARGEST_COUNT, FixedBatches, Place, Step, TokenBudget, integer
from tokenloom.loaders.order.progress import Progress
from tokenloom.loaders.order.ranks import Ranks
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
from tokenloom.loaders.resumable import RankedSampler, ResumableLoader, Workers
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
    def __init__(self, dataset: TokenDataset | MixedDataset, policy: PaddingPolicy):
        self.dataset, self.policy = dataset, policy

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__(np.array([row]))

    def __getitems__(self, rows: Ints) -> Batch:
        return self.dataset.reader.batch(rows, self.policy)


def _check_opened(dataset: Any) -> None:
    """Raise a ConfigError for a name, or a dataset that a `TokenLoader` does not read."""
    if all(hasattr(dataset, name) for name in ("order", "padding", "reader")):
        return
    kind = type(dataset).__name__
    message = f"a {kind} is not a built dataset; for its rows, use DataLoaderBuilder().with_dataset(…), which pads them"
    if isinstance(dataset, str | os.PathLike):
        message = f"got the name {os.fspath(dataset)!r}; open it: TokenLoader(open_dataset({os.fspath(dataset)!r}))"
    raise ConfigError.at("dataset", message)


class _Steps(RankedSampler):
    """The batch sampler that frameworks see: the rows of each remaining step of the epoch, int64 [rows]."""

    def __init__(self, progress: Progress[Place], ranks: Ranks, plan: FixedBatches | TokenBudget):
        super().__init__(progress, ranks, plan.rows)
        self.plan, self.sampler = plan, self  # frameworks look for set_epoch in either

    def _remaining(self) -> Iterator[Ints]:
        return (step.rows for step in self.plan.steps(self.progress.start, *self.ranks.now()))

    def __len__(self) -> int:
        return self.plan.count(self.num_replicas)


class TokenLoader(ResumableLoader):
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
        rank, world_size: default: those of `mesh`, else of `torch.distributed` when the first batch is asked for, else
            0 and 1.
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
        ConfigError: `dataset` is not an open one.
    """

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
        _check_opened(dataset)
        ranks = Ranks(rank, world_size, mesh, mesh_dim)
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
        self._settings = {"rows": rows, "seed": seed, "shuffle": kind, **sizes}
        options: dict[str, Any] = worker_options(num_workers, pin_memory, prefetch_factor, persistent_workers)
        if num_workers:  # or torch would draw the workers' seed from the generator of the model's dropout
            options["generator"] = torch.Generator().manual_seed(seed & (1 << 63) - 1)
        self._depth = 0 if num_workers else prefetch_factor or 0
        self._copy = DeviceCopy(prefetch_to_device) if prefetch_to_device is not None else None
        if self._copy is not None:  # it pins the batches itself
            options["pin_memory"] = bool(pin_memory)
        progress = Progress(Place)
        batches, steps = _Batches(dataset, self._policy), _Steps(progress, ranks, plan)
        self._progress, self._rows_per_epoch, self.sharding, self._steps = progress, rows, ranks, steps
        super().__init__(batches, batch_sampler=steps, collate_fn=to_tensors, **options)  # pyright: ignore[reportArgumentType]
        self.__dict__["sampler"] = steps  # frameworks do not replace a DistributedSampler
        self._workers = Workers(batches, to_tensors, options) if num_workers else None  # pyright: ignore[reportArgumentType]

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def plan(self) -> FixedBatches | TokenBudget:
        """The rows that each rank reads at each step."""
        return self._steps.plan

    @plan.setter
    def plan(self, plan: FixedBatches | TokenBudget) -> None:
        self._steps.plan = plan

    @property
    def place(self) -> Place:
        """The loader's position: after the last batch of the running iteration, or of the last one."""
        return self._progress.place

    @property
    def images(self) -> ImageSource | None:
        """The image processor, if rows can have images."""
        return getattr(self._data, "images", None)  # raw text has none

    def steps(self) -> Iterator[Step]:
        """Yield the remaining steps of the epoch, as this rank reads them."""
        return self._after(self.place)

    def _is_at_end(self, place: Place) -> bool:
        return next(self._after(place), None) is None

    def _after(self, place: Place) -> Iterator[Step]:
        return self.plan.steps(place, self.rank, self.world_size)

    def _following(self, place: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
        batches = self._batches(place)
        if self._is_far:
            batches = self._read_ahead(batches)
        if self.pin_memory and not self.num_workers and torch.cuda.is_available():
            device = torch.cuda.current_device()  # read here: the prefetching thread has its own current device
            batches = ((after, pinned(batch, device)) for after, batch in batches)
        return prefetched(batches, self._depth, self._copy) if self._depth or self._copy else batches

    def _read_ahead(self, batches: Iterator[tuple[Place, dict[str, Any]]]) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield the batches. From the first one on, a background thread downloads the chunks of the next ones."""
        for after, batch in batches:  # the first: worker processes were forked before the thread starts
            steps = filter(None, self._grouped(self._after(after)))
            with ReadAhead(self._data.reader, ([step.rows for step in group] for group in steps)) as ahead:
                yield after, batch
                for following in batches:
                    ahead.step_read()
                    yield following

    def _batches(self, place: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
        plan, rank, world_size = self.plan, *self.sharding.now()
        if self._workers is not None:
            # the same pure plan twice: workers get the rows, the places stay here
            asked = self._workers.batches(lambda: (step.rows for step in plan.steps(place, rank, world_size)))
            for step, batch in zip(plan.steps(place, rank, world_size), asked, strict=True):
                yield step.after, batch
            return
        for steps in filter(None, self._grouped(plan.steps(place, rank, world_size))):
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

    def _state_at(self, place: Place) -> dict[str, Any]:
        skips = [list(skip) for skip in self.plan.skips] if isinstance(self.plan, FixedBatches) else []
        end, version = place.epoch * len(self._data) + place.position, version_for(self._settings["shuffle"])
        if isinstance(self.plan, TokenBudget) and not self.plan.aligned:
            version = BUDGET_STATE_VERSION
            # inside a window, the order of its batches depends on changes up to its end
            end = self.plan.end_of(place.epoch, place.position) if place.batch else end
        data = self._data.digest_until(end)
        settings = self._settings | {"world_size": self.world_size}
        state = {"version": version, "data": data, **settings, **place._asdict(), "skips": skips}
        versions = getattr(self._data, VERSIONS, {})  # raw text has none
        named = [f"{name}@{version[:SAVED_DIGITS]}" for name, version in versions.items()]
        return {**state, VERSIONS: named} if named else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of its epoch. A running one goes on with its own.

        Raises:
            LoaderStateError: the state is damaged, or belongs to other data, another order or another plan; the
                message names the field. Or Lightning loads it inside an epoch, for batches of another size.
        """
        free = ["batch_size"] if isinstance(self.plan, FixedBatches) else []
        free += ["rows"] if isinstance(self._data, MixedDataset) else []  # another epoch length after a change
        before = self.plan
        if isinstance(before, TokenBudget):  # a run of an earlier version keeps its steps
            version = state_dict.get("version") if isinstance(state_dict, Mapping) else None
            self.plan = before.as_aligned(version in (STATE_VERSION, BLOCK_STATE_VERSION))
        try:
            place, skips = read_state(state_dict, self._state_at, self.plan.rows, self.plan.is_place, free)
            sizes = {name: self._settings[name] for name in ("batch_size",) if name in self._settings}
            self._check_counted(state_dict, place, sizes | {"world_size": self.world_size})
        except BaseException:
            self.plan = before
            raise
        if isinstance(self.plan, FixedBatches):
            self.plan = replace(self.plan, skips=skips)
        self._progress.load(place)
