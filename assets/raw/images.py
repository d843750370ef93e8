"""Takes the bytes of images out of raw rows: into the store, once each; the rows keep their digests."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from tokenloom.assets.stage.images import IMAGE_COLUMNS, REFERENCE, ROLE
from tokenloom.config import PipelineConfig
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.tables.nested_paths import is_list, list_values, plain
from tokenloom.resources.tables.ragged import list_array, offsets_of, one_array
from tokenloom.resources.tables.stored_texts import is_binary

_FIELDS = (*IMAGE_COLUMNS, "bytes")
"""Fields of content parts whose binary values are images."""


def image_columns(config: PipelineConfig) -> list[str]:
    """Return the names of columns whose binary values are images."""
    mapped = config.dataset.column_mapping.get(ROLE)
    return [mapped] if isinstance(mapped, str) else [*IMAGE_COLUMNS]


def take_images(table: pa.Table, names: Collection[str]) -> tuple[pa.Table, dict[str, bytes]]:
    """Replace the bytes of images with their digests.

    Images are structs of `bytes` and `path`, as the feature `Image` of datasets stores them, at any depth; and binary
    values, or lists of these, in columns with certain names, and in fields such as `image`.

    Args:
        names: names of columns whose binary values are images.

    Returns:
        the table, with `REFERENCE` in place of each image; and the bytes of the images, by digest.
    """
    images: dict[str, bytes] = {}
    for index, field in enumerate(table.schema):
        if _has_images(field.type, field.name in names):
            array = _replaced(one_array(table[field.name]), field.name in names, images)
            table = table.set_column(index, field.name, array)
    return table, images


def _is_image(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and {field.name: is_binary(field.type) for field in kind} == {
        "bytes": True,
        "path": False,
    }


def _has_images(kind: pa.DataType, named: bool) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_images(kind.storage_type, named) if _is_image(kind.storage_type) else False
    if _is_image(kind) or (named and is_binary(kind)):
        return True
    if pa.types.is_struct(kind):
        return any(_has_images(field.type, field.name in _FIELDS) for field in kind)
    return is_list(kind) and not pa.types.is_map(kind) and _has_images(kind.value_type, named)


def _replaced(array: pa.Array, named: bool, images: dict[str, bytes]) -> pa.Array:
    if not _has_images(array.type, named):
        return array
    array = plain(array)
    if _is_image(array.type):
        content, path = (array.field(name) for name in ("bytes", "path"))
        return _references(content, path, array.is_null(), images)
    if pa.types.is_struct(array.type):
        parts = [
            _replaced(part, field.name in _FIELDS, images)
            for field, part in zip(array.type, array.flatten(), strict=True)
        ]
        fields = [pa.field(field.name, part.type) for field, part in zip(array.type, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    if is_list(array.type):
        lengths, values = list_values(array)
        # the offsets follow from the lengths: those of a slice start elsewhere, and nulls can hide values
        lists = list_array(offsets_of(lengths), _replaced(values, named, images))
        return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=array.is_null())
    return _references(array, pa.nulls(len(array), pa.string()), array.is_null(), images)


def _references(content: pa.Array, path: pa.Array, missing: pa.Array, images: dict[str, bytes]) -> pa.Array:
    contents = content.to_pylist()
    digests = [None if value is None else digest_bytes(value) for value in contents]
    images |= {digest: value for digest, value in zip(digests, contents, strict=True) if digest is not None}
    arrays = [pa.array(digests, pa.string()), path.cast(pa.string())]
    return pa.StructArray.from_arrays(arrays, fields=list(REFERENCE), mask=missing)
