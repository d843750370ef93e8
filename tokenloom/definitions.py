"""Dagster's front door: every YAML of the pipelines folder, as assets, checks, jobs and schedules.

The folder is `$TOKENLOOM_PIPELINES`, else `pipelines/` in the working directory; where there is none, the quickstart is
shown. Only YAML is read here.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import dagster as dg

from tokenloom.assets.building.members import yaml_files
from tokenloom.assets.dagster.dataset_assets import StoreResource, dagster_name, dataset_definitions
from tokenloom.assets.dagster.mixture_asset import mixture_definitions
from tokenloom.config import Declaration, MixtureConfig
from tokenloom.config.load import load_config
from tokenloom.errors import ConfigError, Fault


def pipelines_folder() -> Path:
    """`$TOKENLOOM_PIPELINES`, else `pipelines` in the working directory, else the folder of the quickstart."""
    if named := os.environ.get("TOKENLOOM_PIPELINES"):
        return Path(named).expanduser()
    found = Path("pipelines")
    return found if found.is_dir() else Path(__file__).parent / "pipelines"


def load_definitions(folder: Path) -> dg.Definitions:
    """The definitions of all datasets and mixtures that a folder declares.

    Raises:
        ConfigError: with every fault of every file.
    """
    parts: list[dg.Definitions] = []
    declared: dict[str, tuple[Path, str]] = {}
    faults: list[Fault] = []
    for path in yaml_files(folder):
        try:
            config = load_config(path)
            _claim_name(config, path, declared)
            mixes = isinstance(config, MixtureConfig)
            parts.append(mixture_definitions(config) if mixes else dataset_definitions(config))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))  # a mixture tells those of its datasets too
    if not parts:
        logging.getLogger(__name__).warning("no pipeline YAML in %s: there is nothing to show", folder.resolve())
    shared = dg.Definitions(resources={"store": StoreResource()}, executor=dg.in_process_executor)
    return dg.Definitions.merge(shared, *parts)


def _claim_name(config: Declaration, path: Path, declared: dict[str, tuple[Path, str]]) -> None:
    """Enter a dataset into `declared`: file and name under the name that Dagster knows it by.

    Raises:
        ConfigError: another file declares the same dataset, or one that Dagster cannot tell from it.
    """
    name = config.dataset_name
    first, other = declared.setdefault(dagster_name(name), (path, name))
    if first == path:
        return
    same = "is already declared" if other == name else f"is the same to Dagster as {other!r}, declared"
    raise config.fault("name", f"name: dataset {name!r} {same} in {first}; give one of them another `name:`")


defs = load_definitions(pipelines_folder())
