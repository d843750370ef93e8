"""tokenloom turns raw text datasets into training batches.

Names are imported on first use, so that training code loads only what it needs.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom.assets.building.on_the_fly import PromptEngine
    from tokenloom.config import PipelineConfig
    from tokenloom.dagster import TokenloomDatasets
    from tokenloom.importers.imported_config import import_config
    from tokenloom.loaders import open_dataset
    from tokenloom.pipeline import DataPipeline

__all__ = ["DataPipeline", "PipelineConfig", "PromptEngine", "TokenloomDatasets", "import_config", "open_dataset"]

_HOMES = {
    "DataPipeline": "tokenloom.pipeline",
    "PipelineConfig": "tokenloom.config",
    "PromptEngine": "tokenloom.assets.building.on_the_fly",
    "TokenloomDatasets": "tokenloom.dagster",
    "import_config": "tokenloom.importers.imported_config",
    "open_dataset": "tokenloom.loaders",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # slow to import

        return metadata.version("tokenloom")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tokenloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    if "dagster_dg_cli" in sys.modules:
        return ["TokenloomDatasets"]  # each command of dg imports all that is listed; the rest loads torch
    return [*__all__, "__version__"]
