"""Python values of nested Arrow arrays, without the null fields of structs.

Arrow gives every struct all fields that any row has: a field that is null can be null in the source, or one that only
other rows have. Items of lists, values of maps and JSON texts can be null in the source only, so they stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.resources.tables.flags import Flags, any_of, flags_of
from tokenloom.resources.tables.json_text import is_json, json_column, to_json_text
from tokenloom.resources.tables.nested_paths import is_list, list_values, plain

Convert = Callable[[Any], Any]


def without_null_fields(array: pa.Array) -> list[Any]:
    """Return values as Python objects: structs without their null fields, maps as dictionaries, JSON in them read."""
    return _objects(array, _converted(array.type))


def with_null_fields(array: pa.Array) -> pa.ExtensionArray:
    """Return nested values as a JSON column, which holds the null fields of structs as `null`."""
    values = _objects(array, _converted(array.type, keeps=True))
    return json_column([None if value is None else to_json_text(value) for value in values])


def has_objects(kind: pa.DataType) -> bool:
    """Return whether values of a type contain structs or maps."""
    return _converted(kind) is not None


def null_fields(array: pa.Array, level: int = 0, ignored: Collection[str] = ()) -> Flags:
    """Return bool [rows]: which values contain a struct with a null field.

    Args:
        level: levels of structs whose own fields are not looked at, only what is inside of them.
        ignored: names of fields of these levels whose lists are not looked into.
    """
    array = plain(array)
    if pa.types.is_struct(array.type):
        found = np.zeros(len(array), bool)
        for field, values in zip(array.type, array.flatten(), strict=True):
            found |= flags_of(values.is_null()) if not level else False
            if has_objects(field.type) and not (level and field.name in ignored and is_list(field.type)):
                found |= null_fields(values, max(level - 1, 0), ignored)
        return found & flags_of(array.is_valid())
    if is_list(array.type) and has_objects(array.type):
        lengths, values = list_values(array)
        return any_of(null_fields(values, level, ignored), lengths)
    return np.zeros(len(array), bool)


def _objects(array: pa.Array, convert: Convert | None) -> list[Any]:
    values = array.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converted(kind: pa.DataType, keeps: bool = False) -> Convert | None:
    """Return the function that converts a value that is not null, as `to_pylist` gives it; None if nothing changes.

    Args:
        keeps: whether null fields are kept.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return None if is_json(kind) else _converted(kind.storage_type, keeps)
    if pa.types.is_struct(kind):
        inner = {field.name: json.loads if is_json(field.type) else _converted(field.type, keeps) for field in kind}
        inner = {name: convert for name, convert in inner.items() if convert is not None}
        return lambda fields: {
            name: inner[name](value) if name in inner and value is not None else value
            for name, value in fields.items()
            if keeps or value is not None
        }
    if pa.types.is_map(kind):
        of_value = _converted(kind.item_type, keeps) or _unchanged
        return lambda pairs: {name: None if value is None else of_value(value) for name, value in pairs}
    if is_list(kind) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        of_item = _converted(kind.value_type, keeps)
        if of_item is None or not is_list(kind):
            return of_item
        return lambda items: [None if item is None else of_item(item) for item in items]
    return None


def _unchanged(value: Any) -> Any:
    return value
