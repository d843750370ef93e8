"""Read-only access to blobs: writes and deletions do nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tokenloom.resources.store.blobs.blobs import Blob, Blobs
from tokenloom.resources.store.blobs.file_cache import FileCache


class ReadOnly:
    """Wraps blobs and ignores all writes, deletions and touches."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    @property
    def address(self) -> str:
        return self._blobs.address

    @property
    def cache(self) -> FileCache | None:
        return self._blobs.cache

    @property
    def fresh_since(self) -> float:
        return self._blobs.fresh_since

    def read(self, name: str) -> bytes:
        return self._blobs.read(name)

    def read_all(self, names: Collection[str]) -> dict[str, bytes]:
        return self._blobs.read_all(names)

    def size(self, name: str) -> int | None:
        return self._blobs.size(name)

    def stat(self, name: str) -> Blob | None:
        return self._blobs.stat(name)

    def found(self, names: Collection[str]) -> dict[str, Blob]:
        return self._blobs.found(names)

    def kept(self, name: str) -> Blob | None:
        return self._blobs.kept(name)

    def below(self, prefix: str) -> Iterator[Blob]:
        return self._blobs.below(prefix)

    def local(self, name: str) -> Path:
        return self._blobs.local(name)

    def write(self, name: str, data: bytes | memoryview) -> None:
        pass

    def create(self, name: str, data: bytes | memoryview) -> None:
        pass

    def create_all(self, contents: Mapping[str, bytes | memoryview]) -> None:
        pass

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        return self._blobs.size(name) is None

    def delete(self, name: str) -> None:
        pass

    def delete_all(self, names: Collection[str]) -> None:
        pass

    def touch(self, name: str) -> None:
        pass

    def fetch(self, names: Iterable[str]) -> None:
        self._blobs.fetch(names)

    def sweep(self) -> None:
        pass
