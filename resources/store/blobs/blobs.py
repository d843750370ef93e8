"""Blobs: named bytes that are there whole or not at all, in a folder or in a bucket of an object store.

Names are relative paths with `/`, such as `objects/ab/abcd.arrow`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

RENEW_SECONDS = 6 * 3600
"""What a build relies on is touched when it is older, so that `gc` leaves it for a day."""


@dataclass(frozen=True)
class Blob:
    """A blob that is there: its name, its size in bytes, and when it was last written or touched (seconds, POSIX)."""

    name: str
    size: int
    modified: float


class Blobs(Protocol):
    """Where a store keeps its blobs.

    All methods raise StoreError where the place cannot be reached, read or written.
    """

    @property
    def address(self) -> str:
        """What opens the same place again, without secrets."""
        ...

    def read(self, name: str) -> bytes:
        """
        Raises:
            FileNotFoundError: there is no such blob.
        """
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a blob, or None where it is missing."""
        ...

    def stat(self, name: str) -> Blob | None:
        """A blob that is there, or None where it is missing."""
        ...

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put a blob in place whole, over one that is there."""
        ...

    def create(self, name: str, data: bytes | memoryview) -> None:
        """Put a blob that is named by its bytes in place whole, unless it is there with them."""
        ...

    def below(self, prefix: str) -> Iterator[Blob]:
        """All blobs whose name begins with a folder's name and `/`, in order of their names."""
        ...

    def delete(self, name: str) -> None:
        """Remove a blob; one that is not there is no fault."""
        ...

    def touch(self, name: str) -> None:
        """Make a blob's `modified` now, where it is there."""
        ...

    def local(self, name: str) -> Path:
        """A local file with the blob's content, to be mapped.

        Raises:
            FileNotFoundError: there is no such blob.
        """
        ...

    def fetch(self, names: Iterable[str]) -> None:
        """Make `local` quick for these, where they are there."""
        ...

    def sweep(self) -> None:
        """Delete what killed processes left half-written a day or more ago."""
        ...


def renew(blobs: Blobs, name: str) -> Blob | None:
    """A blob that is to be relied on, or None where it is missing; an old one is touched first."""
    found = blobs.stat(name)
    if found is None or found.modified > time.time() - RENEW_SECONDS:
        return found
    blobs.touch(name)
    return blobs.stat(name)
