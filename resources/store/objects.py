"""Objects: immutable Arrow IPC files, named by the BLAKE3 of their bytes; and media: images as they were in the source,
each kept once under the BLAKE3 of its bytes.

Tables refer to an image by a struct with the field `MEDIA`, its digest. An action whose output refers to images counts
them in the counter `IMAGES`; without them, it is not a cache hit.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from blake3 import blake3

from tokenloom.errors import DamagedObjectError, RemovedObjectError, StoreError, StoreUnavailableError
from tokenloom.resources.digest import THREADED_BYTES, digest_bytes, digest_parts
from tokenloom.resources.store.blobs.blobs import MEDIA, OBJECTS, Blobs, is_digest, renew, renew_all
from tokenloom.resources.tables.ragged import one_array
from tokenloom.resources.tables.sequence_schema import read_table

IMAGES = "images"
"""Counter: images that the rows of an output refer to."""


class MediaStore:
    """Reads and writes images."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    @staticmethod
    def blob(digest: str) -> str:
        """Return the name of an image's blob.

        Raises:
            StoreError: `digest` is not a digest.
        """
        if not is_digest(digest):
            raise StoreError(f"{digest[:80]!r} is not a valid digest of an image")
        return f"{MEDIA}/{digest[:2]}/{digest}"

    def put_all(self, contents: Mapping[str, bytes]) -> None:
        """Store images, given their bytes by digest. Intact ones that are stored already are only kept from `gc`."""
        self._blobs.create_all({self.blob(digest): content for digest, content in contents.items()})

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Return which images are missing. The others are renewed."""
        names = {self.blob(digest): digest for digest in digests}
        return {*names.values()} - {names[name] for name in renew_all(self._blobs, names)}

    def read(self, digest: str) -> bytes:
        """Return the bytes of an image.

        Raises:
            StoreError: it is missing.
            DamagedObjectError: its bytes do not match its digest.
        """
        try:
            data = self._blobs.local(self.blob(digest)).read_bytes()
        except FileNotFoundError:
            raise StoreError(f"image {digest} is missing; the next build stores it again") from None
        if digest_bytes(data) != digest:
            raise DamagedObjectError(
                f"image {digest} is damaged; `tokenloom verify` removes it, and the next build stores it again"
            )
        return data

    def delete(self, digest: str) -> None:
        self._blobs.delete(self.blob(digest))


def media_of(table: pa.Table) -> set[str]:
    """Return the digests of all images that a table refers to."""
    digests = set[str]()
    for name in table.column_names:
        _add_media(one_array(table[name]), digests)
    return digests


def refers(kind: pa.DataType) -> bool:
    """Return whether values of a type can refer to images."""
    if pa.types.is_struct(kind):
        return any(field.name == MEDIA or refers(field.type) for field in kind)
    return pa.types.is_list(kind) and refers(kind.value_type)


def _add_media(array: pa.Array, digests: set[str]) -> None:
    if not refers(array.type):
        return
    if pa.types.is_list(array.type):
        _add_media(array.flatten(), digests)
        return
    for field, values in zip(array.type, array.flatten(), strict=True):
        if field.name == MEDIA and pa.types.is_string(field.type):
            digests.update(filter(is_digest, values.to_pylist()))
        else:
            _add_media(values, digests)


@contextmanager
def skipping_damaged() -> Iterator[None]:
    """Ignore that something is missing or damaged, but not that the store cannot be reached."""
    try:
        yield
    except StoreUnavailableError:
        raise
    except StoreError:
        pass


MAP_ATTEMPTS = 5
READ_BYTES = 16 << 20
RECOMPUTED = "`tokenloom verify` removes it and the next build recomputes it"


def encode_table(table: pa.Table, compressed: bool) -> pa.Buffer:
    """Encode a table as an Arrow IPC file with one record batch. Equal tables give equal bytes."""
    if compressed:
        sink = pa.BufferOutputStream()
        _write_table(table, sink, compressed)
        return sink.getvalue()
    size = pa.MockOutputStream()
    _write_table(table, size, compressed)
    data = pa.allocate_buffer(size.size())  # at once: a stream that grows is copied again and again
    _write_table(table, pa.FixedSizeBufferWriter(data), compressed)
    return data


def digest_table(table: pa.Table) -> str:
    """Return the hex BLAKE3 of an uncompressed `encode_table`, which is not held in memory."""
    hasher = _Hasher()
    _write_table(table, pa.PythonFile(hasher, mode="w"), compressed=False)
    return hasher.blake3.hexdigest()


def _write_table(table: pa.Table, sink: pa.NativeFile, compressed: bool) -> None:
    table = table.combine_chunks()
    # one record batch without threads: the bytes, and so the digest, must not depend on the machine
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None, use_threads=False)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)


class _Hasher(io.RawIOBase):
    """A file that keeps only the hash of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.blake3 = blake3()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.blake3.update(data)
        return len(data)


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

    def put(self, data: pa.Buffer, digest: str | None = None) -> str:
        """Store the bytes of a table, as `encode_table` returns them, and return their digest. An existing but damaged
        object is replaced.

        Args:
            digest: the digest, if it is known.
        """
        content = memoryview(data).cast("B")  # a memoryview of signed bytes never equals `bytes`
        digest = digest or digest_bytes(content)
        self._blobs.create(self.blob(digest), content)
        return digest

    def put_all(self, contents: Iterable[tuple[pa.Buffer, str]]) -> None:
        """Store the bytes of several tables, each with its digest; in a bucket, at the same time."""
        self._blobs.create_all({self.blob(digest): memoryview(data).cast("B") for data, digest in contents})

    def fetch(self, digests: Iterable[str]) -> None:
        """Download objects of a bucket in parallel, so that opening them is fast. Does nothing for a folder."""
        self._blobs.fetch(map(self.blob, digests))

    def renew(self, digest: str) -> int | None:
        """Keep an object from `gc` for a day; returns its size in bytes, or None if it is missing."""
        return found.size if (found := renew(self._blobs, self.blob(digest))) else None

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Return which objects are missing. The others are renewed."""
        names = {self.blob(digest): digest for digest in digests}
        return {*names.values()} - {names[name] for name in renew_all(self._blobs, names)}

    def get(self, digest: str) -> pa.Table:
        """Open an object as a memory map, without comparing its bytes with its digest.

        Raises:
            StoreError: it is missing, or not a valid Arrow file.
        """
        return self._table(digest, self.mapped(digest))

    def is_intact(self, digest: str) -> bool:
        """Return whether an object's bytes match its digest.

        Raises:
            StoreError: it is missing.
        """
        try:
            return self._digest(digest, self.mapped(digest)) == digest
        except DamagedObjectError:
            return False

    def get_intact(self, digest: str) -> pa.Table:
        """Open an object after comparing its bytes with its digest.

        Raises:
            StoreError: it is missing, damaged, or not a valid Arrow file.
        """
        data = self.mapped(digest)
        if self._digest(digest, data) != digest:
            raise DamagedObjectError(f"object {digest} is damaged; {RECOMPUTED}")
        return self._table(digest, data)

    def _digest(self, digest: str, data: pa.Buffer) -> str:
        """Return the digest of an object's bytes. A large file is read apart from its memory map, whose pages would
        then be in memory."""
        if data.size < THREADED_BYTES:
            return digest_bytes(memoryview(data))
        try:
            with self.path(digest).open("rb", buffering=0) as file:
                return digest_parts(iter(partial(file.read, READ_BYTES), b""))
        except OSError as error:
            raise StoreUnavailableError(f"object {digest} cannot be read: {error}") from error

    def get_verified(self, digest: str, check: Callable[[pa.Table], None] = lambda table: None) -> pa.Table:
        """Open an object after comparing its bytes with its digest. A damaged one is removed, so that the next build
        recomputes it.

        Args:
            check: raises a ValueError if the table is not what it should be.

        Raises:
            RemovedObjectError: it was damaged.
            StoreError: it is missing.
        """
        try:
            table = self.get_intact(digest)
            check(table)
        except (DamagedObjectError, ValueError) as error:
            self.delete(digest)
            raise RemovedObjectError.of(digest, str(error) if isinstance(error, ValueError) else "") from None
        return table

    def mapped(self, digest: str) -> pa.Buffer:
        """Return an object's bytes, memory-mapped.

        Raises:
            StoreError: it is missing.
            StoreUnavailableError: it cannot be read.
            DamagedObjectError: it is damaged in the bucket.
        """
        try:
            for _ in range(MAP_ATTEMPTS):
                with suppress(FileNotFoundError):  # evicted from the cache before it was mapped
                    path = self.path(digest)
                    if not path.stat().st_size:
                        return pa.py_buffer(b"")
                    with pa.memory_map(str(path)) as source:
                        return source.read_buffer()
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreUnavailableError(f"object {digest} cannot be read: {str(error).splitlines()[0]}") from error
        raise StoreError(f"object {digest} is evicted from the cache before it can be read; raise TOKENLOOM_CACHE_SIZE")

    def _table(self, digest: str, data: pa.Buffer) -> pa.Table:
        try:
            return read_table(data)
        except ValueError as error:
            raise DamagedObjectError(f"object {digest} is damaged: {error}; {RECOMPUTED}") from error

    def delete(self, digest: str) -> None:
        self._blobs.delete(self.blob(digest))
