"""Atomic publication: a file appears under its final name whole, or not at all."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from tokenloom.errors import StoreError

STALE_SECONDS = 24 * 3600


def publish(path: Path, data: bytes | memoryview, scratch: Path) -> None:
    """Write `data` to a file in `scratch`, force it to disk, then rename it to `path`.

    Both lie on the same file system. A process killed at any point leaves at most a file in `scratch`.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    temporary = scratch / uuid.uuid4().hex
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path.name} to the store: {error.strerror or error}") from error


def publish_folder(path: Path, files: dict[str, bytes], scratch: Path) -> None:
    """Publish a folder of files in one rename; in a folder that is already there, files that differ are replaced."""
    if path.is_dir():
        for name, data in files.items():
            if not (path / name).is_file() or (path / name).read_bytes() != data:
                publish(path / name, data, scratch)
        return
    temporary = scratch / uuid.uuid4().hex
    for name, data in files.items():
        publish(temporary / name, data, scratch)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.rename(path)
    except OSError:
        remove_folder(temporary)  # another process published the same folder first
        if not path.exists():
            raise


def remove_folder(path: Path) -> None:
    """Delete a flat folder and its files."""
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def sweep(scratch: Path) -> None:
    """Delete what killed processes left behind a day or more ago."""
    if not scratch.is_dir():
        return
    limit = time.time() - STALE_SECONDS
    for entry in scratch.iterdir():
        try:
            if entry.stat().st_mtime < limit:
                remove_folder(entry) if entry.is_dir() else entry.unlink()
        except FileNotFoundError:
            continue  # another process swept it
