"""Files whose chunks are known: a local file that has not been touched since it was read is not read again, and of one
that has changed the begin that has not is only held against its chunks' digests.

An entry says how a file stood when it was read (size, times of change, inode) and which chunks it held. It enters no
key: a chunk that is found through it goes the same way as one that was read. A file that changed shortly before it was
read makes no entry, since a later change might leave the same times.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from tokenloom.resources.digest import canonical_json, digest_json
from tokenloom.resources.store.blobs.blobs import Blobs

FILES = "files"
SETTLED_SECONDS = 2.0
"""Younger files are read each time: clocks of file systems are coarse."""


class KnownChunk(NamedTuple):
    """A chunk of a file: its digest and split, where it began, and how many bytes of the file's text it was cut from,
    or -1 where it was not cut from text."""

    digest: str
    split: str
    offset: int
    unit: str
    size: int


class KnownFile(NamedTuple):
    """A file as it was read: its chunks, what was found out about it, and whether it has not been touched since."""

    chunks: list[KnownChunk]
    found: dict[str, str]
    untouched: bool


class KnownFiles:
    """Reads and adds to what is known of files.

    Args:
        reading: what the chunks depend on besides the bytes, as JSON: settings and versions.
    """

    def __init__(self, blobs: Blobs, reading: Any):
        self._blobs, self._reading = blobs, reading

    def find(self, path: str) -> KnownFile | None:
        """What is known of a file, if anything."""
        try:
            digest, entry = json.loads(self._blobs.read(self._blob(path)))
            if digest_json(entry) == digest:
                chunks = [KnownChunk(*chunk) for chunk in entry["chunks"]]
                return KnownFile(chunks, entry["found"], entry["stands"] == stands(path))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def note(self, path: str, before: list[int] | None, chunks: list[KnownChunk], found: dict[str, str]) -> None:
        """Note what a file held, unless it may have changed meanwhile.

        Args:
            before: how it stood before it was read.
        """
        if before is None or before != stands(path) or time.time() - max(before[1:3]) / 1e9 < SETTLED_SECONDS:
            return
        entry = {"stands": before, "chunks": chunks, "found": found}
        self._blobs.write(self._blob(path), canonical_json([digest_json(entry), entry]))

    def _blob(self, path: str) -> str:
        return f"{FILES}/{digest_json([str(Path(path).resolve()), self._reading])}.json"


def stands(path: str) -> list[int] | None:
    """Size, times of the content's and the entry's last change (ns), inode and device of a local file, or None."""
    try:
        found = os.stat(path)  # noqa: PTH116  # URLs are no paths
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
