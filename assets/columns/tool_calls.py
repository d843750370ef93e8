"""Converts tool calls of messages, and tool definitions, from any usual layout to one with JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import TOOL_CALL
from tokenloom.assets.columns.text_values import as_text
from tokenloom.resources.tables.flags import Flags, flags_of
from tokenloom.resources.tables.json_text import to_json_text, without_nulls
from tokenloom.resources.tables.nested_paths import plain


def tool_calls(fields: Mapping[str, pa.Array], content: pa.Array, by_role: Flags) -> tuple[pa.Array, Flags]:
    """Return the tool calls of each message. Only messages with a call are processed one by one.

    Args:
        fields: the messages' fields; calls are in `tool_calls` and `function_call`.
        content: the messages' text.
        by_role: bool [messages]: which messages have a call as their text.

    Returns:
        A list array of TOOL_CALL [messages], null for messages without calls, and bool [messages], which have an
        invalid call.
    """
    count = len(content)
    calls: dict[int, list[dict[str, Any]]] = {}
    invalid = np.zeros(count, bool)
    sources = [content] if by_role.any() else []
    sources += [fields[name] for name in ("tool_calls", "function_call") if name in fields]
    for values in sources:
        filled = np.flatnonzero(by_role if values is content else _filled(values))
        is_text = pa.types.is_string(values.type)
        for index, value in zip(filled.tolist(), values.take(pa.array(filled)).to_pylist(), strict=True):
            try:
                parsed = _calls(json.loads(value) if is_text else without_nulls(value))
                calls.setdefault(index, []).extend(parsed)
                invalid[index] |= not parsed
            except (ValueError, TypeError, KeyError, RecursionError):
                invalid[index] = True
    if not calls:
        return pa.nulls(count, pa.list_(TOOL_CALL)), invalid
    index_of = np.full(count, len(calls), np.int64)
    index_of[list(calls)] = np.arange(len(calls))
    return pa.array([*calls.values(), None], pa.list_(TOOL_CALL)).take(pa.array(index_of)), invalid


def tools_text(values: pa.Array) -> tuple[pa.Array, Flags]:
    """Return tool definitions as JSON text, "" for rows without tools, and which rows have something else."""
    values = plain(values)
    if not pa.types.is_nested(values.type):
        text, not_text = as_text(values)
        return pc.if_else(_is_empty_json(text), "", text), not_text
    filled = np.flatnonzero(_filled(values))
    texts = [to_json_text(without_nulls(value)) for value in values.take(pa.array(filled)).to_pylist()]
    index_of = np.full(len(values), len(texts), np.int64)
    index_of[filled] = np.arange(len(texts))
    return pa.array([*texts, ""], pa.string()).take(pa.array(index_of)), np.zeros(len(values), bool)


def _filled(values: pa.Array) -> Flags:
    """Return which values are text other than empty JSON, lists with items, or structs."""
    if pa.types.is_list(values.type):
        return flags_of(pc.greater(pc.list_value_length(values), 0))
    if pa.types.is_string(values.type):
        return flags_of(pc.invert(_is_empty_json(values))) & flags_of(values.is_valid())
    return flags_of(values.is_valid())


def _is_empty_json(text: pa.Array) -> pa.Array:
    return pc.is_in(pc.utf8_trim_whitespace(text), pa.array(["", "[]", "null"]))


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return the calls that a value describes: one, or a list.

    Raises:
        ValueError, TypeError, KeyError: the value is not a call.
    """
    if isinstance(value, list):
        return [call for item in value for call in _calls(item)]
    inner = value["function"] if isinstance(value.get("function") if isinstance(value, dict) else None, dict) else value
    name, arguments, identifier = inner["name"], inner.get("arguments"), value.get("id")
    if not isinstance(name, str) or not name or not isinstance(identifier, str | None):
        raise ValueError("a call must have a name")
    if isinstance(arguments, str):
        json.loads(arguments)
    else:
        arguments = "{}" if arguments is None else to_json_text(arguments)
    for text in (name, arguments, identifier or ""):
        text.encode()  # raises for a lone surrogate
    return [{"id": identifier, "name": name, "arguments": arguments}]
