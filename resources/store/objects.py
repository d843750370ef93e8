"""Objects: immutable Arrow IPC files named by the BLAKE3 of their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from tokenloom.errors import DamagedObjectError, StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import Blobs, renew

OBJECTS = "objects"

MAP_ATTEMPTS = 5

_DIGEST = re.compile(r"[0-9a-f]{64}")
_BLOB = re.compile(rf"{OBJECTS}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.arrow")


def is_digest(text: str) -> bool:
    """Whether an object could have that name."""
    return _DIGEST.fullmatch(text) is not None


def object_digest(blob: str) -> str | None:
    """The digest of the object that a blob's name stands for, or None where it stands for none."""
    return found[2] if (found := _BLOB.fullmatch(blob)) else None


def encode_table(table: pa.Table, compressed: bool) -> pa.Buffer:
    """The bytes of a table as an Arrow IPC file with one record batch; equal tables give equal bytes."""
    table = table.combine_chunks()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None, use_threads=False)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


class ObjectStore:
    """Reads and writes objects."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    @staticmethod
    def blob(digest: str) -> str:
        """The name of an object's blob.

        Raises:
            StoreError: `digest` is not the name of an object.
        """
        if not is_digest(digest):
            raise StoreError(f"{digest[:80]!r} is not an object's name")
        return f"{OBJECTS}/{digest[:2]}/{digest}.arrow"

    def path(self, digest: str) -> Path:
        """A local file with the object's bytes.

        Raises:
            StoreError: it is missing.
        """
        try:
            return self._blobs.local(self.blob(digest))
        except FileNotFoundError:
            raise StoreError(f"object {digest} is missing; the next build recomputes it") from None

    def size(self, digest: str) -> int | None:
        """Bytes of an object, or None where it is missing."""
        return self._blobs.size(self.blob(digest))

    def put(self, data: pa.Buffer) -> str:
        """Store the bytes of a table, as `encode_table` gives them; returns their digest. An object that is there but
        damaged is replaced."""
        content = memoryview(data).cast("B")  # of signed bytes it equals no `bytes`
        digest = digest_bytes(content)
        self._blobs.create(self.blob(digest), content)
        if self.renew(digest) is None:  # gc was quicker
            self._blobs.write(self.blob(digest), content)
        return digest

    def fetch(self, digests: Iterable[str]) -> None:
        """Make opening these quick: from an object store, several are fetched at a time."""
        self._blobs.fetch(map(self.blob, digests))

    def renew(self, digest: str) -> int | None:
        """Bytes of an object that is to be relied on, so that `gc` leaves it, or None where it is missing."""
        return found.size if (found := renew(self._blobs, self.blob(digest))) else None

    def get(self, digest: str) -> pa.Table:
        """Open an object from the memory map.

        Raises:
            StoreError: it is missing, or not an Arrow file.
        """
        try:
            with self._map(digest) as source:
                return pa.ipc.open_file(source).read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"object {digest} is damaged: {str(error).splitlines()[0]}; build the dataset") from error

    def is_intact(self, digest: str) -> bool:
        """Whether an object's bytes are what its name says.

        Raises:
            StoreError: it is missing.
        """
        try:
            with self._map(digest) as source:
                return digest_bytes(memoryview(source.read_buffer())) == digest
        except DamagedObjectError:
            return False

    def get_intact(self, digest: str) -> pa.Table:
        """Open an object whose bytes are checked first, for kernels may crash on a damaged table.

        Raises:
            StoreError: it is missing or damaged.
        """
        if not self.is_intact(digest):
            raise StoreError(
                f"object {digest} is damaged; `tokenloom verify` removes it, and the next build makes it again"
            )
        return self.get(digest)

    def get_verified(self, digest: str) -> pa.Table:
        """Open an object whose bytes are checked first. A damaged one is removed, so that the next build makes it anew.

        Raises:
            StoreError: it is missing or damaged.
        """
        if not self.is_intact(digest):
            self.delete(digest)
            raise StoreError(f"object {digest} was damaged and has been removed; build again to make it anew")
        return self.get(digest)

    def _map(self, digest: str) -> pa.MemoryMappedFile:
        for _ in range(MAP_ATTEMPTS):
            with suppress(FileNotFoundError):  # it made room for another before it was mapped
                return pa.memory_map(str(self.path(digest)))
        raise StoreError(f"object {digest} leaves the cache as soon as it comes; set TOKENLOOM_CACHE_SIZE to more")

    def delete(self, digest: str) -> None:
        self._blobs.delete(self.blob(digest))
