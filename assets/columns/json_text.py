"""Conversations that a column holds as JSON text."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from tokenloom.assets.columns.text import Flags, flags_of
from tokenloom.resources.tables.ragged import list_array, one_array

_CERTAIN = r'^\s*\[\s*\{\s*"(?:role|content|from|value)"\s*:'


def is_message_json(text: pa.Array, certain: bool) -> Flags:
    """Which texts begin as JSON lists; only those that plainly begin as lists of messages where it must be certain."""
    return flags_of(pc.match_substring_regex(text, _CERTAIN if certain else r"^\s*\["))


def parse_messages(text: pa.Array) -> tuple[pa.Array, Flags]:
    """Each text's list, and which are none; those are empty lists.

    One pass of pyarrow's reader; where that gives up, texts are looked at one by one, and those set aside that are no
    lists of objects or whose fields have other types than most.
    """
    invalid = np.zeros(len(text), bool)
    try:
        return _read(text), invalid
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    values = [_value(item) for item in text.to_pylist()]
    usual: dict[str, Counter[str]] = {}
    for value in values:
        for path, kind in _kinds(value or []):
            usual.setdefault(path, Counter())[kind] += 1
    most = {path: kinds.most_common(1)[0][0] for path, kinds in usual.items()}
    invalid = np.array([value is None or any(most[p] != k for p, k in _kinds(value)) for value in values], bool)
    if invalid.all():
        return pa.nulls(len(text), pa.list_(pa.null())), invalid
    fit = pa.array([json.dumps([] if bad else value) for value, bad in zip(values, invalid, strict=True)], pa.string())
    return _read(fit), invalid


def _read(text: pa.Array) -> pa.Array:
    line = pc.binary_join_element_wise('{"m":', pc.replace_substring_regex(text, r"[\r\n]", " "), "}", "")
    data = pc.binary_join(list_array(np.array([0, len(line)]), line), "\n")[0].as_buffer()
    read = arrow_json.ReadOptions(use_threads=False, block_size=data.size + 1)

    def lists(schema: pa.Schema | None) -> pa.Table:
        parse = arrow_json.ParseOptions(newlines_in_values=False, explicit_schema=schema)
        return arrow_json.read_json(pa.BufferReader(data), read, parse)

    table = lists(None)
    if table.column_names != ["m"] or table.num_rows != len(text) or not pa.types.is_list(table.schema.types[0]):
        raise pa.ArrowInvalid("not one list of messages a text")
    if (undated := _undated(table.schema.types[0])) != table.schema.types[0]:
        table = lists(pa.schema([("m", undated)]))
    table.validate(full=True)
    return one_array(table["m"])


def _undated(kind: pa.DataType) -> pa.DataType:
    """The type with strings where the reader took them for dates."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_undated(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_undated(field.type)) for field in kind])
    return kind


def _value(text: str) -> list[Any] | None:
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else None


def _kinds(value: Any, path: str = "") -> list[tuple[str, str]]:
    """(path, type) of everything inside a value that is not null."""
    if isinstance(value, dict):
        inner = [(f"{path}.{name}", item) for name, item in value.items()]
    else:
        inner = [(f"{path}[]", item) for item in value] if isinstance(value, list) else []
    own = [(path, "number" if type(value) in (int, float) else type(value).__name__)] if value is not None else []
    return own + [found for where, item in inner for found in _kinds(item, where)]
