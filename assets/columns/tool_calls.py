"""Tool calls of messages, and descriptions of tools, under one layout with JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import TOOL_CALL
from tokenloom.assets.columns.text import Flags, as_text, flags_of
from tokenloom.resources.tables.nested_paths import plain


def tool_calls(fields: Mapping[str, pa.Array], content: pa.Array, by_role: Flags) -> tuple[pa.Array, Flags]:
    """The calls of each message, null where there are none, and which messages hold an invalid one.

    Args:
        fields: the messages' fields; calls are looked for in `tool_calls` and `function_call`.
        content: the messages' text.
        by_role: which messages' text is a call.

    Returns:
        A list array of TOOL_CALL and bool, both [messages]. Only messages that hold a call are looked at one by one.
    """
    count = len(content)
    calls: dict[int, list[dict[str, Any]]] = {}
    invalid = np.zeros(count, bool)
    given = [content] if by_role.any() else []
    given += [fields[name] for name in ("tool_calls", "function_call") if name in fields]
    for values in given:
        here = np.flatnonzero(by_role if values is content else _filled(values))
        is_text = pa.types.is_string(values.type)
        for index, value in zip(here.tolist(), values.take(pa.array(here)).to_pylist(), strict=True):
            try:
                found = _calls(json.loads(value) if is_text else without_nulls(value))
                calls.setdefault(index, []).extend(found)
                invalid[index] |= not found
            except (ValueError, TypeError, KeyError, RecursionError):
                invalid[index] = True
    if not calls:
        return pa.nulls(count, pa.list_(TOOL_CALL)), invalid
    place = np.full(count, len(calls), np.int64)
    place[list(calls)] = np.arange(len(calls))
    return pa.array([*calls.values(), None], pa.list_(TOOL_CALL)).take(pa.array(place)), invalid


def tools_text(values: pa.Array) -> tuple[pa.Array, Flags]:
    """Descriptions of tools as JSON text, "" where there are none, and which rows hold something else."""
    values = plain(values)
    if not pa.types.is_nested(values.type):
        text, unfit = as_text(values)
        nothing = pc.is_in(pc.utf8_trim_whitespace(text), pa.array(["", "[]", "null"]))
        return pc.if_else(nothing, "", text), unfit
    here = np.flatnonzero(_filled(values))
    dumped = [_dumped(without_nulls(value)) for value in values.take(pa.array(here)).to_pylist()]
    place = np.full(len(values), len(dumped), np.int64)
    place[here] = np.arange(len(dumped))
    return pa.array([*dumped, ""], pa.string()).take(pa.array(place)), np.zeros(len(values), bool)


def without_nulls(value: Any) -> Any:
    """A value without the fields that are null: Arrow gives a struct every field that any row has."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _filled(values: pa.Array) -> Flags:
    """Which values hold something: a text, a list's items, a struct."""
    if pa.types.is_list(values.type):
        return flags_of(pc.greater(pc.list_value_length(values), 0))
    if pa.types.is_string(values.type):
        return flags_of(pc.invert(pc.is_in(pc.utf8_trim_whitespace(values), pa.array(["", "[]", "null"])))) & flags_of(
            values.is_valid()
        )
    return flags_of(values.is_valid())


def _calls(value: Any) -> list[dict[str, Any]]:
    """The calls that a value describes: one, or a list.

    Raises:
        ValueError, TypeError, KeyError: it is no call.
    """
    if isinstance(value, list):
        return [call for item in value for call in _calls(item)]
    inner = value["function"] if isinstance(value.get("function") if isinstance(value, dict) else None, dict) else value
    name, arguments, identifier = inner["name"], inner.get("arguments"), value.get("id")
    if not isinstance(name, str) or not name or not isinstance(identifier, str | None):
        raise ValueError("a call has a name")
    if isinstance(arguments, str):
        json.loads(arguments)
    else:
        arguments = "{}" if arguments is None else _dumped(arguments)
    for text in (name, arguments, identifier or ""):
        text.encode()
    return [{"id": identifier, "name": name, "arguments": arguments}]


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
