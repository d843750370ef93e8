"""Converts conversations in any usual layout to messages: lists of structs, transcripts, and JSON text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import MESSAGE, MESSAGES, REASONING_FIELDS
from tokenloom.assets.columns.json_conversations import is_message_json, parse_messages
from tokenloom.assets.columns.rejected_rows import Problem, empty_answer, is_blank
from tokenloom.assets.columns.source_expressions import Source
from tokenloom.assets.columns.text_values import as_text, empty_texts, texts_of, values_of
from tokenloom.assets.columns.tool_calls import tool_calls, tools_text
from tokenloom.assets.columns.transcripts import is_transcript, split_transcripts
from tokenloom.assets.schema.speakers import CALL_ROLES, ROLE_NAMES
from tokenloom.resources.tables.flags import Flags, any_of, flags_of
from tokenloom.resources.tables.nested_paths import list_values, plain
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of, ranges, sum_rows

ROLE_FIELDS = ("role", "from", "speaker", "author", "sender")
CONTENT_FIELDS = ("content", "value", "text", "message", "utterance")
WEIGHT_FIELDS = ("weight", "loss_weight", "train")
PART_TYPES = ("text", "input_text", "output_text")
PART_FIELDS = ("text", "value", "content")


def messages_form(table: pa.Table, sources: Mapping[str, Source]) -> tuple[dict[str, pa.Array], list[Problem]]:
    """Return the form `messages`: conversations and their tools, and the rows that do not fit."""
    values, problems = values_of(table, sources["messages"], "messages")
    messages, unfit = to_messages(values, "messages")
    problems += unfit
    problems.append(empty_answer(messages, "messages", "no assistant message holds text or a tool call", values))
    messages, unfit = with_system(messages, table, sources)
    problems += unfit
    tools = empty_texts(table.num_rows)
    if "tools" in sources:
        tool_values, unfit = values_of(table, sources["tools"], "tools")
        tools, not_text = tools_text(tool_values)
        problems += [*unfit, Problem(not_text, "not_text", "tools", "tools are neither text nor a list", tool_values)]
    return {"messages": messages, "tools": tools}, problems


def to_messages(values: pa.Array, role: str, speaker: str | None = None) -> tuple[pa.Array, list[Problem]]:
    """Convert each row's value to a list of messages.

    Args:
        role: the mapping's role, for rejects.
        speaker: the role of text that is neither a transcript nor JSON; default: such text is a problem.

    Returns:
        An array of type MESSAGES without nulls, and the rows that cannot be converted.
    """
    values = plain(values)
    if pa.types.is_null(values.type):
        values = values.cast(MESSAGES)
    if pa.types.is_list(values.type):
        messages, problems = _from_lists(values, role, values)
    elif pa.types.is_nested(values.type):
        messages = no_messages(len(values))
        flags = flags_of(values.is_valid())
        problems = [Problem(flags, "not_messages", role, "neither a list of messages nor text", values)]
    else:
        messages, problems = _from_texts(values, role, speaker)
    if speaker is None:
        lengths, _ = list_values(messages)
        rejected = np.zeros(len(values), bool)
        for problem in problems:
            rejected |= problem.flags
        problems.append(Problem((lengths == 0) & ~rejected, "no_messages", role, "the conversation is empty", values))
    return messages, problems


def no_messages(count: int) -> pa.Array:
    """Return `count` empty conversations."""
    return list_array(np.zeros(count + 1, np.int64), pa.array([], MESSAGE)).cast(MESSAGES)


def messages_of(role: str, content: pa.Array, present: Flags) -> pa.Array:
    """Return conversations of one message each, or of none if not present.

    Args:
        content: the text of each row's message.
        present: bool [rows]: which rows have the message.
    """
    text = content.filter(pa.array(present))
    optional = [MESSAGE.field(index) for index in range(2, MESSAGE.num_fields)]
    columns = [pa.repeat(pa.scalar(role), len(text)), text, *(pa.nulls(len(text), field.type) for field in optional)]
    return list_array(offsets_of(present.astype(np.int64)), pa.StructArray.from_arrays(columns, fields=list(MESSAGE)))


def join_messages(*parts: pa.Array) -> pa.Array:
    """Concatenate conversations row by row."""
    split = [list_values(part) for part in parts]
    lengths = np.stack([length for length, _ in split], axis=1)
    bases = np.cumsum([0, *(len(flat) for _, flat in split)])[:-1]
    starts = np.stack([offsets_of(length)[:-1] + base for (length, _), base in zip(split, bases, strict=True)], axis=1)
    flat = pa.concat_arrays([flat for _, flat in split])
    return list_array(offsets_of(lengths.sum(axis=1)), flat.take(pa.array(ranges(starts.ravel(), lengths.ravel()))))


def slice_messages(messages: pa.Array, start: Ints, length: Ints) -> pa.Array:
    """Return `length` messages of each row from `start` on; both int64 [rows]."""
    lengths, flat = list_values(messages)
    return list_array(offsets_of(length), flat.take(pa.array(ranges(offsets_of(lengths)[:-1] + start, length))))


def with_system(messages: pa.Array, table: pa.Table, sources: Mapping[str, Source]) -> tuple[pa.Array, list[Problem]]:
    """Put the row's system prompt, if any, before each conversation that does not start with a system message."""
    if "system" not in sources:
        return messages, []
    system, problems = texts_of(table, sources["system"], "system")
    lengths, flat = list_values(messages)
    first = np.zeros(len(lengths), bool)
    if len(flat):
        is_system = flags_of(pc.equal(pc.struct_field(flat, "role"), "system"))
        first[lengths > 0] = is_system[offsets_of(lengths)[:-1][lengths > 0]]
    present = ~is_blank(system) & ~first
    return join_messages(messages_of("system", system, present), messages), problems


