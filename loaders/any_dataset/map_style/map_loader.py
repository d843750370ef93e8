"""A DataLoader over any map-style dataset: shuffled by a pure function, sharded over ranks, resumed exactly."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders.any_dataset.map_style.fetch import fetch, noted, told
from tokenloom.loaders.any_dataset.map_style.random_state import seeded
from tokenloom.loaders.any_dataset.map_style.rank_sampler import RankSampler
from tokenloom.loaders.order.ranks import place_among_ranks
from tokenloom.loaders.order.resume_state import STATE_VERSION, check_state
from tokenloom.loaders.order.row_order import Shuffle

Fetched = tuple[tuple[int, int], list[int]]
"""(epoch, position behind a batch), and its rows."""


class _Batches(Dataset[Any]):
    """Whole batches of a dataset, as worker processes make them, each with the position behind it."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any], key: tuple[Any, ...]):
        self._dataset, self._collate_fn, self._key = dataset, collate_fn, key

    def __getitems__(self, batch: Fetched) -> tuple[int, Any]:
        place, rows = batch
        with seeded(*self._key, *place):
            samples = fetch(self._dataset, rows)
            try:
                return place[1], self._collate_fn(samples)
            except Exception as error:
                raised = noted(error, f"in the batch of {told(rows)} of the dataset")
        raise raised


class _Steps:
    """What a `DataLoader` draws batches from: the rest of the epoch."""

    def __init__(self, sampler: RankSampler, size: int, drop_last: bool):
        self._sampler, self._size, self._drop_last = sampler, size, drop_last

    def __iter__(self) -> Iterator[Fetched]:
        epoch = self._sampler.epoch
        for position, rows in self._sampler.batches(self._size):
            if len(rows) == self._size or not self._drop_last:
                yield (epoch, position), rows.tolist()

    def __len__(self) -> int:
        whole, rest = divmod(len(self._sampler), self._size)
        return whole + (rest > 0 and not self._drop_last)


class MapLoader(DataLoader[Any]):
    """Batches of any dataset that has `__len__` and `__getitem__`.

    Each iteration is an epoch. The order is a pure function of the number of rows, the seed, the epoch and the
    position: `state_dict` and `load_state_dict` resume at any step, also with another number of ranks or workers or
    another batch size. Random numbers that the dataset or `collate_fn` draw from `random`, `numpy.random` or `torch`
    are a function of the seed and the batch's place, whatever the number of workers.

    `sampler` is a `RankSampler`: a `DistributedSampler`, in whose words rows are dealt out to ranks.

    Args:
        dataset: a list, a torch or Hugging Face dataset, …
        batch_size: rows a rank and batch.
        shuffle: `full` or True; `block`: blocks of consecutive rows, then rows within some blocks; `none` or False.
        seed: chooses the order, together with the epoch.
        drop_last: leave out a last batch that is not full.
        collate_fn: makes a batch of a list of samples; default: torch's.
        rank, world_size: default: those of `torch.distributed` where it is initialized, else 0 of 1.
        num_workers, timeout, worker_init_fn, multiprocessing_context: as in `torch.utils.data.DataLoader`.
        pin_memory, persistent_workers, prefetch_factor: as there; None is chosen for the hardware. `prefetch_factor`
            counts with workers alone.

    Raises:
        ValueError: an argument is not one of these.
        ConfigError: when iterated: what worker processes need cannot be sent to them.
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
            raise ValueError(f"a {type(dataset).__name__} is no map-style dataset: it needs __len__ and __getitem__")
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} must be at least 1")
        kind = {True: "full", False: "none"}.get(shuffle, shuffle) if isinstance(shuffle, bool) else shuffle
        rank, world_size = place_among_ranks(rank, world_size)
        sampler = RankSampler(dataset, rank, world_size, kind, seed, drop_last)
        options: dict[str, Any] = {
            "num_workers": num_workers,
            "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
            "prefetch_factor": prefetch_factor if num_workers else None,
            "persistent_workers": num_workers > 0 and persistent_workers is not False,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context if num_workers else None,
            "generator": torch.Generator().manual_seed(seed & (1 << 63) - 1),
        }
        collate_fn = collate_fn or default_collate
        super().__init__(dataset, batch_size, sampler=sampler, drop_last=drop_last, collate_fn=collate_fn, **options)
        made = _Batches(dataset, collate_fn, ("batch", seed, rank))
        self._steps = _Steps(sampler, batch_size, drop_last)
        self._batches = DataLoader(made, batch_sampler=self._steps, collate_fn=_as_it_is, **options)  # pyright: ignore[reportArgumentType]
        self._ranks, self._resume = sampler, False
        data = " of ".join(filter(None, [f"{sampler.rows} rows", sampler.digest]))
        self._made = {"data": data, "seed": seed, "shuffle": kind, "drop_last": drop_last}
        self._made |= {"batch_size": batch_size, "world_size": world_size}

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return len(self._steps)

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        sampler = self._ranks
        if not self._resume:
            sampler.position = 0
        self._resume = False
        epoch = sampler.epoch
        try:
            for position, batch in self._begun():
                sampler.position = position
                yield batch
        except Exception as error:
            if self.num_workers:  # frames of torch hold workers until garbage is collected; the message tells theirs
                error.with_traceback(None)
            raise
        sampler.set_epoch(epoch + 1)

    def _begun(self) -> Iterator[tuple[int, Any]]:
        """The batches of the rest of the epoch, each with the position behind it."""
        try:
            return iter(self._batches)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            needed = {"dataset": self.dataset, "collate_fn": self.collate_fn, "worker_init_fn": self.worker_init_fn}
            for name, value in needed.items() if self.num_workers else ():
                if not _can_be_sent(value):
                    told = "define it, and what it refers to, at the top level of a module, or take num_workers=0"
                    fault = Fault(name, f"it cannot be sent to worker processes ({error}); {told}")
                    raise ConfigError([fault]) from error
            raise

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes; a finished one moves on by itself."""
        self._ranks.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands behind the batch that was given last, as JSON of less than 1 KB."""
        place = {"epoch": self._ranks.epoch, "position": self._ranks.position, "batch": 0}
        return {"version": STATE_VERSION, **self._made, **place}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: the next iteration makes the rest of its epoch.

        Raises:
            LoaderStateError: the state is of a dataset of another length, or of another order; names what differs.
        """
        check_state(state_dict, self.state_dict(), free=True)
        self._ranks.epoch, self._ranks.position = state_dict["epoch"], state_dict["position"]
        self._resume = True


def _as_it_is(batch: Any) -> Any:
    return batch


def _can_be_sent(value: Any) -> bool:
    try:
        ForkingPickler.dumps(value)
    except Exception:
        return False
    return True
