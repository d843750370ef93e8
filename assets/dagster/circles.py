"""Circles among the datasets of a folder: one that waits, by `dagster.deps`, for what is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dagster as dg

from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.assets.dagster.names import MODEL, SOURCE
from tokenloom.config import MixtureConfig
from tokenloom.config.load import Config
from tokenloom.errors import ConfigError
from tokenloom.resources.store.manifest import MIXTURE


def circular(configs: Mapping[Path, Config], embedding: Embedding) -> dict[Path, ConfigError]:
    """Return the faults of datasets whose upstream assets are made of themselves, by file."""
    owners = {key: path for path, config in configs.items() for key in _made(config, embedding)}
    above = {
        path: {owners[key] for key in _read(config, embedding) if key in owners} for path, config in configs.items()
    }
    found = dict[Path, ConfigError]()
    while True:
        try:
            TopologicalSorter(above).prepare()
            return found
        except CycleError as error:
            circle: list[Path] = error.args[1]
            names = " → ".join(configs[path].dataset_name for path in circle)
            for path in circle:
                if not isinstance(config := configs[path], MixtureConfig):
                    found[path] = config.fault("dagster.deps", f"waits for what is made of the dataset itself: {names}")
                    above[path] = set()


def _made(config: Config, embedding: Embedding) -> Iterator[dg.AssetKey]:
    """Yield the keys of the assets of a dataset or mixture."""
    for stage in [MIXTURE] if isinstance(config, MixtureConfig) else [SOURCE, *STAGES]:
        yield embedding.key(config.dataset_name, stage)
    if config.training is not None:
        yield embedding.key(config.dataset_name, MODEL)


def _read(config: Config, embedding: Embedding) -> Iterator[dg.AssetKey]:
    """Yield the keys of the assets that a dataset or mixture is made of."""
    if isinstance(config, MixtureConfig):
        yield from (embedding.key(name, STAGES[-1]) for name in config.names)
    else:
        yield from embedding.upstream(config)
