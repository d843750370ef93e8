"""Dagster's front door: every YAML of the pipelines folder, as assets, checks, jobs and schedules.

The folder is `$TOKENLOOM_PIPELINES`, by default `pipelines/` of the working directory. Only YAML is read here.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import dagster as dg

from tokenloom.assets.dagster_assets import StoreResource, dagster_name, dataset_definitions
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, Fault

SUFFIXES = (".yaml", ".yml")


def pipelines_folder() -> Path:
    """`$TOKENLOOM_PIPELINES`, else `pipelines` in the working directory."""
    return Path(os.environ.get("TOKENLOOM_PIPELINES") or "pipelines").expanduser()


def load_definitions(folder: Path) -> dg.Definitions:
    """The definitions of all datasets that a folder declares.

    Raises:
        ConfigError: with every fault of every file.
    """
    parts: list[dg.Definitions] = []
    declared: dict[str, tuple[Path, str]] = {}
    faults: list[Fault] = []
    for path in _yaml_files(folder):
        try:
            config = PipelineConfig.from_file(path)
            _claim_name(config, path, declared)
            parts.append(dataset_definitions(config))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    if not parts:
        logging.getLogger(__name__).warning("no pipeline YAML in %s: there is nothing to show", folder.resolve())
    shared = dg.Definitions(resources={"store": StoreResource()}, executor=dg.in_process_executor)
    return dg.Definitions.merge(shared, *parts)


def _yaml_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    visible = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in visible if entry.suffix in SUFFIXES and entry.is_file())


def _claim_name(config: PipelineConfig, path: Path, declared: dict[str, tuple[Path, str]]) -> None:
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
