"""Texts that columns store as something else: binary values that are UTF-8, and the numbers of Hugging Face's
`ClassLabel`, whose names the schema's metadata holds.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.nested_paths import is_list, list_values, plain
from tokenloom.resources.tables.ragged import Flags, flags_of, list_array, offsets_of, one_array

MOSTLY = 0.9
"""The least fraction of binary values that are text for the column to count as text."""


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is binary of any layout."""
    return "binary" in str(kind) and not kind.num_fields


def decoded(array: pa.Array) -> tuple[pa.Array, Flags]:
    """Return binary values as strings, null if they are not UTF-8, and which are not: bool [rows]."""
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    try:
        return array.cast(pa.string()), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        texts = pa.array([None if value is None else _text(value) for value in array.to_pylist()], pa.string())
    return texts, flags_of(array.is_valid()) & flags_of(texts.is_null())


def with_texts(array: pa.Array) -> pa.Array:
    """Return an array in which binary values at any depth are strings, wherever all values of a path are UTF-8."""
    array = plain(array)
    if is_binary(array.type):
        texts, unfit = decoded(array)
        return array if unfit.any() else texts
    if pa.types.is_list(array.type) and "binary" in str(array.type):
        lengths, flat = list_values(array)
        lists = list_array(offsets_of(lengths), with_texts(flat))
        missing = array.is_null()
        return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=missing) if missing.true_count else lists
    if pa.types.is_struct(array.type) and "binary" in str(array.type):
        fields = [with_texts(inner) for inner in array.flatten()]
        names = [field.name for field in array.type]
        return pa.StructArray.from_arrays(fields, names, mask=array.is_null())
    return array


def text_in(value: Any) -> Any:
    """Return a Python value in which bytes at any depth are text, if they are UTF-8."""
    if isinstance(value, bytes):
        text = _text(value)
        return value if text is None else text
    if isinstance(value, dict):
        return {name: text_in(inner) for name, inner in value.items()}
    return [text_in(inner) for inner in value] if isinstance(value, list) else value


def mostly_text(array: pa.Array) -> pa.Array | None:
    """Return binary values as strings if nearly all are text without the byte 0, else None; the others become ""."""
    texts, unfit = decoded(array)
    odd = int(unfit.sum()) + (pc.sum(pc.match_substring(texts, "\0")).as_py() or 0)
    present = len(array) - array.null_count
    if not present or odd > (1 - MOSTLY) * present:
        return None
    return pc.if_else(pa.array(unfit), "", texts) if odd else texts


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


_LABEL = "ClassLabel"


def with_class_names(table: pa.Table) -> pa.Table:
    """Return a table with names in place of the numbers of classes, at any depth. -1, for no class, is null.

    The features are those in the metadata of the schema; metadata that is not understood changes nothing.
    """
    text = (table.schema.metadata or {}).get(b"huggingface", b"")
    if _LABEL.encode() not in text:
        return table
    try:
        features = json.loads(text)["info"]["features"]
        named = {name: _named(one_array(table[name]), features.get(name)) for name in table.column_names}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return table
    return pa.table(named)


def _named(array: pa.Array, feature: Any) -> pa.Array:
    kind, inner = (feature.get("_type"), feature.get("feature")) if isinstance(feature, dict) else (None, feature)
    if kind == _LABEL and pa.types.is_integer(array.type) and isinstance(names := feature.get("names"), list):
        index = array.cast(pa.int64())
        within = pc.and_(pc.greater_equal(index, 0), pc.less(index, len(names)))
        found = pa.array(names, pa.string()).take(pc.if_else(within, index, pa.scalar(None, pa.int64())))
        other = pc.if_else(pc.equal(index, -1), pa.scalar(None, pa.string()), index.cast(pa.string()))
        return pc.if_else(within, found, other)
    if _LABEL not in json.dumps(feature):
        return array
    if is_list(array.type) and not pa.types.is_map(array.type):
        lengths, values = list_values(array)
        lists = list_array(offsets_of(lengths), _named(values, inner[0] if isinstance(inner, list) else inner))
        return pc.if_else(array.is_valid(), lists, pa.scalar(None, lists.type))
    if pa.types.is_struct(array.type):
        columns = {name: {"feature": part} for name, part in (inner or {}).items()} if kind == "Sequence" else feature
        parts = [_named(part, columns[name]) for name, part in zip(array.type.names, array.flatten(), strict=True)]
        return pa.StructArray.from_arrays(parts, array.type.names, mask=array.is_null())
    return array
