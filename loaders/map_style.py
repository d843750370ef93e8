"""A DataLoader over any map-style dataset: shuffled by a pure function, sharded over ranks, with exact resume."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, default_collate

from tokenloom.errors import ConfigError
from tokenloom.loaders.order.batch_plan import LARGEST_COUNT, Place, integer
from tokenloom.loaders.order.progress import Progress
from tokenloom.loaders.order.ranks import Ranks
from tokenloom.loaders.order.resume_state import read_state, version_for
from tokenloom.loaders.order.row_order import Permutation, RowOrder, Shuffle, key_of
from tokenloom.loaders.reading.ahead import worker_options
from tokenloom.loaders.resumable import RankedSampler, ResumableLoader, Workers
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import Ints

NAMED = 8
"""Maximum number of rows that a message lists."""


def fetch(dataset: Any, rows: Sequence[int]) -> list[Any]:
    """Return the samples of some rows, through the dataset's `__getitems__` if it has one.

    Raises:
        Exception: the dataset's exception, with a note that names the row and that worker processes pass on.
        RuntimeError: the dataset raised StopIteration, which would end the epoch early.
    """
    if not hasattr(dataset, "__getitems__"):
        return [_sample(dataset, row) for row in rows]
    try:
        return dataset.__getitems__(list(rows))
    except Exception as error:
        failed = error
    for row in rows:  # raises for the row that failed
        _sample(dataset, row)
    raise with_note(failed, f"in {listed(rows)} of the dataset")


def with_note(error: Exception, note: str) -> Exception:
    """Return the error with a note; a StopIteration becomes a RuntimeError."""
    if isinstance(error, StopIteration):
        raised = RuntimeError("the dataset raised StopIteration")
        # a StopIteration inside a generator would end the epoch like its end
        raised.__cause__, error = error, raised
    error.add_note(note)
    return error


def listed(rows: Sequence[int]) -> str:
    """Return "row 3" or "rows 3, 4 and 9 more" for a message."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows[:NAMED]))}{more}"


def _sample(dataset: Any, row: int) -> Any:
    try:
        return dataset[row]
    except Exception as error:
        while isinstance(dataset, Subset):
            dataset, row = dataset.dataset, dataset.indices[row]
        # through subsets, so that the message has the number that the dataset knows
        raised = with_note(error, f"in row {row} of the dataset")
    raise raised


class ChosenRows(Subset[Any]):
    """A torch `Subset` whose `indices` are an int64 array [rows]; the dataset is indexed with plain ints.

    Attributes:
        digest: digest of the indices, and of the dataset if it has one.
    """

    def __init__(self, dataset: Any, indices: Ints):
        self.dataset, self.indices = dataset, indices  # pyright: ignore[reportAttributeAccessIssue]
        of_dataset = getattr(dataset, "digest", "")
        self.digest = digest_json([of_dataset if isinstance(of_dataset, str) else "", digest_bytes(indices.tobytes())])

    def __getitem__(self, row: Any) -> Any:
        return self.dataset[int(self.indices[row])]

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return fetch(self.dataset, np.asarray(self.indices)[rows].tolist())


def split_rows(rows: int, fraction: float, seed: int) -> tuple[Ints, Ints]:
    """Return the training rows and the validation rows, int64, each in ascending order.

    Args:
        rows: number of rows, at least 2.
        fraction: the fraction of rows for validation; rounded down, but at least one row.
        seed: determines which rows are chosen.

    Raises:
        ValueError: there are fewer than two rows.
    """
    if rows < 2:
        raise ValueError(f"a split into training and validation rows needs at least 2 rows, got {rows}")
    count = min(max(int(rows * fraction), 1), rows - 1)
    order = Permutation(rows, key_of("validation", seed, rows))(np.arange(rows))
    return np.sort(order[count:]), np.sort(order[:count])


@contextmanager
def seeded(*key: Any) -> Iterator[None]:
    """Seed `random`, `numpy.random` and `torch` (CPU) from a key, and restore their states afterwards.

    Args:
        key: JSON values; different keys give different numbers.
    """
    seed = key_of("random", *key)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed >> 96)
        torch.default_generator.manual_seed(seed & (1 << 63) - 1)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


READ_AHEAD = 1024
"""Rows computed at once when the sampler is iterated row by row."""


