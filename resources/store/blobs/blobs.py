"""Blobs: named bytes in a folder or a bucket. Writes are atomic: a blob exists completely or not at all.

Names are relative paths with `/`, such as `objects/ab/abcd.arrow`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tokenloom.resources.store.blobs.file_cache import FileCache

if TYPE_CHECKING:
    from tokenloom.resources.store.blobs.file_cache import FileCache


OBJECTS = "objects"

MEDIA = "media"
"""The folder of images in a store, the field of structs with the digest of one, and the column of their structs."""

DIGEST_CHARACTERS = 64

TOKENIZER_FILE = re.compile(rf"tokenizers/([0-9a-f]{{{DIGEST_CHARACTERS}}})/[^/]+")
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_CHARACTERS}}}")
_BLOB = re.compile(rf"{OBJECTS}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.arrow")
_IMAGE = re.compile(rf"{MEDIA}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})")


def is_digest(value: object) -> bool:
    """Return whether a value is a text that has the form of an object's digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def object_digest(blob: str) -> str | None:
    """Return the digest of the object with that blob name, or None if the blob is not an object."""
    return match[2] if (match := _BLOB.fullmatch(blob)) else None


def media_digest(blob: str) -> str | None:
    """Return the digest of the image with that blob name, or None if the blob is not an image."""
    return match[2] if (match := _IMAGE.fullmatch(blob)) else None


def content_digest(blob: str) -> str | None:
    """Return the digest of the object or image with that blob name, or None if the blob is neither."""
    return object_digest(blob) or media_digest(blob)


RENEW_SECONDS = 6 * 3600
"""Blobs older than this are touched when a build uses them, so that `gc` keeps them for a day. `folder` describes when
younger ones are touched, too."""


@dataclass(frozen=True)
class Blob:
    """An existing blob: its name, size in bytes, and time of the last write or touch (POSIX seconds).

    Args:
        tag: in a bucket, the service's tag of the content (of a blob written with one request, its MD5); else "".
    """

    name: str
    size: int
    modified: float
    tag: str = ""


class Blobs(Protocol):
    """Where a store keeps its blobs.

    All methods raise StoreUnavailableError if the blobs cannot be reached, read or written.
    """

    @property
    def address(self) -> str:
        """The address that opens the same blobs again, without secrets."""
        ...

    @property
    def cache(self) -> FileCache | None:
        """The cache of local copies, or None if the blobs themselves are local."""

    def read(self, name: str) -> bytes:
        """Return the content of a blob.

        Raises:
            FileNotFoundError: the blob does not exist.
        """
        ...

    def read_all(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the content of several blobs, by name, without those that do not exist."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, or None if it does not exist."""

    def stat(self, name: str) -> Blob | None:
        """Return the name, size and time of a blob, or None if it does not exist."""

    def found(self, names: Collection[str]) -> dict[str, Blob]:
        """Return those of several objects, or of several actions, that exist, by name."""
        ...

    def kept(self, name: str) -> Blob | None:
        """Return a blob that a mark of the running build keeps from `gc`, as it was listed when the build started; None
        if it must be looked up."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a blob atomically, replacing an existing one."""

    def create(self, name: str, data: bytes | memoryview) -> None:
        """Write a blob atomically. One that exists with the same content is only kept from `gc`, as by `renew`. For
        blobs that are named by their digest."""

    def create_all(self, contents: Mapping[str, bytes | memoryview]) -> None:
        """Create several blobs, given their contents by name; in a bucket, at the same time."""

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        """Write a blob atomically, unless one of that name exists; returns whether it was written."""
        ...

    def below(self, prefix: str) -> Iterator[Blob]:
        """Yield all blobs whose names start with `prefix` and `/`, or all if it is "", in order of their names."""
        ...

    def delete(self, name: str) -> None:
        """Delete a blob, if it exists."""

    def delete_all(self, names: Collection[str]) -> None:
        """Delete several blobs, if they exist; in a bucket, up to 1,000 with a request."""

    @property
    def fresh_since(self) -> float:
        """The time since which a blob must have been written or touched, so that a build can use it as it is."""
        ...

    def touch(self, name: str) -> None:
        """Set a blob's `modified` to now, if it exists."""

    def local(self, name: str) -> Path:
        """Return a local file with the blob's content, for memory mapping.

        Raises:
            FileNotFoundError: the blob does not exist.
        """
        ...

    def fetch(self, names: Iterable[str]) -> None:
        """Download objects in parallel, so that `local` is fast for them. Ignored: missing ones, and those that another
        process or thread is downloading."""

    def sweep(self) -> None:
        """Delete files that killed processes left half-written at least a day ago."""


def renew(blobs: Blobs, name: str) -> Blob | None:
    """Return a blob that a build will use, or None if it does not exist. It is touched unless it is fresh, or kept."""
    if (listed := blobs.kept(name)) is not None:
        return listed
    blob = blobs.stat(name)
    if blob is None or blob.modified > blobs.fresh_since:
        return blob
    blobs.touch(name)
    return blobs.stat(name)  # `gc` can have removed it before the touch


def renew_all(blobs: Blobs, names: Collection[str]) -> dict[str, Blob]:
    """Return those of several objects that exist, by name. Each is renewed as by `renew`."""
    kept = {name: blob for name in names if (blob := blobs.kept(name)) is not None}
    found = blobs.found([name for name in names if name not in kept])
    fresh_since = blobs.fresh_since
    renewed = {name: blob if blob.modified > fresh_since else renew(blobs, name) for name, blob in found.items()}
    return kept | {name: blob for name, blob in renewed.items() if blob is not None}


_READS = frozenset(
    ("address", "cache", "fresh_since", "read", "read_all", "size", "stat", "found", "kept", "below", "local", "fetch")
)


class ReadOnly:
    """Wraps blobs: what reads is passed on, and all else, which writes, deletes or touches, does nothing."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        return self._blobs.size(name) is None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what pickle and copy look for must stay missing
            raise AttributeError(name)
        return getattr(self._blobs, name) if name in _READS else lambda *arguments: None
