"""Probes: what each stage makes of fixed rows under a set of library versions, as a digest."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tokenloom.resources.digest import canonical_json, digest_json
from tokenloom.resources.store.blobs.blobs import Blobs

PROBES = "probes"


class ProbeStore:
    """Reads and writes probes, one small JSON blob for each stage, its version, and a set of library versions."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    @staticmethod
    def blob(stage: str, version: int, libraries: Mapping[str, str]) -> str:
        """The name of a probe's blob."""
        return f"{PROBES}/{stage}-{digest_json([version, dict(libraries)])[:32]}.json"

    def get(self, stage: str, version: int, libraries: Mapping[str, str]) -> str | None:
        """The digest, or None where there is none, or none that can be read."""
        try:
            found = json.loads(self._blobs.read(self.blob(stage, version, libraries)))["probe"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return found if isinstance(found, str) else None

    def put(self, stage: str, version: int, libraries: Mapping[str, str], probe: str) -> None:
        content = {"probe": probe, "version": version, "libraries": dict(libraries)}
        self._blobs.write(self.blob(stage, version, libraries), canonical_json(content))