class RankSampler(RankedSampler):
    """The row numbers of one rank. In each epoch, the ranks together read every row once.

    Position p of an epoch's order belongs to rank p % world_size. All ranks take the same number of steps; in the last
    ones, some have a row less than others. Only where there is not one row for each rank in the last step (batches of
    one row, or fewer rows than ranks), rows from the start of the epoch's order are repeated. With `drop_last`, the
    remainder is dropped.

    Args:
        dataset: any object with a length; if it has a str `digest`, that is hashed into the order.
        rank, world_size: this rank and the number of ranks; default: those of `torch.distributed` when rows are read.
        shuffle: `full`, `block` or `none`.
        seed: determines the order, together with the epoch.
        drop_last: drop the remainder instead of repeating rows.

    Attributes:
        epoch: the epoch of the next iteration; `set_epoch` changes it.
        position: rows of the epoch, over all ranks, that were already read and that the next iteration skips.
    """

    def __init__(
        self,
        dataset: Any,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: Any = "full",
        seed: int = 0,
        drop_last: bool = False,
    ):
        super().__init__(Progress(Place), Ranks(rank, world_size), len(dataset))
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle != "none", seed, drop_last
        digest = getattr(dataset, "digest", "")
        self.digest = digest if isinstance(digest, str) else ""
        self._order = RowOrder(max(self.rows, 1), self.digest, seed, shuffle)

    @property
    def position(self) -> int:
        return self.progress.start.position

    def __len__(self) -> int:
        rank, ranks = self.ranks.now()
        last = self.last(ranks)
        return max(len(range(rank, last, ranks)), last > 0)

    def last(self, ranks: int) -> int:
        """Return the number of positions of an epoch that are read."""
        return self.rows - (self.rows % ranks if self.drop_last else 0)

    def batches(self, size: int, place: Place) -> Iterator[tuple[Place, Ints]]:
        """Yield up to `size` rows of this rank at a time, int64, with the place after them, until the epoch ends."""
        rank, ranks = self.ranks.now()
        begin, before, last = place.position, place.epoch * self.rows, self.last(ranks)
        while begin < last:
            end = min(begin + size * ranks, last)
            if 0 < last - end < ranks and size > 1:
                end = last - ranks  # one row for each rank in the last step
            # an epoch can be resumed by other ranks at any position: rank p % ranks stays the owner of p
            first = (rank - begin) % ranks
            mine = self._order.span(before + begin, before + end)[first::ranks]
            # fewer rows than ranks are left: repeat rows of the start, each rank another one
            if not len(mine):
                mine = self._order.take(np.array([before + (begin + first) % self.rows]))
            yield Place(place.epoch, end), mine
            begin = end

    def _remaining(self) -> Iterator[int]:
        for _, rows in self.batches(READ_AHEAD, self.progress.start):
            yield from rows.tolist()


BatchRows = tuple[Place, int, list[int]]
"""The place after a batch, the rank, and the batch's rows."""


