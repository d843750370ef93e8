"""Binary values that are UTF-8 text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.nested_paths import list_values, plain
from tokenloom.resources.tables.ragged import Flags, flags_of, list_array, offsets_of

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
