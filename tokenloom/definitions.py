"""The Dagster code location: assets, checks and schedules for every YAML of the pipelines folder.

The folder is `$TOKENLOOM_PIPELINES`, else `pipelines/` in the working directory, else the folder of the quickstart.
Loading the definitions reads only YAML. A faulty one becomes an asset that says why it cannot run; `dagster definitions
validate` and `dg check defs` fail with its lines.
"""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

from tokenloom.errors import missing_package

try:
    import dagster as dg
except ModuleNotFoundError as error:
    raise missing_package(error.name or "dagster", "tokenloom.definitions") from None

from tokenloom.assets.building.target import read_folder
from tokenloom.assets.dagster.definitions import declared_definitions
from tokenloom.assets.dagster.names import StoreResource


def pipelines_folder() -> Path:
    """Return `$TOKENLOOM_PIPELINES`, else `pipelines` in the working directory, else the folder of the quickstart."""
    if folder := os.environ.get("TOKENLOOM_PIPELINES"):
        return Path(folder).expanduser()
    local = Path("pipelines")
    return local if local.is_dir() else Path(__file__).parent / "pipelines"


def load_definitions(folder: Path, strict: bool | None = None) -> dg.Definitions:
    """Return the definitions of all datasets and mixtures that a folder declares, with a store and an executor.

    Args:
        strict: raise the faults of faulty YAMLs. Default: only while Dagster validates definitions.

    Raises:
        ConfigError: lists every fault of every file, if `strict`.
    """
    made = declared_definitions(read_folder(folder), strict=strict)
    if not made.assets:
        logging.getLogger(__name__).warning("no pipeline YAML found in %s", folder.resolve())
    shared = dg.Definitions(resources={"store": StoreResource()}, executor=dg.in_process_executor)
    return dg.Definitions.merge(shared, made)


gc.disable()  # it would go through all definitions again and again, and none of them ever becomes garbage
try:
    defs = load_definitions(pipelines_folder())
finally:
    gc.enable()
    gc.freeze()