class _Batches(Dataset[Any]):
    """A dataset of whole batches, each with the place after it, as worker processes build them."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any], seed: int):
        self._dataset, self._collate_fn, self._seed = dataset, collate_fn, seed

    def __getitems__(self, batch: BatchRows) -> tuple[Place, Any]:
        place, rank, rows = batch
        with seeded("batch", self._seed, rank, place.epoch, place.position):
            samples = fetch(self._dataset, rows)
            try:
                return place, self._collate_fn(samples)
            except Exception as error:
                raised = with_note(error, f"in the batch of {listed(rows)} of the dataset")
        raise raised


class MapLoader(ResumableLoader):
    """A DataLoader over any dataset with `__len__` and `__getitem__`, with exact resume.

    Each iteration is one epoch. The order is a pure function of the number of rows, the dataset's `digest` if it has
    one, the seed, the epoch and the position. `state_dict` and `load_state_dict` resume at any step, on any number of
    ranks and workers, and with any batch size. Random numbers that the dataset or `collate_fn` draws from `random`,
    `numpy.random` or `torch` depend only on the seed, the rank and the batch's position, for any number of workers.

    `sampler` is a `RankSampler`, which is a torch `DistributedSampler`.

    Args:
        dataset: a list, a torch or Hugging Face dataset, or any other map-style dataset.
        batch_size: rows per rank and batch.
        shuffle: `full` or True: shuffle all rows; `block`: shuffle blocks of consecutive rows, then the rows within
            windows of several blocks; `none` or False: keep the order.
        seed: determines the order, together with the epoch.
        drop_last: drop the last batch if it is not full.
        collate_fn: builds a batch from a list of samples; default: torch's `default_collate`.
        rank, world_size: default: those of `torch.distributed` when the first batch is asked for, else 0 and 1.
        num_workers, timeout, worker_init_fn, multiprocessing_context: as in `torch.utils.data.DataLoader`.
        pin_memory, persistent_workers, prefetch_factor: as in `torch.utils.data.DataLoader`. `pin_memory` None: if
            there is a CUDA device; `persistent_workers` None: if there are workers; `prefetch_factor` is ignored
            without workers.

    Raises:
        ValueError: an argument is out of range.
        ConfigError: on iteration: the dataset or a function cannot be pickled for worker processes.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 8,
        shuffle: Shuffle | bool = "full",
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
    ):
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ValueError(
                f"a map-style dataset needs __len__ and __getitem__; a {type(dataset).__name__} lacks them"
            )
        batch_size, seed = integer("batch_size", batch_size, 1, LARGEST_COUNT), integer("seed", seed)
        kind = {True: "full", False: "none"}.get(shuffle, shuffle) if isinstance(shuffle, bool) else shuffle
        sampler = RankSampler(dataset, rank, world_size, kind, seed, drop_last)
        options: dict[str, Any] = {
            **worker_options(num_workers, pin_memory, prefetch_factor, persistent_workers),
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context if num_workers else None,
            "generator": torch.Generator().manual_seed(seed & (1 << 63) - 1),
        }
        collate_fn = collate_fn or default_collate
        super().__init__(dataset, batch_size, sampler=sampler, drop_last=drop_last, collate_fn=collate_fn, **options)
        self._workers = Workers(_Batches(dataset, collate_fn, seed), _as_built, options)
        self._rank_sampler, self._progress, self.sharding = sampler, sampler.progress, sampler.ranks
        self._rows_per_epoch = sampler.rows
        data = " of ".join(filter(None, [f"{sampler.rows} rows", sampler.digest]))
        self._size, self._drops = batch_size, drop_last
        self._settings = {"data": data, "seed": seed, "shuffle": kind, "drop_last": drop_last, "batch_size": batch_size}

    def __len__(self) -> int:
        ranks = self.world_size
        whole, rest = divmod(self._rank_sampler.last(ranks), self._size * ranks)
        return whole + (rest > 0 and not self._drops)

    def _is_at_end(self, place: Place) -> bool:
        return next(self._steps(place)(), None) is None

    def _steps(self, place: Place) -> Callable[[], Iterator[BatchRows]]:
        """Return what yields the remaining steps of the epoch. It does not refer to the loader."""
        # a reference to the loader would keep its workers alive after the last iterator
        sampler, size, drop_last, rank = self._rank_sampler, self._size, self._drops, self.rank

        def steps() -> Iterator[BatchRows]:
            for after, rows in sampler.batches(size, place):
                if len(rows) == size or not drop_last:
                    yield after, rank, rows.tolist()

        return steps

    def _following(self, place: Place) -> Iterator[tuple[Place, Any]]:
        try:
            yield from self._started(place)
        except Exception as error:
            if self.num_workers:  # torch's frames would keep workers alive; the message has the worker's traceback
                error.with_traceback(None)
            raise

    def _started(self, place: Place) -> Iterator[tuple[Place, Any]]:
        """Start the workers, and return the remaining batches of the epoch, each with the place after it."""
        try:
            return self._workers.batches(self._steps(place))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            pickled = {"dataset": self.dataset, "collate_fn": self.collate_fn, "worker_init_fn": self.worker_init_fn}
            for name, value in pickled.items() if self.num_workers else ():
                try:
                    ForkingPickler.dumps(value)
                except Exception:
                    message = (
                        f"cannot be pickled for worker processes ({error}); define it, and everything it refers to, at "
                        "the top level of a module, or use num_workers=0"
                    )
                    raise ConfigError.at(name, message) from error
            raise

    def _state_at(self, place: Place) -> dict[str, Any]:
        settings = self._settings | {"world_size": self.world_size}
        return {"version": version_for(self._settings["shuffle"]), **settings, **place._asdict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of its epoch. A running one goes on with its own.

        Raises:
            LoaderStateError: the state is damaged, or belongs to other data or another order; the message names the
                field. Or Lightning loads it inside an epoch, for batches of another size.
        """
        own = {"batch_size": self._size, "world_size": self.world_size}
        place, _ = read_state(state_dict, self._state_at, self._rank_sampler.rows, lambda at: at.batch == 0, tuple(own))
        self._check_counted(state_dict, place, own)
        self._progress.load(place)


def _as_built(batch: Any) -> Any:  # not a lambda: worker processes are sent it
    return batch
