"""The names of a dataset's assets, groups, jobs, ops and pools in Dagster, and the resource of the artifact store."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from tokenloom.assets.building.target import plain_name
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.versions import default_store

SOURCE = "source"
"""The last part of the key of a dataset's source."""

MODEL = "model"
"""The last part of the key of the model that is trained on a dataset or mixture."""

DATASET_TAG = "tokenloom/dataset"
"""The tag of runs that names their dataset."""


def asset_key(dataset: str, stage: str, prefix: Sequence[str] = ()) -> dg.AssetKey:
    """Return the asset key `<dataset>/<stage>`, after the parts of a prefix."""
    return dg.AssetKey([*prefix, dataset, stage])


def op_name(dataset: str, stage: str, prefix: Sequence[str] = ()) -> str:
    """Return the name of the step that materializes, observes or checks something of a dataset."""
    return "__".join(map(plain_name, (*prefix, dataset, stage)))


class StoreResource(dg.ConfigurableResource):
    """The artifact store that assets write and checks read."""

    root: str | None = Field(
        default=None,
        description="Folder of the store, or s3://bucket/prefix. "
        "Default: $TOKENLOOM_STORE, else the nearest .tokenloom in or above the YAML's folder or the working "
        "directory.",
    )

    def open(self, folder: str | None = None) -> ArtifactStore:
        """Open the store.

        Args:
            folder: the folder of the YAML of the dataset, where the search for a default store begins.

        Raises:
            StoreError: it is not a store that this version can read.
        """
        return ArtifactStore(self.root or default_store(folder))
