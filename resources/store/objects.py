"""Objects: immutable Arrow IPC files, named by the BLAKE3 of their bytes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from tokenloom.errors import DamagedObjectError, StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import Blobs, renew
from tokenloom.resources.store.blobs.object_names import OBJECTS, is_digest

MAP_ATTEMPTS = 5
RECOMPUTED = "`tokenloom verify` removes it and the next build recomputes it"


def encode_table(table: pa.Table, compressed: bool) -> pa.Buffer:
    """Encode a table as an Arrow IPC file with one record batch. Equal tables give equal bytes."""
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
        """Return the name of an object's blob.

        Raises:
            StoreError: `digest` is not a valid object digest.
        """
        if not is_digest(digest):
            raise StoreError(f"{digest[:80]!r} is not a valid object digest")
        return f"{OBJECTS}/{digest[:2]}/{digest}.arrow"

    def path(self, digest: str) -> Path:
        """Return a local file with the object's bytes.

        Raises:
            StoreError: the object is missing.
        """
        try:
            return self._blobs.local(self.blob(digest))
        except FileNotFoundError:
            raise StoreError(f"object {digest} is missing; the next build recomputes it") from None

    def size(self, digest: str) -> int | None:
        """Return the size of an object in bytes, or None if it is missing."""
        return self._blobs.size(self.blob(digest))

    def put(self, data: pa.Buffer) -> str:
        """Store the bytes of a table, as `encode_table` returns them, and return their digest. An existing but damaged
        object is replaced."""
        content = memoryview(data).cast("B")  # a memoryview of signed bytes never equals `bytes`
        digest = digest_bytes(content)
        self._blobs.create(self.blob(digest), content)
        if self.renew(digest) is None:  # gc removed an old copy in the meantime
            self._blobs.write(self.blob(digest), content)
        return digest

    def fetch(self, digests: Iterable[str]) -> None:
        """Download objects of a bucket in parallel, so that opening them is fast. Does nothing for a folder."""
        self._blobs.fetch(map(self.blob, digests))

    def renew(self, digest: str) -> int | None:
        """Keep an object from `gc` for a day; returns its size in bytes, or None if it is missing."""
        return found.size if (found := renew(self._blobs, self.blob(digest))) else None

    def get(self, digest: str) -> pa.Table:
        """Open an object as a memory map, without checking its bytes.

        Raises:
            StoreError: it is missing, or not an Arrow file.
        """
        try:
            with self._map(digest) as source:
                return pa.ipc.open_file(source).read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"object {digest} is damaged: {str(error).splitlines()[0]}; {RECOMPUTED}") from error

    def is_intact(self, digest: str) -> bool:
        """Return whether an object's bytes match its digest.

        Raises:
            StoreError: it is missing.
        """
        try:
            with self._map(digest) as source:
                return digest_bytes(memoryview(source.read_buffer())) == digest
        except DamagedObjectError:
            return False

    def get_intact(self, digest: str) -> pa.Table:
        """Open an object after checking its bytes: Arrow kernels can crash on a damaged table.

        Raises:
            StoreError: it is missing or damaged.
        """
        damaged = StoreError(f"object {digest} is damaged; {RECOMPUTED}")
        try:
            with self._map(digest) as source:
                data = source.read_buffer()
        except DamagedObjectError:
            raise damaged from None
        if digest_bytes(memoryview(data)) != digest:
            raise damaged
        return pa.ipc.open_file(data).read_all()

    def get_verified(self, digest: str) -> pa.Table:
        """Open an object after checking its bytes. A damaged one is removed, so that the next build recomputes it.

        Raises:
            StoreError: it is missing or damaged.
        """
        if not self.is_intact(digest):
            self.delete(digest)
            raise StoreError(f"object {digest} was damaged and has been removed; build again to recompute it")
        return self.get(digest)

    def _map(self, digest: str) -> pa.MemoryMappedFile:
        for _ in range(MAP_ATTEMPTS):
            with suppress(FileNotFoundError):  # evicted from the cache before it was mapped
                return pa.memory_map(str(self.path(digest)))
        raise StoreError(f"object {digest} is evicted from the cache before it can be read; raise TOKENLOOM_CACHE_SIZE")

    def delete(self, digest: str) -> None:
        self._blobs.delete(self.blob(digest))
