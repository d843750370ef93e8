"""Known files: source files that were read before, so that unchanged ones need not be read again.

An entry stores a local file's stamp (size, modification times, inode) and its chunks. If the stamp is unchanged, the
file is not read. If it changed, the unchanged prefix is only checked against the stored chunk digests.

Entries are not part of any cache key: a chunk found through an entry is treated like one that was read. A file modified
shortly before it was read gets no entry, because a later change could leave the same times (git calls such files
"racily clean").
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, NamedTuple

from tokenloom.errors import StoreUnavailableError, escaped
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.blobs.blobs import Blobs
from tokenloom.resources.store.records import decode_record, encode_record

FILES = "files"
SETTLED_SECONDS = 2.0
"""A file modified within this many seconds gets no entry: clocks of file systems are coarse."""


class KnownChunk(NamedTuple):
    """A chunk of a file: its digest, split and start, and the size in bytes of the text that it was cut from (-1 if the
    file is not text)."""

    digest: str
    split: str
    offset: int
    unit: str
    size: int


class KnownFile(NamedTuple):
    """A file that was read: its chunks, the properties that were detected, and whether its stamp is unchanged."""

    chunks: list[KnownChunk]
    found: dict[str, str]
    untouched: bool


class KnownFiles:
    """Reads and adds entries.

    Args:
        reading: what the chunks depend on in addition to the bytes, as JSON: settings and versions.
    """

    def __init__(self, blobs: Blobs, reading: Any):
        self._blobs, self._reading = blobs, reading

    def find(self, path: str) -> KnownFile | None:
        """Return the entry of a file, or None if it is missing or damaged."""
        name = self._blob(path)
        try:
            entry = decode_record(name, self._blobs.read(name))
            chunks = [_known_chunk(*chunk) for chunk in entry["chunks"]]
            found = {_text(name): _text(value) for name, value in entry["found"].items()}
            if not isinstance(entry["chunks"], list):
                return None
            return KnownFile(chunks, found, entry["stamp"] == file_stamp(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def note(self, path: str, before: list[int] | None, chunks: list[KnownChunk], found: dict[str, str]) -> None:
        """Add an entry, unless the file can have changed while it was read.

        Args:
            before: the file's stamp before it was read.
        """
        if before is None or before != file_stamp(path) or time.time() - max(before[1:3]) / 1e9 < SETTLED_SECONDS:
            return
        name = self._blob(path)
        with suppress(StoreUnavailableError):  # an entry only saves time
            self._blobs.write(name, encode_record(name, {"stamp": before, "chunks": chunks, "found": found}))

    def _blob(self, path: str) -> str:
        return f"{FILES}/{digest_json([escaped(os.path.realpath(path)), self._reading])}.json"


def _known_chunk(digest: Any, split: Any, offset: Any, unit: Any, size: Any) -> KnownChunk:
    """Return the chunk with these fields.

    Raises:
        ValueError: one is not valid.
    """
    if not (type(offset) is type(size) is int and offset >= -1 and size >= -1):
        raise ValueError("not a chunk")
    return KnownChunk(_text(digest), _text(split), offset, _text(unit), size)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def file_stamp(path: str) -> list[int] | None:
    """Return a file's size, modification and status change times (ns), inode and device; None if it is not a local
    file."""
    try:
        found = os.stat(path)  # noqa: PTH116  # `Path` would change URLs
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
