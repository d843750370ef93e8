"""Known files: source files that were read before, so that unchanged ones need not be read again.

An entry stores a local file's stamp (size, modification times, inode) and its chunks. If the stamp is unchanged, the
file is not read. If it changed, the unchanged prefix is only checked against the stored chunk digests.

Entries are not part of any cache key: a chunk found through an entry is treated like one that was read. A file modified
shortly before it was read gets no entry, because a later change could leave the same times (git calls such files
"racily clean").
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tokenloom.errors import StoreUnavailableError, escaped
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.actions import decode_record, encode_record
from tokenloom.resources.store.blobs.blobs import Blobs
from tokenloom.resources.store.manifest_chunks import Run

FILES = "files"
SETTLED_SECONDS = 2.0
"""A file modified within this many seconds gets no entry: clocks of file systems are coarse."""


Stamp = list[int]
"""A file's size, modification and status change times (ns), inode and device."""


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


class SharedChunk(NamedTuple):
    """A chunk of a group of files; see `KnownChunk`."""

    digest: str
    split: str
    runs: tuple[Run, ...]
    unit: str
    size: int


class KnownGroup(NamedTuple):
    """A group of consecutive files that were read as one.

    Args:
        files: the number of files.
        closed: whether the group does not depend on the file after it.
        chunks: its chunks, in order.
        found: the properties that were detected, by file name.
    """

    files: int
    closed: bool
    chunks: list[SharedChunk]
    found: dict[str, dict[str, str]]


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
            properties = {_text(name): _text(value) for name, value in entry["found"].items()}
            if not isinstance(entry["chunks"], list):
                return None
            return KnownFile(chunks, properties, entry["stamp"] == file_stamp(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def note(self, path: str, before: list[int] | None, chunks: list[KnownChunk], found: dict[str, str]) -> None:
        """Add an entry, unless the file can have changed while it was read.

        Args:
            before: the file's stamp before it was read.
        """
        if before is not None and before == file_stamp(path) and _settled(before):
            self._write(self._blob(path), {"stamp": before, "chunks": chunks, "found": found})

    def find_group(self, following: Callable[[int], Sequence[tuple[str, str]]]) -> KnownGroup | None:
        """Return the group that starts with a file, if no file that it depends on has changed.

        Args:
            following: returns the path and the name of the next files, given how many; the first is that file. At the
                end of the source they are fewer.
        """
        name = self._blob(following(1)[0][0], "group")
        try:
            entry = decode_record(name, self._blobs.read(name))
            count, closed = entry["files"], entry["closed"]
            # a group that is not closed would have taken in the file after it, had that been smaller
            watched = following(count + (not closed))
            if not 0 < count <= len(watched) or entry["stamps"] != _digest_stamps(watched, _stamps(watched)):
                return None
            chunks = [_shared_chunk(*chunk) for chunk in entry["chunks"]]
            found = {_text(name): {_text(k): _text(v) for k, v in one.items()} for name, one in entry["found"].items()}
            return KnownGroup(count, closed, chunks, found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def note_group(self, files: Sequence[tuple[str, str]], before: list[Stamp | None], group: KnownGroup) -> None:
        """Add the entry of a group, unless a file can have changed while it was read.

        Args:
            files: path and name of each file of the group, and of the file after it if the group depends on that.
            before: the stamp of each before it was read.
        """
        # before and after: a change while it was read, or right after, leaves no entry
        if all(stamp is not None and _settled(stamp) for stamp in before) and before == _stamps(files):
            entry = {**group._asdict(), "stamps": _digest_stamps(files, before)}
            self._write(self._blob(files[0][0], "group"), entry)

    def _write(self, name: str, entry: dict[str, Any]) -> None:
        with suppress(StoreUnavailableError):  # an entry only saves time
            self._blobs.write(name, encode_record(name, entry))

    def _blob(self, path: str, *kind: str) -> str:
        return f"{FILES}/{digest_json([escaped(os.path.realpath(path)), self._reading, *kind])}.json"


class FileDigests:
    """The digests of whole files, in one entry for all files of a dataset. An unchanged file need not be read again.

    Args:
        owner: identifies the dataset, as JSON.
    """

    def __init__(self, blobs: Blobs, owner: Any):
        self._blobs, self._name = blobs, f"{FILES}/{digest_json(['digests', owner])}.json"
        self._stored: dict[str, Any] = {}
        self._found: dict[str, str] = {}
        self._noted: dict[str, tuple[Stamp, str]] = {}
        with suppress(OSError, ValueError, StoreUnavailableError):
            content = decode_record(self._name, self._blobs.read(self._name))
            self._stored = content if isinstance(content, dict) else {}

    def find(self, path: str) -> str | None:
        """Return the digest of a file if its stamp is that of the last time."""
        stamp = file_stamp(path)
        stored = self._stored.get(_file_key(path))
        if stamp is None or not isinstance(stored, list) or len(stored) != 2 or stored[0] != stamp:
            return None
        self._found[path] = str(stored[1])
        return self._found[path]

    def note(self, path: str, before: Stamp | None, digest: str) -> None:
        """Add the digest of a file that was read.

        Args:
            before: the file's stamp before it was read.
        """
        self._found[path] = digest
        if before is not None and before == file_stamp(path) and _settled(before):
            self._noted[path] = before, digest

    def digest(self, path: str) -> str:
        """Return a digest that was found or noted."""
        return self._found[path]

    def save(self, paths: Iterable[str]) -> None:
        """Store the entry, with these files only, if it changed."""
        keys = {_file_key(path): path for path in paths}
        # files that left the dataset leave the entry too
        kept = {key: self._stored[key] for key, path in keys.items() if key in self._stored and path in self._found}
        entry = {**kept, **{_file_key(path): [*noted] for path, noted in self._noted.items()}}
        if entry != self._stored:
            with suppress(StoreUnavailableError):  # an entry only saves time
                self._blobs.write(self._name, encode_record(self._name, entry))


def _file_key(path: str) -> str:
    return escaped(os.path.abspath(path))  # noqa: PTH100  # there can be many thousands; links are followed by stamps


def _stamps(files: Sequence[tuple[str, str]]) -> list[Stamp | None]:
    return [file_stamp(path) for path, _ in files]


def _digest_stamps(files: Sequence[tuple[str, str]], stamps: Sequence[Stamp | None]) -> str:
    return digest_json([[name, stamp] for (_, name), stamp in zip(files, stamps, strict=True)])


def _settled(stamp: Stamp) -> bool:
    return time.time() - max(stamp[1:3]) / 1e9 >= SETTLED_SECONDS


def _known_chunk(digest: Any, split: Any, offset: Any, unit: Any, size: Any) -> KnownChunk:
    if not (type(offset) is type(size) is int and offset >= -1 and size >= -1):
        raise ValueError("not a chunk")
    return KnownChunk(_text(digest), sys.intern(_text(split)), offset, sys.intern(_text(unit)), size)


def _shared_chunk(digest: Any, split: Any, runs: Any, unit: Any, size: Any) -> SharedChunk:
    runs_of = tuple(Run(_text(source), first, offset) for source, first, offset in runs)
    numbers = [size, *(number for run in runs_of for number in run[1:])]
    if not runs_of or runs_of[0].first or any(type(number) is not int or number < -1 for number in numbers):
        raise ValueError("not a chunk")
    return SharedChunk(_text(digest), sys.intern(_text(split)), runs_of, sys.intern(_text(unit)), size)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def file_stamp(path: str) -> Stamp | None:
    """Return a file's stamp; None if it is not a local file."""
    try:
        status = os.stat(path)  # noqa: PTH116  # `Path` would change URLs
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
