"""Makes DataLoaders from a `DataLoaderConfig`: seeded, and set up for the hardware."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders.any_dataset.builder import DataLoaderBuilder
from tokenloom.loaders.any_dataset.config import DataLoaderConfig, workers_for_hardware
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset, open_dataset
from tokenloom.loaders.order.ranks import place_among_ranks


class DataLoaderFactory:
    """Makes DataLoaders; the same dataset and config, with a seed, give the same batches."""

    def create_dataloader(self, dataset: Any = None, config: DataLoaderConfig | None = None) -> DataLoader[Any]:
        """A loader, as `DataLoaderBuilder` builds it.

        Args:
            dataset: map-style or iterable; None: the built one that `config.dataset_name` names.
            config: default: `DataLoaderConfig()`.

        Raises:
            ConfigError: there is no dataset, or settings do not go with it.
            ValueError: a value is none that the loader takes.
        """
        config = config or DataLoaderConfig()
        if dataset is None:
            if config.dataset_name is None:
                raise ConfigError([Fault("create_dataloader", "give a dataset, or name one: config.dataset_name")])
            dataset = open_dataset(config.dataset_name, store=config.cache_dir)
        rank, world_size = place_among_ranks(config.rank, config.world_size)
        if config.seed is None and world_size > 1:
            raise ConfigError([Fault("seed", f"{world_size} ranks need one order: set the same seed for all of them")])
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
    """Another one each time, unless torch is seeded."""
    return int(torch.randint(0, 1 << 62, ()))
