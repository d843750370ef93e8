"""A stream of rows, encoded as they are read, with the same number of batches on all ranks."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from tokenloom.errors import DataValidationError, LoaderStateError
from tokenloom.loaders.on_the_fly.row_encoder import (
    FILTERED,
    HEAD_ROWS,
    Encoder,
    RowEncoder,
    Rows,
    SkippedRow,
    blocks_of,
    in_columns,
    rows_at,
    shard_of,
    shards_of,
)
from tokenloom.loaders.order.batch_plan import LARGEST_COUNT, epoch_number, integer
from tokenloom.loaders.order.progress import Progress
from tokenloom.loaders.order.ranks import Ranks
from tokenloom.loaders.order.resume_state import check_same, count_in, epoch_in, fields_of
from tokenloom.loaders.order.row_order import Permutation, key_of
from tokenloom.loaders.reading.batch import Row, unpadded
from tokenloom.loaders.resumable import check_not_sharded_again
from tokenloom.resources.tables.ragged import Ints


@dataclass(frozen=True)
class StreamPart:
    """Part `number`, counted from 0, of `count` parts of a stream."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"share {self.number} of {self.count}"

    @classmethod
    def of(cls, rank: int, world_size: int) -> StreamPart:
        """Return the part of this process: of a rank, or of a worker process of its `DataLoader`."""
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        return cls(rank * workers + number, world_size * workers)

    def deal(self, blocks: Iterable[Rows], whole: bool) -> Iterator[tuple[Rows, Ints]]:
        """Yield this part's rows of each block, with their numbers in the stream, int64.

        Args:
            blocks: all rows of the stream.
            whole: yield every `count`-th block instead of every `count`-th row.
        """
        before = 0
        for index, block in enumerate(blocks):
            rows = len(block)
            if not whole:
                # every `count`-th row of the stream, whatever the sizes of blocks are
                mine = np.arange((self.number - before) % self.count, rows, self.count)
                yield (block if self.count == 1 else rows_at(block, mine)), before + mine
            elif index % self.count == self.number:
                yield block, before + np.arange(rows)
            before += rows

    def order(self, rows: int, window: int, seed: int, epoch: int) -> Ints:
        """Return the shuffled order of a window's rows, int64 [rows]."""
        order = np.arange(rows)
        return Permutation(rows, key_of("stream", window, self.number, seed, epoch))(order) if rows else order


AHEAD = 8
"""Batches that each rank prepares before the ranks exchange their counts."""

T = TypeVar("T")


def in_lockstep(batches: Iterator[T], blank: Callable[[], T]) -> Iterator[T]:
    """Yield all batches of this rank, then blank ones until no rank of `torch.distributed` has more.

    Args:
        batches: this rank's batches.
        blank: returns a batch of padding.
    """
    most = AHEAD
    # a rank with fewer than AHEAD batches has none left; the others go on until all are there
    while most == AHEAD:
        mine = list(islice(batches, AHEAD))
        counts = [0] * dist.get_world_size()
        dist.all_gather_object(counts, len(mine))
        most = max(counts)
        yield from mine
        for _ in range(most - len(mine)):
            yield blank()


_SHOWN = 3


