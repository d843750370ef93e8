"""Columns with the records of APIs and agents: items of OpenAI's Responses API, harmony, SWE-agent, Anthropic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.sessions import openai, trajectories
from tokenloom.assets.raw.sessions.conversation import Conversation, UnfitSessionError
from tokenloom.assets.stage.forms import CONVERSATIONS
from tokenloom.assets.stage.rejects import NO_CONTEXT, RowProblem
from tokenloom.resources.tables.json_text import is_json, json_column, json_texts, read_json_value, to_json_text
from tokenloom.resources.tables.nested_paths import Path, evaluate, without_null_fields
from tokenloom.resources.tables.ragged import one_array

_TOOLS = "_tools"

Source = TypeVar("Source")
"""Any source expression: only plain columns are converted."""


def as_messages(
    table: pa.Table, sources: Mapping[str, Source], dialect: str
) -> tuple[pa.Table, dict[str, Source | Path], list[RowProblem], Counter[str]]:
    """Convert the columns of conversations in a dialect.

    Args:
        dialect: a key of `tokenloom.assets.schema.conventions.DIALECTS`.

    Returns:
        - The table, with these columns as JSON columns of messages.
        - The sources, and one of the tools that the messages define, if no column has tools.
        - The rows that cannot be converted.
        - Counts of what was left out.
    """
    converted: dict[str, Source | Path] = {**sources}
    problems, counts = list[RowProblem](), Counter[str]()
    tools: list[str | None] = [None] * table.num_rows
    for role in CONVERSATIONS:
        source = sources.get(role)
        if not isinstance(source, Path) or source.steps or source.column not in table.column_names:
            continue
        column = one_array(table[source.column])
        texts: list[str | None] = []
        unfit: dict[tuple[str, str], list[int]] = {}
        for row, value in enumerate(_values(column)):
            try:
                conversation = _CONVERSATIONS[dialect](_parsed(value))
            except UnfitSessionError as error:
                code = "missing_messages" if error.code == NO_CONTEXT else error.code
                unfit.setdefault((code, str(error)), []).append(row)
                texts.append(None)
                continue
            texts.append(to_json_text(conversation.closed()))
            counts += conversation.counts
            tools[row] = to_json_text(conversation.tools) if conversation.tools else tools[row]
        for (code, message), rows in unfit.items():
            flags = np.zeros(table.num_rows, bool)
            flags[rows] = True
            problems.append(RowProblem(flags, code, role, message, column))
        table = table.set_column(table.column_names.index(source.column), source.column, json_column(texts))
    given = converted.get("tools")
    if dialect == "responses" and isinstance(given, Path) and not given.steps:
        tools = [None if value is None else to_json_text(_nested(value)) for value in _values(evaluate(table, given))]
    elif given is not None or not any(tools):
        return table, converted, problems, counts
    return table.append_column(_TOOLS, json_column(tools)), converted | {"tools": Path(_TOOLS)}, problems, counts


def _values(column: pa.Array) -> list[Any]:
    if is_json(column.type):
        return [None if text is None else read_json_value(text) for text in json_texts(column).to_pylist()]
    return without_null_fields(column) if pa.types.is_nested(column.type) else column.to_pylist()


def _parsed(value: Any) -> Any:
    """Return the value of JSON text; other values, and other texts, unchanged."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return read_json_value(value)
        except ValueError as error:
            raise UnfitSessionError("invalid_json", f"not valid JSON: {error}") from error
    return value


def _nested(tools: Any) -> Any:
    """Return tools of the Responses API as those of chat completions, which chat templates read."""
    listed = _parsed(tools)
    return [
        {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
        if isinstance(tool, dict) and tool.get("type") == "function" and "function" not in tool
        else tool
        for tool in (listed if isinstance(listed, list) else [])
    ]


def _from_items(value: Any) -> Conversation:
    conversation = Conversation()
    if isinstance(value, str):
        conversation.say("user", value)
        return conversation
    for item in _objects(value):
        if silent := openai.add_item(conversation, item):
            conversation.counts[f"unused {silent}"] += 1
    return conversation


def _from_harmony(value: Any) -> Conversation:
    if isinstance(value, dict):
        value = value.get("messages")
    return openai.harmony_conversation(openai.read_harmony(value) if isinstance(value, str) else _objects(value))


def _from_anthropic(value: Any) -> Conversation:
    """Return messages without the parts that are signed or redacted reasoning; all else is not changed."""
    conversation = Conversation()
    for message in _objects(value):
        content = message.get("content")
        if isinstance(content, list):
            unsigned = [part for part in content if not _is_signed(part)]
            # Signed reasoning is only valid for the API that signed it, and not text that the model wrote.
            for _ in range(len(content) - len(unsigned)):
                conversation.omit_reasoning()
            message = {**message, "content": unsigned}
            if content and not unsigned:
                continue
        conversation.messages.append(message)
    return conversation


def _is_signed(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind == "redacted_thinking" or (kind == "thinking" and bool(part.get("signature")))


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnfitSessionError("not_messages", "not a list of messages")
    return value


_CONVERSATIONS: dict[str, Callable[[Any], Conversation]] = {
    "responses": _from_items,
    "harmony": _from_harmony,
    "swe_agent": lambda value: trajectories.swe_agent_conversation(_objects(value)),
    "anthropic": _from_anthropic,
}
