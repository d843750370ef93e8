"""The Dagster resource for the artifact store."""

from __future__ import annotations

import dagster as dg
from pydantic import Field

from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.versions import default_store


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
