"""The settings of a `DataLoaderFactory`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenloom.loaders.order.row_order import Shuffle


@dataclass(frozen=True)
class DataLoaderConfig:
    """Settings of a `DataLoaderFactory`.

    Args:
        batch_size: rows per rank and batch.
        shuffle: `full` or True: shuffle all rows; `block`: shuffle blocks of rows, then rows within windows of blocks;
            `none` or False: keep the order.
        num_workers: worker processes; None: 0 without a CUDA device, else half of the CPUs, at most 4.
        pin_memory: pin batches for faster copies to the GPU; None: if there is a CUDA device.
        prefetch_factor: batches prefetched by each worker; ignored without workers.
        persistent_workers: keep workers between epochs; None: if there are workers.
        drop_last: drop the last batch if it is not full.
        seed: seed of the order and of random numbers drawn while loading; None: a new one per loader, drawn from
            torch's generator.
        collate_fn: builds a batch from a list of samples; None: the loader's default.
        rank, world_size: None: those of `torch.distributed` if it is initialized, else 0 and 1.
        max_length: maximum tokens per row when an `ArrayDataLoader` tokenizes raw text.
        dataset_name: name of the built dataset to open when no dataset is passed.
        cache_dir: the store that contains it; None: `$TOKENLOOM_STORE`, else the nearest
            `.tokenloom` in or above the working directory.
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
