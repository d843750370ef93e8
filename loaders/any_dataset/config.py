"""The settings of a DataLoader, as one value."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.resources.engines.cpu_count import cpu_count

MOST_WORKERS = 4
"""Worker processes that are chosen for the hardware, at most."""


@dataclass(frozen=True)
class DataLoaderConfig:
    """Settings for a `DataLoaderFactory`; None is chosen for the hardware unless told otherwise.

    Args:
        batch_size: rows a rank and batch.
        shuffle: `full` or True; `block`; `none` or False.
        num_workers: worker processes; None: 0 without a CUDA device, else half of the CPUs, at most 4.
        pin_memory: pin batches for the way to the GPU; None: where there is a CUDA device.
        prefetch_factor: batches that each worker makes ahead; without workers it does not count.
        persistent_workers: keep workers from epoch to epoch; None: where there are workers.
        drop_last: leave out a last batch that is not full.
        seed: of the order and of random numbers drawn while loading; None: a new one for each loader, drawn from
            torch's generator.
        collate_fn: makes a batch of a list of samples.
        rank, world_size: None: those of `torch.distributed` where it is initialized, else 0 of 1.
        max_length: tokens that rows are cut to where text is tokenized while it is loaded.
        dataset_name: a built dataset, for where none is given.
        cache_dir: the store that holds it; None: `$TOKENLOOM_STORE`, else `.tokenloom`.
        timeout, worker_init_fn, multiprocessing_context: as in `torch.utils.data.DataLoader`.
    """

    batch_size: int = 32
    shuffle: Shuffle | bool = True
    num_workers: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    drop_last: bool = False
    seed: int | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    rank: int | None = None
    world_size: int | None = None
    max_length: int = 2048
    dataset_name: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None


def workers_for_hardware() -> int:
    """Worker processes: without a GPU they cost more than they bring."""
    return min(MOST_WORKERS, cpu_count() // 2) if torch.cuda.is_available() else 0
