"""The digest of a stage's output for fixed rows. It is part of every key; library upgrades without effect keep it."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib import metadata

from tokenloom.assets.stage.definition import Stage
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.objects import encode_table

Versions = tuple[tuple[str, str], ...]


@cache
def _version(library: str, path: tuple[str, ...]) -> str:
    """Return the version of a library that is found on `path`; parses the package's metadata."""
    return metadata.version(library)


def library_versions(stage: Stage) -> dict[str, str]:
    """Return the versions of Python and of the libraries that a stage calls."""
    path = tuple(map(str, sys.path))
    return {"python": platform.python_version(), **{name: _version(name, path) for name in stage.libraries}}


def probe_digest(stage: Stage, store: ArtifactStore) -> str:
    """Return the hex digest of the stage's probe under the installed versions; computed once per store."""
    versions = library_versions(stage)
    digest = store.probes.get(stage.name, stage.version, versions)
    if digest is None:
        digest = _computed(stage, stage.version, tuple(versions.items()))
        store.probes.put(stage.name, stage.version, versions, digest)
    return digest


@cache
def _computed(stage: Stage, version: int, versions: Versions) -> str:
    """Run the probe, once per process and set of versions for any number of stores."""
    tables = (encode_table(table, stage.compressed) for table in stage.probe())
    return digest_json([digest_bytes(memoryview(table)) for table in tables])
