"""What a stage makes of fixed rows, as a digest: an upgrade of libraries that changes nothing leaves all keys alone."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from tokenloom.assets.stage.definition import Stage
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.objects import encode_table

Versions = tuple[tuple[str, str], ...]


def library_versions(stage: Stage) -> dict[str, str]:
    """The versions of Python and of the libraries that a stage calls."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in stage.libraries}}


def probe_digest(stage: Stage, store: ArtifactStore) -> str:
    """Hex digest of the stage's probe under today's versions: from the store, else found out and kept there."""
    versions = library_versions(stage)
    known = store.probes.get(stage.name, stage.version, versions)
    if known is None:
        known = _computed(stage, stage.version, tuple(versions.items()))
        store.probes.put(stage.name, stage.version, versions, known)
    return known


@cache
def _computed(stage: Stage, version: int, versions: Versions) -> str:
    """Once a process for each set of versions, whatever the number of stores."""
    tables = (encode_table(table, stage.compressed) for table in stage.probe())
    return digest_json([digest_bytes(memoryview(table)) for table in tables])
