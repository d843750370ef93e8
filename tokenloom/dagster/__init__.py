"""tokenloom in a Dagster project: `dataset_definitions` for Python, the component `TokenloomDatasets` for `defs.yaml`,
and `StoreResource`, where the datasets are stored."""

from __future__ import annotations

from tokenloom.errors import missing_package

try:
    import dagster  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package(error.name or "dagster", "tokenloom.dagster") from None

from tokenloom.assets.dagster.definitions import dataset_definitions
from tokenloom.assets.dagster.embedding import DatasetRun
from tokenloom.assets.dagster.names import StoreResource
from tokenloom.dagster.component import TokenloomDatasets

__all__ = ["DatasetRun", "StoreResource", "TokenloomDatasets", "dataset_definitions"]
