"""Tool calls in OpenAI's layout, and a row's tools and template variables as JSON text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.rejected_rows import Problem
from tokenloom.assets.columns.source_expressions import Source
from tokenloom.assets.columns.text_values import empty_texts, values_of
from tokenloom.resources.tables.json_depth import read_json_value
from tokenloom.resources.tables.json_text import is_json, json_texts, to_json_text
from tokenloom.resources.tables.nested_paths import plain
from tokenloom.resources.tables.struct_values import without_null_fields

ARGUMENT_FIELDS = ("arguments", "parameters", "input", "args")
_IDENTIFIERS = ("id", "call_id", "tool_call_id", "type", "index")
EMPTY = ("", "[]", "{}", "null")


def calls_of(value: Any) -> list[dict[str, Any]]:
    """Return the tool calls that a value describes: one or a list of them, as objects or as JSON text.

    Calls that are already in OpenAI's layout, `{"function": {"name": …, "arguments": …}}`, are not changed, but get
    empty arguments if they have none.

    Raises:
        ValueError, TypeError, KeyError, RecursionError: the value is not a call.
    """
    if isinstance(value, str):
        value = read_json_value(value)
    if isinstance(value, list):
        return [call for item in value for call in calls_of(item)]
    inner = value.get("function")
    call = value if isinstance(inner, dict) else {**_identity(value), "type": "function", "function": _function(value)}
    function = call["function"]
    if not isinstance(function["name"], str) or not function["name"]:
        raise ValueError("a call must have a name")
    arguments = function.setdefault("arguments", {})
    if isinstance(arguments, str) and arguments.strip():
        read_json_value(arguments)
    json.dumps(call, ensure_ascii=False).encode()  # raises for a lone surrogate
    return [call]


def _identity(value: dict[str, Any]) -> dict[str, Any]:
    found = next((value[name] for name in _IDENTIFIERS[:3] if value.get(name) is not None), None)
    return {} if found is None else {"id": found}


def _function(value: dict[str, Any]) -> dict[str, Any]:
    """Return the function of a call that has its name and arguments among its other fields."""
    given = next((name for name in ARGUMENT_FIELDS if value.get(name) is not None), None)
    function = {
        name: inner for name, inner in value.items() if name not in (*_IDENTIFIERS, given) and inner is not None
    }
    return function | ({} if given is None else {"arguments": value[given]})


def tools_column(table: pa.Table, sources: Mapping[str, Source]) -> tuple[pa.Array, list[Problem]]:
    """Return each row's tools as the JSON text of a list, "" for none, and the rows that have something else."""
    return _json_objects(table, sources, "tools", _tools, "tools are neither a list of objects nor its JSON text")


def template_kwargs_column(table: pa.Table, sources: Mapping[str, Source]) -> tuple[pa.Array, list[Problem]]:
    """Return each row's variables of the chat template as the JSON text of an object, "" for none."""
    message = "the variables of the chat template are neither an object nor its JSON text"
    return _json_objects(table, sources, "template_kwargs", _variables, message)


def _json_objects(
    table: pa.Table, sources: Mapping[str, Source], role: str, read: Callable[[Any], Any], message: str
) -> tuple[pa.Array, list[Problem]]:
    """Return the JSON text of each row's value, and the rows whose value `read` refuses.

    Texts that `read` does not change are kept as in the source. Equal values are read once.
    """
    if role not in sources:
        return empty_texts(table.num_rows), []
    values, problems = values_of(table, sources[role], role)
    distinct, index = _distinct(plain(values))
    texts = [_text(read, value) for value in distinct]
    invalid = np.array([text is None for text in texts], bool)[index]
    column = pa.array([text or "" for text in texts], pa.string()).take(pa.array(index))
    return column, [*problems, Problem(invalid, f"not_{role}", role, message, values)]


def _distinct(values: pa.Array) -> tuple[Sequence[str | None], np.ndarray]:
    """Return the distinct values as Python objects or JSON texts, and the index of each row's value."""
    if is_json(values.type):
        values = json_texts(values)
    elif pa.types.is_string(values.type):
        pass
    elif pa.types.is_nested(values.type):
        objects = [None if value is None else to_json_text(_schemas(value)) for value in without_null_fields(values)]
        values = pa.array(objects, pa.string())
    else:
        values = pc.if_else(values.is_valid(), "0", pa.scalar(None, pa.string()))  # no scalar has an object's JSON text
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _text(read: Callable[[Any], Any], text: str | None) -> str | None:
    """Return a value as JSON text, "" if it is empty, or None if `read` refuses it."""
    if text is None or text.strip() in EMPTY:
        return ""
    try:
        value = read_json_value(text)
        if isinstance(value, str):  # JSON text inside of JSON
            return _text(read, value)
        converted = read(value)
        if converted is value:
            return text
        json.dumps(converted, ensure_ascii=False).encode()
        return to_json_text(converted)
    except (ValueError, RecursionError):
        return None


def _tools(value: Any) -> Any:
    """Return a list of tools, in which each is an object; single tools and JSON texts of tools are converted."""
    tools = value if isinstance(value, list) else [value]
    parsed = [read_json_value(tool) if isinstance(tool, str) else tool for tool in tools]
    if not all(isinstance(tool, dict) for tool in parsed):
        raise ValueError("a tool is not an object")
    return value if isinstance(value, list) and not any(isinstance(tool, str) for tool in tools) else parsed


def _schemas(value: Any) -> Any:
    """Return tools of an Arrow column with parameters that are JSON text as objects."""
    for tool in value if isinstance(value, list) else [value]:
        function = tool.get("function") or tool if isinstance(tool, dict) else {}
        if isinstance(function, dict) and isinstance(text := function.get("parameters"), str):
            with suppress(ValueError):
                parsed = read_json_value(text)
                function["parameters"] = parsed if isinstance(parsed, dict) else text
    return value


def _variables(value: Any) -> Any:
    """Return an object; the pairs of key and value of an Arrow map are converted."""
    pairs = value if isinstance(value, list) else ()
    if pairs and all(isinstance(pair, dict) and {"key"} <= {*pair} <= {"key", "value"} for pair in pairs):
        return {pair["key"]: pair.get("value") for pair in pairs}
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
