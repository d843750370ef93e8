"""JSON text and Arrow: the type of JSON columns, reading JSON with pyarrow, and writing values as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from tokenloom.resources.tables.ragged import one_array

_JSON = pa.json_()


def is_json(kind: pa.DataType) -> bool:
    """Return whether a type is that of JSON columns."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def json_column(texts: pa.Array | Sequence[str | None]) -> pa.ExtensionArray:
    """Return JSON texts as a JSON column.

    Args:
        texts: strings; null for the value `null`.
    """
    storage = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return pa.ExtensionArray.from_storage(_JSON, storage)


def json_texts(array: pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """Return the JSON texts of a JSON column as strings; null for the value `null`."""
    return one_array(array).storage


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of an array of any type as Python objects: `json.loads` of JSON texts, else `to_pylist`."""
    if not is_json(array.type):
        return array.to_pylist()
    return [None if text is None else json.loads(text) for text in json_texts(array).to_pylist()]


def read_json(
    data: bytes | pa.Buffer, multi_line: bool = False, schema: pa.Schema | None = None, closed: bool = False
) -> pa.Table:
    """Read newline-delimited JSON objects with pyarrow in one pass.

    Args:
        data: UTF-8.
        multi_line: whether objects can contain line breaks.
        schema: the types of known columns; default: pyarrow infers all types.
        closed: whether columns and fields that the schema lacks are an error.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: pyarrow cannot read the data.
    """
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    unexpected = "error" if closed else "infer"
    parse = arrow_json.ParseOptions(
        newlines_in_values=multi_line, explicit_schema=schema, unexpected_field_behavior=unexpected
    )
    return arrow_json.read_json(pa.BufferReader(data), read, parse)


def without_dates(kind: pa.DataType, null_items: pa.DataType | None = None) -> pa.DataType:
    """Return a type inferred by pyarrow with strings in place of timestamps: strings that look like dates.

    Args:
        null_items: the item type for lists in which all items are null; default: null.
    """
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        if null_items is not None and pa.types.is_null(kind.value_type):
            return pa.list_(null_items)
        return pa.list_(without_dates(kind.value_type, null_items))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_dates(field.type, null_items)) for field in kind])
    return kind


def without_nulls(value: Any) -> Any:
    """Return a value without its null fields: Arrow gives every struct all fields that any row has."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def rows_table(rows: Sequence[Mapping[Any, Any]]) -> pa.Table:
    """Return Python rows as a table with every column that any row has.

    Columns whose values have no one Arrow type that holds them exactly, such as lists and objects, become JSON columns.

    Raises:
        ArrowInvalid: the values of a column have neither a common type nor a JSON form.
    """
    names = dict.fromkeys(chain.from_iterable(rows))
    return pa.table({str(name): _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    is_wide = kinds == {int} and not all(-(2**63) <= value < 2**63 for value in values if value is not None)
    if len(kinds) > 1 or kinds & {dict, list, tuple} or is_wide:
        try:
            texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))
        except TypeError:  # a value that JSON does not have, such as bytes or a NumPy array
            pass
    return pa.array(values)


def to_json_text(value: Any) -> str:
    """Return a value as JSON text without ASCII escapes; values without a JSON form become their `str`."""
    return json.dumps(value, ensure_ascii=False, default=str)
