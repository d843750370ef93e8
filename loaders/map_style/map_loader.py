"""A DataLoader over any map-style dataset: shuffled by a pure function, sharded over ranks, with exact resume."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders.map_style.fetch import fetch, listed, with_note
from tokenloom.loaders.map_style.random_state import seeded
from tokenloom.loaders.map_style.rank_sampler import RankSampler
from tokenloom.loaders.order.arguments import LARGEST_COUNT, integer
from tokenloom.loaders.order.batch_plan import Place
from tokenloom.loaders.order.ranks import place_among_ranks
from tokenloom.loaders.order.resume_state import read_state, version_for
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.reading.workers import worker_options

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
