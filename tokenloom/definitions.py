"""The Dagster code location: assets, checks, jobs and schedules for every YAML of the pipelines folder.

The folder is `$TOKENLOOM_PIPELINES`, else `pipelines/` in the working directory, else the folder of the quickstart.
Loading the definitions reads only YAML.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tokenloom.assets.building.members import yaml_files
from tokenloom.assets.dagster.assets import dataset_definitions
from tokenloom.assets.dagster.mixture import mixture_definitions
from tokenloom.assets.dagster.names import dagster_name
from tokenloom.assets.dagster.store_resource import StoreResource
from tokenloom.config import Declaration, MixtureConfig
from tokenloom.config.load import load_config
from tokenloom.errors import ConfigError, Fault, missing_package

try:
    import dagster as dg
except ModuleNotFoundError as error:
    raise missing_package(error.name or "dagster", "tokenloom.definitions") from None


def pipelines_folder() -> Path:
    """Return `$TOKENLOOM_PIPELINES`, else `pipelines` in the working directory, else the folder of the quickstart."""
    if folder := os.environ.get("TOKENLOOM_PIPELINES"):
        return Path(folder).expanduser()
    local = Path("pipelines")
    return local if local.is_dir() else Path(__file__).parent / "pipelines"


def load_definitions(folder: Path) -> dg.Definitions:
    """Return the definitions of all datasets and mixtures that a folder declares.

    Raises:
        ConfigError: lists every fault of every file.
    """
    parts: list[dg.Definitions] = []
    declared: dict[str, tuple[Path, str]] = {}
    faults: list[Fault] = []
    for path in yaml_files(folder):
        try:
            config = load_config(path)
            _claim_name(config, path, declared)
            if isinstance(config, MixtureConfig):
                parts.append(mixture_definitions(config))
            else:
                parts.append(dataset_definitions(config))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))  # a mixture repeats the faults of its datasets
    if not parts:
        logging.getLogger(__name__).warning("no pipeline YAML found in %s", folder.resolve())
    shared = dg.Definitions(resources={"store": StoreResource()}, executor=dg.in_process_executor)
    return dg.Definitions.merge(shared, *parts)


def _claim_name(config: Declaration, path: Path, declared: dict[str, tuple[Path, str]]) -> None:
    """Add a dataset's file and name to `declared`, under its name in Dagster.

    Raises:
        ConfigError: another file declares the same dataset, or one with the same name in Dagster.
    """
    name = config.dataset_name
    first, other = declared.setdefault(dagster_name(name), (path, name))
    if first == path:
        return
    taken = "is already declared" if other == name else f"has the same name in Dagster as {other!r}, declared"
    raise config.fault("name", f"dataset {name!r} {taken} in {first}; rename one of them with `name:`")


defs = load_definitions(pipelines_folder())
