"""Creates DataLoaders from a `DataLoaderConfig`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders.any_dataset.builder import DataLoaderBuilder
from tokenloom.loaders.any_dataset.config import DataLoaderConfig
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset, open_dataset
from tokenloom.loaders.order.ranks import place_among_ranks
from tokenloom.loaders.reading.workers import workers_for_hardware


class DataLoaderFactory:
    """Creates DataLoaders. The same dataset, config and seed give the same batches."""

    def create_dataloader(self, dataset: Any = None, config: DataLoaderConfig | None = None) -> DataLoader[Any]:
        """Return the loader that `DataLoaderBuilder` builds from the config.

        Args:
            dataset: a map-style or iterable dataset; None: the built dataset named by `config.dataset_name`.
            config: default: `DataLoaderConfig()`.

        Raises:
            ConfigError: no dataset is given, or the settings do not fit it.
            DatasetNotFoundError: the store has no dataset of that name.
            ValueError: a value is out of range.
        """
        config = config or DataLoaderConfig()
        if dataset is None:
            if config.dataset_name is None:
                raise ConfigError([Fault("create_dataloader", "no dataset: pass one, or set config.dataset_name")])
            dataset = open_dataset(config.dataset_name, store=config.cache_dir)
        rank, world_size = place_among_ranks(config.rank, config.world_size)
        if config.seed is None and world_size > 1:
            raise ConfigError(
                [Fault("seed", f"{world_size} ranks need the same order: set the same seed on all ranks")]
            )
        builder = DataLoaderBuilder().with_dataset(dataset).with_batch_size(config.batch_size)
        builder.with_seed(_drawn_seed() if config.seed is None else config.seed).with_drop_last(config.drop_last)
        builder.with_shuffle(config.shuffle)
        if not isinstance(dataset, IterableDataset):
            builder.with_distributed(rank, world_size)
        if config.collate_fn is not None:
            builder.with_collate(config.collate_fn)
        workers = workers_for_hardware() if config.num_workers is None else config.num_workers
        builder.with_options(
            num_workers=workers,
            pin_memory=config.pin_memory,
            persistent_workers=config.persistent_workers,
            prefetch_factor=config.prefetch_factor if workers else None,
        )
        if not isinstance(dataset, TokenDataset | MixedDataset) or config.collate_fn is not None:
            builder.with_options(
                timeout=config.timeout,
                worker_init_fn=config.worker_init_fn,
                multiprocessing_context=config.multiprocessing_context,
            )
        return builder.build()


def _drawn_seed() -> int:
    """Draw a seed from torch's generator."""
    return int(torch.randint(0, 1 << 62, ()))
