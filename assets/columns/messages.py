"""Conversations as messages, whatever their layout: lists of structs with any usual names, transcripts, JSON text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import MESSAGE, MESSAGES, REASONING_FIELDS
from tokenloom.assets.columns.json_text import is_message_json, parse_messages
from tokenloom.assets.columns.source import Source
from tokenloom.assets.columns.text import Flags, Problem, as_text, empty_texts, flags_of, texts_of, values_of
from tokenloom.assets.columns.tool_calls import tool_calls, tools_text
from tokenloom.assets.columns.transcripts import is_transcript, split_transcripts
from tokenloom.assets.schema.speakers import CALL_ROLES, ROLE_NAMES
from tokenloom.resources.tables.nested_paths import list_values, plain
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of, ranges, sum_rows

ROLE_FIELDS = ("role", "from", "speaker", "author", "sender")
CONTENT_FIELDS = ("content", "value", "text", "message", "utterance")
WEIGHT_FIELDS = ("weight", "loss_weight", "train")
PART_TYPES = ("text", "input_text", "output_text")
PART_FIELDS = ("text", "value", "content")


def messages_form(table: pa.Table, sources: Mapping[str, Source]) -> tuple[dict[str, pa.Array], list[Problem]]:
    """Conversations and their tools, with the conversations' problems."""
    values, problems = values_of(table, sources["messages"], "messages")
    messages, found = to_messages(values, "messages")
    problems += found
    problems.append(without_answer(messages, "messages", "no assistant message holds text or a tool call", values))
    messages, found = with_system(messages, table, sources)
    problems += found
    tools = empty_texts(table.num_rows)
    if "tools" in sources:
        found_tools, found = values_of(table, sources["tools"], "tools")
        tools, unfit = tools_text(found_tools)
        problems += [*found, Problem(unfit, "not_text", "tools", "tools are neither text nor a list", found_tools)]
    return {"messages": messages, "tools": tools}, problems


def to_messages(values: pa.Array, role: str, speaker: str | None = None) -> tuple[pa.Array, list[Problem]]:
    """Each row's value as a list of messages, of type MESSAGES and without nulls, and which rows are none.

    Args:
        role: the mapping's role, which rejects name.
        speaker: whose message a text is that is neither a transcript nor JSON; default: there is no such text.
    """
    values = plain(values)
    if pa.types.is_null(values.type):
        values = values.cast(MESSAGES)
    if pa.types.is_list(values.type):
        messages, problems = _listed(values, role, values)
    elif pa.types.is_nested(values.type):
        messages = no_messages(len(values))
        flags = flags_of(values.is_valid())
        problems = [Problem(flags, "not_messages", role, "neither a list of messages nor text", values)]
    else:
        messages, problems = _spoken(values, role, speaker)
    if speaker is None:
        lengths, _ = list_values(messages)
        given = np.zeros(len(values), bool)
        for problem in problems:
            given |= problem.flags
        problems.append(Problem((lengths == 0) & ~given, "no_messages", role, "the conversation is empty", values))
    return messages, problems


def no_messages(count: int) -> pa.Array:
    """Empty conversations."""
    return list_array(np.zeros(count + 1, np.int64), pa.array([], MESSAGE)).cast(MESSAGES)


def messages_of(role: str, content: pa.Array, present: Flags) -> pa.Array:
    """Conversations of one message each, or of none where not present."""
    said = content.filter(pa.array(present))
    columns = [pa.repeat(pa.scalar(role), len(said)), said, *(pa.nulls(len(said), field.type) for field in _rest())]
    return list_array(offsets_of(present.astype(np.int64)), pa.StructArray.from_arrays(columns, fields=list(MESSAGE)))


def join_messages(*parts: pa.Array) -> pa.Array:
    """Row by row, the messages of all parts one after the other."""
    split = [list_values(part) for part in parts]
    lengths = np.stack([length for length, _ in split], axis=1)
    bases = np.cumsum([0, *(len(flat) for _, flat in split)])[:-1]
    starts = np.stack([offsets_of(length)[:-1] + base for (length, _), base in zip(split, bases, strict=True)], axis=1)
    flat = pa.concat_arrays([flat for _, flat in split])
    return list_array(offsets_of(lengths.sum(axis=1)), flat.take(pa.array(ranges(starts.ravel(), lengths.ravel()))))


def slice_messages(messages: pa.Array, begin: Ints, length: Ints) -> pa.Array:
    """Row by row, `length` messages from the `begin`th on."""
    lengths, flat = list_values(messages)
    return list_array(offsets_of(length), flat.take(pa.array(ranges(offsets_of(lengths)[:-1] + begin, length))))