def _from_texts(values: pa.Array, role: str, speaker: str | None) -> tuple[pa.Array, list[Problem]]:
    """Convert text: JSON, transcripts, and single messages of the speaker."""
    text, not_text = as_text(values)
    problems = [Problem(not_text, "not_messages", role, "neither a list of messages nor text", values)]
    blank = is_blank(text)
    is_json = is_message_json(text, certain=speaker is not None) & ~blank
    is_turns = is_transcript(text, certain=speaker is not None) & ~is_json & ~blank
    parts, rows = [], []

    def add(flags: Flags, messages: pa.Array, unfit: list[Problem]) -> None:
        parts.append(messages)
        rows.append(np.flatnonzero(flags))
        problems.extend(_of_all_rows(problem, flags, values) for problem in unfit)

    if is_json.any():
        parsed, invalid = parse_messages(text.filter(pa.array(is_json)))
        messages, unfit = _from_lists(parsed, role, parsed)
        message = "not a JSON list of messages with the same types as the others"
        add(is_json, messages, [Problem(invalid, "invalid_json", role, message, parsed), *unfit])
    if is_turns.any():
        turns, invalid = split_transcripts(text.filter(pa.array(is_turns)))
        messages, unfit = _from_lists(turns, role, turns)
        message = "neither JSON nor a transcript that starts with Human:, Assistant: or System:"
        add(is_turns, messages, [Problem(invalid, "not_messages", role, message, turns), *unfit])
    is_plain = ~is_json & ~is_turns
    add(is_plain, messages_of(speaker or "user", text.filter(pa.array(is_plain)), ~blank[is_plain]), [])
    order = np.empty(len(text), np.int64)
    order[np.concatenate(rows)] = np.arange(len(text))
    return pa.concat_arrays([part.cast(MESSAGES) for part in parts]).take(pa.array(order)), problems


def _of_all_rows(problem: Problem, rows: Flags, shown: pa.Array) -> Problem:
    """Return a problem of some rows as a problem of all rows."""
    flags = np.zeros(len(rows), bool)
    flags[rows] = problem.flags
    return Problem(flags, problem.code, problem.field, problem.message, shown)