class SkipReport:
    """The rows that each share of a stream skipped in its latest epoch.

    Each share writes its rows to a file in a temporary folder, which is deleted with the report. Unlike a queue, a file
    works for any start method of worker processes, can be pickled, and never makes a worker wait for a reader.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tokenloom-skipped-"))
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def begin(self, share: StreamPart) -> ShareReport:
        """Return an empty report of one share."""
        self._folder.mkdir(exist_ok=True)  # a copy of the report can outlive the original, which deletes the folder
        for stale in self._folder.glob("*.jsonl"):
            # of an epoch with another number of workers
            if not stale.name.startswith(f"{share.count}-"):
                stale.unlink(missing_ok=True)
        return ShareReport(self._folder / f"{share.count}-{share.number}.jsonl")

    def rows(self) -> tuple[SkippedRow, ...]:
        """Return all skipped rows, sorted by shard and number."""
        lines = [line for path in self._folder.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
        rows = [SkippedRow(*json.loads(line)) for line in lines]
        return tuple(sorted(rows, key=lambda skipped: (skipped.shard or 0, skipped.row)))

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder}


class ShareReport:
    """The rows that one share skips in one epoch."""

    def __init__(self, path: Path):
        self._path, self._codes, self._first = path, Counter[str](), list[SkippedRow]()
        path.write_text("")

    def add(self, rows: Sequence[SkippedRow]) -> None:
        """Add skipped rows."""
        if not rows:
            return
        lines = "".join(f"{json.dumps(astuple(row))}\n" for row in rows)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(lines)
        self._codes.update(row.code for row in rows)
        self._first += rows[: _SHOWN - len(self._first)]

    def warn(self) -> None:
        """Warn about the rows that were skipped, at the end of an epoch."""
        if not self._codes:
            return
        counts = ", ".join(f"{count:,} × {code}" for code, count in self._codes.most_common())
        first = "; ".join(map(str, self._first))
        message = f"{self._codes.total():,} rows were skipped: {counts} (e.g. {first}); `skipped` lists all of them"
        warnings.warn(message, stacklevel=3)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # forked processes inherit the finalizer
        shutil.rmtree(folder, ignore_errors=True)


LARGEST_BLOCK, UNSHUFFLED_BLOCK = 1024, 256
"""Rows read and encoded at once: the maximum with shuffling, and the number without shuffling."""

GATHERED = 64
"""Rows of a window gathered at once."""

STATE_VERSION = 1


class WindowPlace(NamedTuple):
    """A place in a stream: the epoch, its finished windows, and the rows yielded from the next one."""

    epoch: int = 0
    window: int = 0
    row: int = 0


@dataclass(frozen=True)
class _Part:
    """Raw rows of one worker that are encoded at once, with their numbers, int64."""

    rows: Rows
    numbers: Ints
    shard: int | None


class StreamingPreprocessedDataset(IterableDataset[Row]):
    """The rows of a stream as sequences, encoded in blocks as they are read.

    Yields rows in the format of `PreprocessedDataset`; packed rows also have `position_ids`. The rows are divided among
    ranks and the worker processes of each `DataLoader`: by shards for a Hugging Face `IterableDataset` with enough of
    them (and without `take`, `skip`, `repeat` or `interleave_datasets`), by blocks if sequences are built from several
    rows, else row by row. Ranks can have different numbers of rows.

    Args:
        hf_iterable: a Hugging Face `IterableDataset`, or any iterable of mappings that can be iterated repeatedly and
            yields all rows in every process.
        prompt_engine: a `PromptEngine`, or any object with its `encode`.
        buffer_size: number of raw rows that are shuffled together; 0 or 1 keeps the order.
        skip_errors: drop rows that cannot be used, and list them in `skipped`; False: the first such row raises.
        seed: determines the order, together with the epoch.
        rank, world_size: default: those of `torch.distributed` when rows are read, else 0 and 1. A stream that
            `split_dataset_by_node` has divided is not divided again.
        loss_weights: whether rows have `loss_weights`; None: only if the first rows need them.

    Raises:
        ValueError: an argument is out of range, or `hf_iterable` is not a dataset that can be read repeatedly.
        ConfigError: the engine's settings do not fit the columns.
        DataValidationError: on iteration: a row cannot be used, and `skip_errors` is False.
    """

    def __init__(
        self,
        hf_iterable: Any,
        prompt_engine: Encoder,
        buffer_size: int = 1000,
        skip_errors: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        loss_weights: bool | None = None,
    ):
        buffer_size, seed = integer("buffer_size", buffer_size, 0, LARGEST_COUNT), integer("seed", seed)
        self._source = in_columns(hf_iterable)
        self._divided = getattr(self._source, "_distributed", None) is not None
        self.sharding = Ranks(0, 1) if self._divided else Ranks(rank, world_size)
        self._window, self._skip_errors, self._seed = buffer_size, skip_errors, seed
        self._encoder = RowEncoder(prompt_engine, next(blocks_of(self._source, HEAD_ROWS), []), loss_weights)
        self._report = SkipReport()
        self._shared = torch.zeros(2, dtype=torch.int64).share_memory_()  # the epoch; whether workers iterate
        self._progress = Progress(WindowPlace)
        self._resumed: StreamPart | None = None  # the share of a loaded state

    @property
    def epoch(self) -> int:
        """Determines the order, together with the seed."""
        return int(self._shared[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also for persistent workers. A loaded state goes first.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        self._progress.set_epoch(epoch_number(epoch, 1))
        self._shared[0] = self._progress.start.epoch

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The rows that this rank and its workers skipped in their latest epoch, with the reasons, in order."""
        return self._report.rows()

    def __iter__(self) -> Iterator[Row]:
        self._shared[1] = get_worker_info() is not None
        rank, world_size = self.sharding.now()
        if world_size > 1:
            check_not_sharded_again(type(self).__name__)
        share, progress = StreamPart.of(rank, world_size), self._progress
        if self.epoch != progress.start.epoch:  # chosen in the main process, for a worker that persists
            progress.set_epoch(self.epoch)
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed != share:
            raise LoaderStateError(
                f"the state is of {resumed}, but this process reads {share}: load it with the same number of workers"
            )
        rows = partial(self._following, share, self._report.begin(share))
        return progress.iterate(rows, lambda _: False, moves_on=False)

    def _following(
        self, share: StreamPart, report: ShareReport, place: WindowPlace
    ) -> Iterator[tuple[WindowPlace, Row]]:
        """Yield the rows of an epoch from a place on, each with the place after it."""
        (epoch, done, given), window = place, -1
        for window, parts in enumerate(self._windows(share, epoch)):
            if window < done:
                continue
            tables, skipped = list[Any](), list[SkippedRow]()
            for part in parts:
                part_tables, part_skipped = self._encoder.encode(part.rows, part.numbers, part.shard)
                tables += part_tables
                skipped += part_skipped
            bad = next((row for row in skipped if row.code != FILTERED), None)
            if bad and not self._skip_errors:
                raise DataValidationError(f"{bad}; skip_errors=True drops such rows")
            report.add(skipped)
            reader = self._encoder.reader(tables)
            order = np.arange(len(reader))
            if self._window > 1:
                order = share.order(len(reader), window, self._seed, epoch)
            if given > len(order):
                raise LoaderStateError(f"the state is at row {given} of window {window}, which has {len(order)} rows")
            for begin in range(given, len(order), GATHERED):
                rows = unpadded(self._encoder.batch(reader, order[begin : begin + GATHERED]))
                for number, row in enumerate(rows, begin + 1):
                    # after the last row of a window, the place is the start of the next one
                    is_last = number == len(order)
                    yield WindowPlace(epoch, window + is_last, 0 if is_last else number), row
            given = 0
        if done > window + 1 or given:
            raise LoaderStateError(f"the state is at row {given} of window {done}, but the stream has {window + 1}")
        report.warn()

    def __getstate__(self) -> dict[str, Any]:
        if (self.sharding.known() or (0, 1))[1] > 1:  # a worker process that is not forked cannot tell who reads
            check_not_sharded_again(type(self).__name__)
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()  # unpickling leaves it unshared

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process after its last yielded row.

        torchdata's `StatefulDataLoader` calls this in each worker process. With a plain `DataLoader`, it works only
        without workers.

        Raises:
            LoaderStateError: worker processes of a plain `DataLoader` read the rows.
        """
        share, place = StreamPart.of(*self.sharding.now()), self._progress.place
        if get_worker_info() is None and self._shared[1]:
            raise LoaderStateError(
                "rows are read in worker processes: use num_workers=0, or torchdata's StatefulDataLoader, which saves "
                "the state of each worker"
            )
        return {**self._settings(share), "epoch": place.epoch, "window": place.window, "row": place.row}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration reads past the finished windows without encoding them.

        Raises:
            LoaderStateError: the state is damaged, or belongs to another stream, or to a different number of ranks or
                workers. On iteration: the stream ends before the state's position.
        """
        share = StreamPart.of(*self.sharding.now())
        own = self._settings(share)
        fields_of(state_dict, (*own, "epoch", "window", "row"), STATE_VERSION)
        check_same(state_dict, own)
        epoch, window, row = epoch_in(state_dict, 1), count_in(state_dict, "window"), count_in(state_dict, "row")
        self._progress.load(WindowPlace(epoch, window, row))
        self._shared[0], self._resumed = epoch, share

    def _settings(self, share: StreamPart) -> dict[str, Any]:
        settings = {"buffer_size": self._window, "seed": self._seed, "share": share.number, "shares": share.count}
        return {"version": STATE_VERSION, **settings}

    def _windows(self, share: StreamPart, epoch: int) -> Iterator[list[_Part]]:
        held: list[_Part] = []
        for part in self._parts(share, epoch):
            held.append(part)
            if sum(len(each.numbers) for each in held) >= self._window:
                yield held
                held = []
        if held:
            yield held

    def _parts(self, share: StreamPart, epoch: int) -> Iterator[_Part]:
        size = min(self._window, LARGEST_BLOCK) if self._window > 1 else UNSHUFFLED_BLOCK
        shards = 1 if self._divided else shards_of(self._source)
        # too few shards for all workers: each reads the whole stream and takes its rows
        if shards < max(share.count, 2):
            for rows, numbers in share.deal(blocks_of(self._source, size), self._encoder.whole_chunks):
                yield _Part(rows, numbers, None)
            return
        mine = np.arange(share.number, shards, share.count)
        if self._window > 1:
            mine = mine[share.order(len(mine), -1, self._seed, epoch)]
        for shard in mine.tolist():
            before = 0
            for rows in blocks_of(shard_of(self._source, shard), size):
                yield _Part(rows, before + np.arange(len(rows)), shard)
                before += len(rows)
