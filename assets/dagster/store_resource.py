"""The Dagster resource for the artifact store."""

from __future__ import annotations

import dagster as dg
from pydantic import Field

from tokenloom.resources.store import ArtifactStore


class StoreResource(dg.ConfigurableResource):
    """The artifact store that assets write and checks read."""

    root: str | None = Field(
        default=None,
        description="Folder of the store, or s3://bucket/prefix. "
        "Default: $TOKENLOOM_STORE, else .tokenloom in the working directory.",
    )

    def open(self) -> ArtifactStore:
        """Open the store.

        Raises:
            StoreError: it is not a store that this version can read.
        """
        return ArtifactStore(self.root)
