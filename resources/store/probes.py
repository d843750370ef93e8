"""Probes: the digest of a stage's output for fixed rows, per set of library versions.

The digest is part of every cache key. It is stored so that a build does not run the probe each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tokenloom.resources.digest import canonical_json, digest_json
from tokenloom.resources.store.blobs.blobs import Blobs

PROBES = "probes"


class ProbeStore:
    """Reads and writes probe digests: one small JSON blob per stage, stage version and set of library versions."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    @staticmethod
    def blob(stage: str, version: int, libraries: Mapping[str, str]) -> str:
        """Return the name of a probe's blob."""
        return f"{PROBES}/{stage}-{digest_json([version, dict(libraries)])[:32]}.json"

    def get(self, stage: str, version: int, libraries: Mapping[str, str]) -> str | None:
        """Return the digest, or None if it is missing or unreadable."""
        try:
            probe = json.loads(self._blobs.read(self.blob(stage, version, libraries)))["probe"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return probe if isinstance(probe, str) else None

    def put(self, stage: str, version: int, libraries: Mapping[str, str], probe: str) -> None:
        content = {"probe": probe, "version": version, "libraries": dict(libraries)}
        self._blobs.write(self.blob(stage, version, libraries), canonical_json(content))