def with_system(messages: pa.Array, table: pa.Table, sources: Mapping[str, Source]) -> tuple[pa.Array, list[Problem]]:
    """The conversations, each that begins with no system message behind its row's, where the row has one."""
    if "system" not in sources:
        return messages, []
    system, problems = texts_of(table, sources["system"], "system")
    lengths, flat = list_values(messages)
    first = np.zeros(len(lengths), bool)
    if len(flat):
        is_system = flags_of(pc.equal(pc.struct_field(flat, "role"), "system"))
        first[lengths > 0] = is_system[offsets_of(lengths)[:-1][lengths > 0]]
    present = flags_of(pc.not_equal(pc.utf8_trim_whitespace(system), "")) & ~first
    return join_messages(messages_of("system", system, present), messages), problems


def without_answer(messages: pa.Array, role: str, message: str, shown: pa.Array) -> Problem:
    """The conversations without an assistant message that holds text or a tool call."""
    lengths, flat = list_values(messages)
    speaker, content, _, calls = flat.flatten()[:4]
    blank = flags_of(pc.equal(pc.utf8_trim_whitespace(content.fill_null("")), ""))
    says = flags_of(pc.equal(speaker, "assistant")) & (~blank | flags_of(calls.is_valid()))
    return Problem(~any_of(says, lengths), "empty_answer", role, message, shown)


def any_of(flags: Flags, lengths: Ints) -> Flags:
    """bool [rows]: which rows hold a flagged item."""
    return sum_rows(flags.astype(np.int64), offsets_of(lengths)) > 0


def _rest() -> list[pa.Field]:
    return [MESSAGE.field(index) for index in range(2, MESSAGE.num_fields)]


def _spoken(values: pa.Array, role: str, speaker: str | None) -> tuple[pa.Array, list[Problem]]:
    """Texts: transcripts, JSON, and single messages of the speaker."""
    text, unfit = as_text(values)
    problems = [Problem(unfit, "not_messages", role, "neither a list of messages nor text", values)]
    blank = flags_of(pc.equal(pc.utf8_trim_whitespace(text), ""))
    as_json = is_message_json(text, certain=speaker is not None) & ~blank
    told = is_transcript(text, certain=speaker is not None) & ~as_json & ~blank
    parts, places = [], []

    def add(flags: Flags, messages: pa.Array, found: list[Problem]) -> None:
        parts.append(messages)
        places.append(np.flatnonzero(flags))
        problems.extend(_spread(problem, flags, values) for problem in found)

    if as_json.any():
        parsed, invalid = parse_messages(text.filter(pa.array(as_json)))
        messages, found = _listed(parsed, role, parsed)
        message = "not a JSON list of messages like the others"
        add(as_json, messages, [Problem(invalid, "invalid_json", role, message, parsed), *found])
    if told.any():
        turns, unlike = split_transcripts(text.filter(pa.array(told)))
        messages, found = _listed(turns, role, turns)
        message = "neither JSON nor a transcript that begins with Human:, Assistant: or System:"
        add(told, messages, [Problem(unlike, "not_messages", role, message, turns), *found])
    plainly = ~as_json & ~told
    add(plainly, messages_of(speaker or "user", text.filter(pa.array(plainly)), ~blank[plainly]), [])
    order = np.empty(len(text), np.int64)
    order[np.concatenate(places)] = np.arange(len(text))
    return pa.concat_arrays([part.cast(MESSAGES) for part in parts]).take(pa.array(order)), problems


def _spread(problem: Problem, rows: Flags, shown: pa.Array) -> Problem:
    """A problem of some rows as one of all."""
    flags = np.zeros(len(rows), bool)
    flags[rows] = problem.flags
    return Problem(flags, problem.code, problem.field, problem.message, shown)


