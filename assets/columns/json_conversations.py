"""Parses conversations that a column holds as JSON text."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.flags import Flags, flags_of
from tokenloom.resources.tables.json_text import json_kinds, read_json, usual_kinds, without_dates
from tokenloom.resources.tables.ragged import list_array, one_array

_LIST = r"^\s*\["
_LIST_OF_MESSAGES = r'^\s*\[\s*\{\s*"(?:role|content|from|value)"\s*:'


def is_message_json(text: pa.Array, certain: bool) -> Flags:
    """Return which texts start like a JSON list.

    Args:
        certain: whether to require the start of a list of messages.
    """
    return flags_of(pc.match_substring_regex(text, _LIST_OF_MESSAGES if certain else _LIST))


def parse_messages(text: pa.Array) -> tuple[pa.Array, Flags]:
    """Parse each text as a list of objects.

    Reads all texts in one pass of pyarrow's reader. If that fails, texts are checked one by one: texts that are not
    lists of objects, or whose fields have other types than in most texts, are invalid.

    Returns:
        The lists, empty for invalid texts, and bool [texts], which are invalid.
    """
    invalid = np.zeros(len(text), bool)
    try:
        return _read(text), invalid
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    values = [_value(item) for item in text.to_pylist()]
    usual = usual_kinds(value or [] for value in values)
    invalid = np.array(
        [value is None or any(usual[path] != kind for path, kind in json_kinds(value)) for value in values], bool
    )
    if invalid.all():
        return pa.nulls(len(text), pa.list_(pa.null())), invalid
    fit = pa.array([json.dumps([] if bad else value) for value, bad in zip(values, invalid, strict=True)], pa.string())
    return _read(fit), invalid


def _read(text: pa.Array) -> pa.Array:
    """Parse texts that are all JSON lists, or raise ArrowInvalid."""
    line = pc.binary_join_element_wise('{"m":', pc.replace_substring_regex(text, r"[\r\n]", " "), "}", "")
    data = pc.binary_join(list_array(np.array([0, len(line)]), line), "\n")[0].as_buffer()
    table = read_json(data)
    if table.column_names != ["m"] or table.num_rows != len(text) or not pa.types.is_list(table.schema.types[0]):
        raise pa.ArrowInvalid("not one list of messages per text")
    if (undated := without_dates(table.schema.types[0])) != table.schema.types[0]:
        table = read_json(data, schema=pa.schema([("m", undated)]))
    table.validate(full=True)
    return one_array(table["m"])


def _value(text: str) -> list[Any] | None:
    """Return the list of objects that a text contains, or None."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else None
