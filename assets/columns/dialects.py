"""Conversations in other shapes than a list of one object per message: the records of APIs and agents, pairs of
{human, assistant}, and objects of lists: {role: […], content: […]}, as `datasets` writes a sequence of objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.sessions import openai, trajectories
from tokenloom.assets.raw.sessions.conversation import Conversation, UnfitSessionError
from tokenloom.assets.schema.profiles import columns_of_turns, pair_of
from tokenloom.assets.stage.rejects import NO_CONTEXT, RowProblem
from tokenloom.resources.tables.json_text import is_json, json_column, json_texts, read_json_value, to_json_text
from tokenloom.resources.tables.nested_paths import Path, evaluate, is_list, list_values, plain, without_null_fields
from tokenloom.resources.tables.ragged import Flags, Ints, any_of, flags_of, list_array, offsets_of, one_array

SPOKEN = ("messages", "prompt", "completion")
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
    for role in SPOKEN:
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


Object = dict[str, Any]


class UnequalTurnsError(ValueError):
    """The lists of an object of lists have different lengths."""


def turns_of(item: Object) -> Iterator[Object]:
    """Yield the messages in an object: a pair has two, an object of lists has several, any other object is one.

    Fields of a pair other than its texts are those of the answer, apart from a system prompt.

    Raises:
        UnequalTurnsError: lists of an object of lists have different lengths.
    """
    filled = {name: value for name, value in item.items() if value is not None}
    if (columns := columns_of_turns(filled)) and all(isinstance(filled[name], list) for name in columns):
        lists = {name: value for name, value in filled.items() if isinstance(value, list)}
        if len({*map(len, lists.values())}) > 1:
            raise UnequalTurnsError(", ".join(f"{name} has {len(value)} items" for name, value in lists.items()))
        yield from (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))
    elif pair := pair_of(item):
        asked, answered = pair
        rest = {name: value for name, value in filled.items() if name not in (asked, answered, "system")}
        if filled.get("system"):
            yield {"role": "system", "content": filled["system"]}
        if asked in filled or answered not in filled:
            yield {"role": "user", "content": filled.get(asked)}
        if answered in filled:
            yield {"role": "assistant", "content": filled[answered], **rest}
    else:
        yield item


def spread(lengths: Ints, flat: pa.Array) -> tuple[pa.Array, Flags] | None:
    """Return lists of messages of pairs or objects of lists, or None if the items are neither.

    Args:
        lengths: the number of items of each row.
        flat: the items, structs.

    Returns:
        The messages of the rows that have only texts, and bool [rows], which others must be read one by one.
    """
    fields = dict(zip((part.name for part in flat.type), map(plain, flat.flatten()), strict=True))
    # Arrow gives each struct the fields of all others: fields without any value say nothing of the layout.
    names = [name for name, values in fields.items() if values.null_count < len(values)]
    columns, pair = columns_of_turns(names), pair_of(names)
    if columns and all(is_list(fields[name].type) for name in columns):
        return _columns(lengths, fields, columns)
    return _pairs(lengths, fields, pair) if pair else None


def _pairs(lengths: Ints, fields: Mapping[str, pa.Array], pair: tuple[str, str]) -> tuple[pa.Array, Flags]:
    texts = [fields[name] for name in pair]
    rest = [values for name, values in fields.items() if name not in pair]
    if not all(pa.types.is_string(text.type) for text in texts):
        return list_array(np.zeros(1, np.int64), pa.array([], _message("role", "content"))), lengths >= 0
    one_by_one = any_of(_missing(texts, rest), lengths)
    of_texts = pa.array(np.repeat(~one_by_one, lengths))
    asked, answered = (text.filter(of_texts) for text in texts)
    # Interleave: question 0, answer 0, question 1, …
    turns = np.arange(2 * len(asked)).reshape(2, -1).T.ravel()
    content = pa.concat_arrays([asked, answered]).take(pa.array(turns))
    roles = pa.array(["user", "assistant"]).take(pa.array(np.arange(len(content)) % 2))
    struct = pa.StructArray.from_arrays([roles, content], fields=list(_message("role", "content")))
    return list_array(offsets_of(2 * lengths[~one_by_one]), struct), one_by_one


def _columns(lengths: Ints, fields: Mapping[str, pa.Array], names: tuple[str, str]) -> tuple[pa.Array, Flags]:
    lists = [fields[name] for name in names]
    sizes, values = zip(*(list_values(array) for array in lists), strict=True)
    values = [plain(flat) for flat in values]
    if not all(pa.types.is_string(flat.type) for flat in values):
        return list_array(np.zeros(1, np.int64), pa.array([], _message(*names))), lengths >= 0
    rest = [array for name, array in fields.items() if name not in names]
    unfit = _missing(lists, rest) | (sizes[0] != sizes[1])
    for size, flat in zip(sizes, values, strict=True):
        unfit |= any_of(flags_of(flat.is_null()), size)
    # Several objects of lists in one row are joined by Python; Arrow takes the usual case of one.
    one_by_one = any_of(unfit, lengths) | (lengths != 1)
    of_texts = np.repeat(~one_by_one, lengths)
    flat = [texts.filter(pa.array(np.repeat(of_texts, size))) for size, texts in zip(sizes, values, strict=True)]
    struct = pa.StructArray.from_arrays(flat, fields=list(_message(*names)))
    return list_array(offsets_of(sizes[0][of_texts]), struct), one_by_one


def _missing(needed: list[pa.Array], rest: list[pa.Array]) -> Flags:
    """Return which items lack a value, or have others too."""
    unfit = np.zeros(len(needed[0]), bool)
    for values in needed:
        unfit |= flags_of(values.is_null())
    for values in rest:
        unfit |= flags_of(values.is_valid())
    return unfit


def _message(role: str, content: str) -> pa.DataType:
    return pa.struct([(role, pa.string()), (content, pa.string())])