def _from_lists(array: pa.Array, role: str, shown: pa.Array) -> tuple[pa.Array, list[Problem]]:
    """Convert lists of structs with any usual field names."""
    lengths, flat = list_values(array)
    flat = plain(flat)
    if not pa.types.is_struct(flat.type):
        problem = Problem(lengths > 0, "not_messages", role, "a list, but not of messages", shown)
        return no_messages(len(array)), [problem]
    fields = _fields_of(flat)
    speaker = pc.utf8_lower(pc.utf8_trim_whitespace(_first_field(fields, ROLE_FIELDS, len(flat))))
    standard = pa.array(list(ROLE_NAMES.values())).take(pc.index_in(speaker, pa.array(list(ROLE_NAMES))))
    content, not_text = _content(fields, len(flat))
    by_role = flags_of(pc.is_in(speaker, pa.array(CALL_ROLES)))
    calls, invalid = tool_calls(fields, content, by_role)
    content = pc.if_else(pa.array(by_role), "", content)
    reasoning = _reasoning(fields, len(flat))
    alone = pc.and_(content.is_null(), pc.or_(calls.is_valid(), reasoning.is_valid()))
    content = pc.if_else(alone, "", content)
    name = _first_field(fields, ("name",), len(flat))
    struct = pa.StructArray.from_arrays(
        [standard, content, name, calls, _weight(fields, len(flat)), reasoning], fields=list(MESSAGE)
    )
    unknown = flags_of(standard.is_null())
    names = _unknown_names(speaker, unknown, lengths) if unknown.any() else shown
    checks = [
        (unknown, "unknown_role", f"a role is not one of {', '.join(ROLE_NAMES)}"),
        (invalid, "invalid_tool_call", "a tool call is not a JSON object with a name and JSON arguments"),
        (not_text, "not_text", "the content of a message is not text"),
        (flags_of(content.is_null()), "missing_content", "a message has no text"),
    ]
    problems = [
        Problem(any_of(flags, lengths), code, role, message, shown if code != "unknown_role" else names)
        for flags, code, message in checks
    ]
    return list_array(offsets_of(lengths), struct).cast(MESSAGES), problems


def _unknown_names(speaker: pa.Array, unknown: Flags, lengths: Ints) -> pa.Array:
    """Return the unknown role names of each conversation as text."""
    names = pc.fill_null(speaker, "None").filter(pa.array(unknown))
    counts = sum_rows(unknown.astype(np.int64), offsets_of(lengths))
    return pc.binary_join(list_array(offsets_of(counts), names), ", ")


def _fields_of(structs: pa.Array) -> dict[str, pa.Array]:
    """Return the fields of structs by name, each in Arrow's ordinary layout."""
    return dict(zip((field.name for field in structs.type), map(plain, structs.flatten()), strict=True))


def _first_field(fields: Mapping[str, pa.Array], names: tuple[str, ...], count: int) -> pa.Array:
    """Return the first of the named fields that each message has, as text; null if it has none."""
    arrays = [fields[name] for name in names if name in fields and not pa.types.is_nested(fields[name].type)]
    return pc.coalesce(*(array.cast(pa.string()) for array in arrays), pa.nulls(count, pa.string()))


def _content(fields: Mapping[str, pa.Array], count: int) -> tuple[pa.Array, Flags]:
    """Return each message's text, null if it has none, and which messages have content other than text."""
    texts, not_text = [], np.zeros(count, bool)
    for name in CONTENT_FIELDS:
        if name in fields and pa.types.is_list(fields[name].type):
            text, other = _joined_parts(fields[name])
            not_text |= other
            texts.append(text)
        elif name in fields and pa.types.is_nested(fields[name].type):
            not_text |= flags_of(fields[name].is_valid())
        elif name in fields:
            texts.append(fields[name].cast(pa.string()))
    return pc.coalesce(*texts, pa.nulls(count, pa.string())), not_text


def _joined_parts(array: pa.Array) -> tuple[pa.Array, Flags]:
    """Return the joined text of lists of content parts, and which lists have a part that is not text."""
    lengths, parts = list_values(array)
    parts = plain(parts)
    if pa.types.is_struct(parts.type):
        fields = _fields_of(parts)
        text, kind = _first_field(fields, PART_FIELDS, len(parts)), _first_field(fields, ("type",), len(parts))
        other = flags_of(pc.invert(pc.is_in(kind, pa.array([*PART_TYPES, None])))) | flags_of(text.is_null())
    elif pa.types.is_string(parts.type):
        text, other = parts, flags_of(parts.is_null())
    else:
        text, other = pa.nulls(len(parts), pa.string()), np.ones(len(parts), bool)
    joined = pc.binary_join(list_array(offsets_of(lengths), text.fill_null("")), "")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string())), any_of(other, lengths)


def _reasoning(fields: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return the reasoning before each message, null if it has none; fields that are not text are ignored."""
    texts = [fields[name] for name in REASONING_FIELDS if name in fields and pa.types.is_string(fields[name].type)]
    return pc.coalesce(*texts, pa.nulls(count, pa.string()))


def _weight(fields: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return the loss weight that each message declares, float32, null if it declares none."""
    numbers = [
        array.cast(pa.float32(), safe=False)
        for array in (fields[name] for name in WEIGHT_FIELDS if name in fields)
        if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    ]
    return pc.coalesce(*numbers, pa.nulls(count, pa.float32()))
