"""Objects: immutable Arrow IPC files named by the BLAKE3 of their bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.publication import publish

_DIGEST = re.compile(r"[0-9a-f]{64}")


def encode_table(table: pa.Table, compressed: bool) -> pa.Buffer:
    """The bytes of a table as an Arrow IPC file with one record batch; equal tables give equal bytes."""
    table = table.combine_chunks()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None, use_threads=False)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


class ObjectStore:
    """Reads and writes the objects below one folder."""

    def __init__(self, root: Path, scratch: Path):
        self._root, self._scratch = root, scratch

    def path(self, digest: str) -> Path:
        """Where an object lies.

        Raises:
            StoreError: `digest` is not the name of an object.
        """
        if not _DIGEST.fullmatch(digest):
            raise StoreError(f"{digest[:80]!r} is not an object's name")
        return self._root / digest[:2] / f"{digest}.arrow"

    def size(self, digest: str) -> int | None:
        """Bytes of an object, or None where it is missing."""
        try:
            return self.path(digest).stat().st_size
        except OSError:
            return None

    def put(self, table: pa.Table, compressed: bool) -> str:
        """Store a table; returns its digest. An object that is there but damaged is replaced."""
        data = memoryview(encode_table(table, compressed))
        digest = digest_bytes(data)
        path = self.path(digest)
        if self.size(digest) != len(data) or path.read_bytes() != data:
            publish(path, data, self._scratch)
        return digest

    def get(self, digest: str) -> pa.Table:
        """Open an object from the memory map.

        Raises:
            StoreError: it is missing, or not an Arrow file.
        """
        path = self.path(digest)
        try:
            with pa.memory_map(str(path)) as source:
                return pa.ipc.open_file(source).read_all()
        except FileNotFoundError:
            raise StoreError(f"object {digest} is missing; the next build recomputes it") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"object {digest} is damaged: {str(error).splitlines()[0]}; build the dataset") from error

    def get_verified(self, digest: str) -> pa.Table:
        """Open an object whose bytes are checked first. A damaged one is removed, so that the next build makes it anew.

        Raises:
            StoreError: it is missing or damaged.
        """
        path = self.path(digest)
        try:
            intact = digest_bytes(path.read_bytes()) == digest
        except OSError:
            intact = True
        if not intact:
            path.unlink(missing_ok=True)
            raise StoreError(f"object {digest} was damaged and has been removed; build again to make it anew")
        return self.get(digest)
