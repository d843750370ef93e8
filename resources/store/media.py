"""Media: images as they were in the source, each kept once under the BLAKE3 of its bytes.

Tables refer to an image by a struct with the field `MEDIA`, its digest. An action whose output refers to images counts
them in the counter `IMAGES`; without them, it is not a cache hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from tokenloom.errors import DamagedObjectError, StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import MEDIA, Blobs, is_digest, renew_all
from tokenloom.resources.tables.ragged import one_array

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
    found = set[str]()
    for name in table.column_names:
        _add(one_array(table[name]), found)
    return found


def refers(kind: pa.DataType) -> bool:
    """Return whether values of a type can refer to images."""
    if pa.types.is_struct(kind):
        return any(field.name == MEDIA or refers(field.type) for field in kind)
    return pa.types.is_list(kind) and refers(kind.value_type)


def _add(array: pa.Array, found: set[str]) -> None:
    if not refers(array.type):
        return
    if pa.types.is_list(array.type):
        _add(array.flatten(), found)
        return
    for field, values in zip(array.type, array.flatten(), strict=True):
        if field.name == MEDIA and pa.types.is_string(field.type):
            found.update(filter(is_digest, values.to_pylist()))
        else:
            _add(values, found)
