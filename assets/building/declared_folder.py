"""The datasets and mixtures that a folder of YAMLs declares, and the faults of those that are wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tokenloom.assets.building.members import Member, find_members, read_config, yaml_files
from tokenloom.config import MixtureConfig
from tokenloom.config.load import Config
from tokenloom.errors import ConfigError


@dataclass(frozen=True)
class DeclaredFolder:
    """What some YAMLs declare, by file: each has a config or faults; and the datasets of each mixture."""

    configs: dict[Path, Config] = field(default_factory=dict)
    faults: dict[Path, ConfigError] = field(default_factory=dict)
    members: dict[Path, list[Member]] = field(default_factory=dict)


def read_folder(folder: Path) -> DeclaredFolder:
    """Read all YAMLs of a folder, as `read_files` does."""
    return read_files(yaml_files(folder))


def read_files(paths: Iterable[Path]) -> DeclaredFolder:
    """Read YAMLs, each once. The second of two with the same name, also by Dagster's rules, is faulty; so is a mixture
    whose datasets do not fit together."""
    read, made, taken = cache(read_config), DeclaredFolder(), dict[str, tuple[Path, str]]()
    for path in paths:
        try:
            if isinstance(config := read(path), ConfigError):
                raise config
            _claim_name(config, path, taken)
            made.configs[path] = config
        except ConfigError as error:
            made.faults[path] = error
    for path, config in [*made.configs.items()]:
        if isinstance(config, MixtureConfig):
            try:
                made.members[path] = find_members(config, read=read)
            except ConfigError as error:
                made.faults[path] = error
                del made.configs[path]
    return made


def plain_name(dataset: str) -> str:
    """Return a dataset's name with only letters, digits and `_`, as Dagster has it in names of steps and jobs."""
    return re.sub(r"[^A-Za-z0-9_]", "_", dataset)


def _claim_name(config: Config, path: Path, taken: dict[str, tuple[Path, str]]) -> None:
    """Add a dataset's file and name to `taken`, under its plain name.

    Raises:
        ConfigError: another file declares the same dataset, or one with the same plain name.
    """
    name = config.dataset_name
    first, other = taken.setdefault(plain_name(name), (path, name))
    if first != path:
        same = "is already declared" if other == name else f"has the same name in Dagster as {other!r}, declared"
        raise config.fault("name", f"dataset {name!r} {same} in {first}; rename one of them with `name:`")