def _listed(array: pa.Array, role: str, shown: pa.Array) -> tuple[pa.Array, list[Problem]]:
    """Lists of structs under any usual field names."""
    lengths, flat = list_values(array)
    flat = plain(flat)
    if not pa.types.is_struct(flat.type):
        problem = Problem(lengths > 0, "not_messages", role, "a list, but not of messages", shown)
        return no_messages(len(array)), [problem]
    fields = dict(zip((field.name for field in flat.type), map(plain, flat.flatten()), strict=True))
    speaker = pc.utf8_lower(pc.utf8_trim_whitespace(_first(fields, ROLE_FIELDS, len(flat))))
    standard = pa.array(list(ROLE_NAMES.values())).take(pc.index_in(speaker, pa.array(list(ROLE_NAMES))))
    content, not_text = _content(fields, len(flat))
    by_role = flags_of(pc.is_in(speaker, pa.array(CALL_ROLES)))
    calls, invalid = tool_calls(fields, content, by_role)
    content = pc.if_else(pa.array(by_role), "", content)
    reasoning = _reasoning(fields, len(flat))
    alone = pc.and_(content.is_null(), pc.or_(calls.is_valid(), reasoning.is_valid()))
    content = pc.if_else(alone, "", content)
    name = _first(fields, ("name",), len(flat))
    struct = pa.StructArray.from_arrays(
        [standard, content, name, calls, _weight(fields, len(flat)), reasoning], fields=list(MESSAGE)
    )
    unknown = flags_of(standard.is_null())
    checks = [
        (unknown, "unknown_role", f"a role is none of {', '.join(ROLE_NAMES)}"),
        (invalid, "invalid_tool_call", "a tool call is no JSON object with a name and JSON arguments"),
        (not_text, "not_text", "a message holds something other than text"),
        (flags_of(content.is_null()), "missing_content", "a message has no text"),
    ]
    problems = [
        Problem(any_of(flags, lengths), code, role, message, _unknown(array, speaker, flags, lengths, code, shown))
        for flags, code, message in checks
    ]
    return list_array(offsets_of(lengths), struct).cast(MESSAGES), problems


def _unknown(array: pa.Array, speaker: pa.Array, flags: Flags, lengths: Ints, code: str, shown: pa.Array) -> pa.Array:
    """What a rejected conversation is shown as: the names of its unknown roles, or itself."""
    if code != "unknown_role" or not flags.any():
        return shown
    names = pc.fill_null(speaker, "None").filter(pa.array(flags))
    return pc.binary_join(list_array(offsets_of(sum_rows(flags.astype(np.int64), offsets_of(lengths))), names), ", ")


def _first(fields: Mapping[str, pa.Array], names: tuple[str, ...], count: int) -> pa.Array:
    """The first of the named fields that a message has, as text; null where it has none."""
    found = [fields[name] for name in names if name in fields and not pa.types.is_nested(fields[name].type)]
    return pc.coalesce(*(array.cast(pa.string()) for array in found), pa.nulls(count, pa.string()))


def _content(fields: Mapping[str, pa.Array], count: int) -> tuple[pa.Array, Flags]:
    """Each message's text, null where it has none, and which messages hold something else."""
    texts, not_text = [], np.zeros(count, bool)
    for name in CONTENT_FIELDS:
        if name in fields and pa.types.is_list(fields[name].type):
            text, other = _parts(fields[name])
            not_text |= other
            texts.append(text)
        elif name in fields and pa.types.is_nested(fields[name].type):
            not_text |= flags_of(fields[name].is_valid())
        elif name in fields:
            texts.append(fields[name].cast(pa.string()))
    return pc.coalesce(*texts, pa.nulls(count, pa.string())), not_text


def _parts(array: pa.Array) -> tuple[pa.Array, Flags]:
    """Lists of content parts as their joined texts, and which hold a part that is no text."""
    lengths, parts = list_values(array)
    parts = plain(parts)
    if pa.types.is_struct(parts.type):
        fields = dict(zip((field.name for field in parts.type), map(plain, parts.flatten()), strict=True))
        text, kind = _first(fields, PART_FIELDS, len(parts)), _first(fields, ("type",), len(parts))
        other = flags_of(pc.invert(pc.is_in(kind, pa.array([*PART_TYPES, None])))) | flags_of(text.is_null())
    elif pa.types.is_string(parts.type):
        text, other = parts, flags_of(parts.is_null())
    else:
        text, other = pa.nulls(len(parts), pa.string()), np.ones(len(parts), bool)
    joined = pc.binary_join(list_array(offsets_of(lengths), text.fill_null("")), "")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string())), any_of(other, lengths)


def _reasoning(fields: Mapping[str, pa.Array], count: int) -> pa.Array:
    """What each message says was thought before it, null where it has none; other types than text are no such thing."""
    found = [fields[name] for name in REASONING_FIELDS if name in fields and pa.types.is_string(fields[name].type)]
    return pc.coalesce(*found, pa.nulls(count, pa.string()))


def _weight(fields: Mapping[str, pa.Array], count: int) -> pa.Array:
    """float32: what the message says that its tokens count, else null."""
    found = [fields[name] for name in WEIGHT_FIELDS if name in fields]
    numbers = [
        array.cast(pa.float32(), safe=False)
        for array in found
        if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    ]
    return pc.coalesce(*numbers, pa.nulls(count, pa.float32()))
