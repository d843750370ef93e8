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
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, default_collate

from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders.order.batch_plan import LARGEST_COUNT, Place, epoch_number, integer, place_among_ranks
from tokenloom.loaders.order.resume_state import read_state, version_for
from tokenloom.loaders.order.row_order import Permutation, RowOrder, Shuffle, key_of
from tokenloom.loaders.reading.ahead import worker_options
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


class RankSampler(DistributedSampler[int]):
    """The row numbers of one rank. In each epoch, the ranks together read every row once.

    Position p of an epoch's order belongs to rank p % world_size. If the rows do not divide evenly, up to
    world_size - 1 rows from the start of the epoch's order are repeated at its end, so that all ranks take the same
    number of steps. With `drop_last`, the remainder is dropped instead.

    Args:
        dataset: any object with a length; if it has a str `digest`, that is hashed into the order.
        rank, world_size: this rank and the number of ranks.
        shuffle: `full`, `block` or `none`.
        seed: determines the order, together with the epoch.
        drop_last: drop the remainder instead of repeating rows.

    Attributes:
        epoch: the epoch of the next iteration; `set_epoch` changes it.
        position: rows of the epoch, over all ranks, that were already read and that the next iteration skips.
    """

    def __init__(
        self, dataset: Any, rank: int, world_size: int, shuffle: Any = "full", seed: int = 0, drop_last: bool = False
    ):
        super().__init__(dataset, world_size, rank, shuffle != "none", seed, drop_last)
        self.rows, self.position = len(dataset), 0
        digest = getattr(dataset, "digest", "")
        self.digest = digest if isinstance(digest, str) else ""
        self._order = RowOrder(max(self.rows, 1), self.digest, seed, shuffle)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        epoch = epoch_number(epoch, self.rows)
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def batches(self, size: int) -> Iterator[tuple[int, Ints]]:
        """Yield up to `size` rows of this rank at a time, int64, with the position after them, until the epoch ends."""
        begin, before, ranks = self.position, self.epoch * self.rows, self.num_replicas
        last = self.rows - (self.rows % ranks if self.drop_last else 0)
        while begin < last:
            end = min(begin + size * ranks, last)
            mine = self._order.span(before + begin, before + end)[self.rank :: ranks]
            if len(mine) < -(-(end - begin) // ranks):
                repeated = (begin + self.rank + len(mine) * ranks) % self.rows
                mine = np.append(mine, self._order.take(np.array([before + repeated])))
            yield end, mine
            begin = end

    def __iter__(self) -> Iterator[int]:
        for _, rows in self.batches(READ_AHEAD):
            yield from rows.tolist()


BatchRows = tuple[tuple[int, int], list[int]]
"""(epoch, position after a batch), and the batch's rows."""


class _Batches(Dataset[Any]):
    """A dataset of whole batches, each with the position after it, as worker processes build them."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any], key: tuple[Any, ...]):
        self._dataset, self._collate_fn, self._key = dataset, collate_fn, key

    def __getitems__(self, batch: BatchRows) -> tuple[int, Any]:
        place, rows = batch
        with seeded(*self._key, *place):
            samples = fetch(self._dataset, rows)
            try:
                return place[1], self._collate_fn(samples)
            except Exception as error:
                raised = with_note(error, f"in the batch of {listed(rows)} of the dataset")
        raise raised


class _Steps:
    """The batch sampler of a `DataLoader`: the remaining batches of the epoch."""

    def __init__(self, sampler: RankSampler, size: int, drop_last: bool):
        self._sampler, self._size, self._drop_last = sampler, size, drop_last

    def __iter__(self) -> Iterator[BatchRows]:
        epoch = self._sampler.epoch
        for position, rows in self._sampler.batches(self._size):
            if len(rows) == self._size or not self._drop_last:
                yield (epoch, position), rows.tolist()

    def __len__(self) -> int:
        whole, rest = divmod(len(self._sampler), self._size)
        return whole + (rest > 0 and not self._drop_last)


class MapLoader(DataLoader[Any]):
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
        rank, world_size: default: those of `torch.distributed` if it is initialized, else 0 and 1.
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
        rank, world_size = place_among_ranks(rank, world_size)
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
        batches = _Batches(dataset, collate_fn, ("batch", seed, rank))
        self._steps = _Steps(sampler, batch_size, drop_last)
        self._batches = DataLoader(batches, batch_sampler=self._steps, collate_fn=_unchanged, **options)  # pyright: ignore[reportArgumentType]
        self._rank_sampler, self._resumed = sampler, False
        data = " of ".join(filter(None, [f"{sampler.rows} rows", sampler.digest]))
        self._settings = {"data": data, "seed": seed, "shuffle": kind, "drop_last": drop_last}
        self._settings |= {"batch_size": batch_size, "world_size": world_size}

    def __len__(self) -> int:
        """Number of steps in an epoch."""
        return len(self._steps)

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        sampler = self._rank_sampler
        if not self._resumed:
            sampler.position = 0
        self._resumed = False
        epoch = sampler.epoch
        try:
            for position, batch in self._started():
                sampler.position = position
                yield batch
        except Exception as error:
            if self.num_workers:  # torch's frames would keep workers alive; the message has the worker's traceback
                error.with_traceback(None)
            raise
        sampler.set_epoch(epoch + 1)

    def _started(self) -> Iterator[tuple[int, Any]]:
        """Start the workers, and return the remaining batches of the epoch, each with the position after it."""
        try:
            return iter(self._batches)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            pickled = {"dataset": self.dataset, "collate_fn": self.collate_fn, "worker_init_fn": self.worker_init_fn}
            for name, value in pickled.items() if self.num_workers else ():
                if not _can_be_pickled(value):
                    message = (
                        f"cannot be pickled for worker processes ({error}); define it, and everything it refers to, at "
                        "the top level of a module, or use num_workers=0"
                    )
                    raise ConfigError([Fault(name, message)]) from error
            raise

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. After a finished epoch the loader moves on by itself.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        self._rank_sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch, as less than 1 KB of JSON."""
        sampler = self._rank_sampler
        return self._state_at(Place(sampler.epoch, sampler.position))

    def _state_at(self, place: Place) -> dict[str, Any]:
        return {"version": version_for(self._settings["shuffle"]), **self._settings, **place._asdict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of its epoch.

        Raises:
            LoaderStateError: the state is damaged, or belongs to other data or another order; the message names the
                field.
        """
        sampler = self._rank_sampler
        place, _ = read_state(
            state_dict, self._state_at, sampler.rows, lambda place: place.batch == 0, ("batch_size", "world_size")
        )
        sampler.epoch, sampler.position = place.epoch, place.position
        self._resumed = True


def _unchanged(batch: Any) -> Any:
    return batch


def _can_be_pickled(value: Any) -> bool:
    try:
        ForkingPickler.dumps(value)
    except Exception:
        return False
    return True
