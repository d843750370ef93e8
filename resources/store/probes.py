"""Probes: the digest of a stage's output for fixed rows, per set of library versions.

The digest is part of every cache key. It is stored so that a build does not run the probe each time.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.blobs.blobs import Blobs
from tokenloom.resources.store.records import decode_record, encode_record

PROBES = "probes"


class ProbeStore:
    """Reads and writes probe digests: one small JSON blob per stage, stage version and set of library versions."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs
        self._noted: dict[str, str] = {}

    @staticmethod
    def blob(stage: str, version: int, libraries: Mapping[str, str]) -> str:
        """Return the name of a probe's blob."""
        return f"{PROBES}/{stage}-{digest_json([version, dict(libraries)])[:32]}.json"

    def get(self, stage: str, version: int, libraries: Mapping[str, str]) -> str | None:
        """Return the digest, or None if it is missing or damaged."""
        name = self.blob(stage, version, libraries)
        if name in self._noted:
            return self._noted[name]
        try:
            probe = decode_record(name, self._blobs.read(name))["probe"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(probe, str):
            return None
        self._noted[name] = probe
        return probe

    def put(self, stage: str, version: int, libraries: Mapping[str, str], probe: str) -> None:
        name = self.blob(stage, version, libraries)
        content = {"probe": probe, "version": version, "libraries": dict(libraries)}
        self._blobs.write(name, encode_record(name, content))
        self._noted[name] = probe

    def note(self, stage: str, version: int, libraries: Mapping[str, str], probe: str) -> None:
        """Add a digest that is known without reading it."""
        self._noted[self.blob(stage, version, libraries)] = probe
