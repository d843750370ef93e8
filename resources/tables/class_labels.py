"""Columns of Hugging Face's `ClassLabel`: numbers of names that the schema's metadata holds."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.nested_paths import is_list, list_values
from tokenloom.resources.tables.ragged import list_array, offsets_of, one_array

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
