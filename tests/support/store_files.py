"""The files of a store, read with json and pyarrow alone, and made older or damaged."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

DAY = 24 * 3600.0
INTERMEDIATE = ("raw", "columns", "prompts", "tokens")


def object_path(store: Path, digest: str) -> Path:
    return store / "objects" / digest[:2] / f"{digest}.arrow"


def read_object(store: Path, digest: str) -> pa.Table:
    return pa.ipc.open_file(object_path(store, digest)).read_all()


def latest(store: Path, name: str) -> dict[str, str]:
    """Return the digests of a dataset's latest manifests, by stage."""
    found = (store / "datasets" / name).glob("*.json")
    return {path.stem: read_record(path)["manifest"] for path in found}


def read_record(path: Path) -> Any:
    return json.loads(path.read_text())["content"]


def versions(store: Path, name: str) -> list[dict[str, Any]]:
    """Return the versions of a dataset, oldest first."""
    return [read_record(path) for path in sorted((store / "versions" / name).glob("*.json"))]


def chunks(store: Path, manifest: str) -> list[dict[str, Any]]:
    """Return the chunks of a manifest, digests in hexadecimal."""
    rows = read_object(store, manifest).to_pylist()
    return [{name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()} for row in rows]


def named(store: Path, manifest: str) -> list[tuple[str, str]]:
    """Return the stages and digests of the manifests that a manifest names in its notes."""
    notes = json.loads(read_object(store, manifest).schema.metadata[b"tokenloom"])["notes"]
    return [(stage, notes[stage]) for stage in ("sidecars", "lengths") if stage in notes]


def reachable(store: Path, keep: int, dropping: tuple[str, ...] = ()) -> tuple[set[str], set[str]]:
    """Return the objects and actions that the latest manifests and the last `keep` states of all datasets need.

    Args:
        dropping: datasets whose outputs of intermediate stages are not needed.
    """
    objects: set[str] = set()
    actions: set[str] = set()
    for name in {path.name for folder in ("datasets", "versions") for path in (store / folder).glob("*")}:
        states: list[str] = []
        manifests = [*latest(store, name).items()]
        for version in reversed(versions(store, name)):
            states += [version["digest"]] if version["digest"] not in states else []
            manifests += [*version["stages"].items()] if version["digest"] in states[:keep] else []
        manifests += [other for _, manifest in manifests for other in named(store, manifest)]
        for stage, manifest in manifests:
            objects.add(manifest)
            for chunk in chunks(store, manifest):
                actions.add(chunk["key"])
                objects |= {chunk["rejects"], chunk["lengths"]} - {None}
                if not (name in dropping and stage in INTERMEDIATE):
                    objects.add(chunk["output"])
    return objects, actions


def stems(store: Path, folder: str) -> set[str]:
    return {path.stem for path in (store / folder).glob("*/*")}


def age(store: Path, days: float = 3.0) -> None:
    """Set the modification time of every file in a store to this many days ago."""
    past = time.time() - days * DAY
    for path in store.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (past, past))


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and modification time of every file."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x20
    path.write_bytes(bytes(data))
