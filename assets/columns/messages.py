"""Converts conversations in any usual layout to messages: lists of structs, JSON, transcripts, and plain texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.message_objects import CONTENT_FIELDS, ROLE_FIELDS, ReadMessage, Unfit, conversation
from tokenloom.assets.columns.source_expressions import RowReader, as_text
from tokenloom.assets.schema.profiles import CALL_ROLES, ROLE_NAMES, columns_of_turns, pair_of
from tokenloom.assets.stage.forms import MESSAGE, MESSAGES
from tokenloom.assets.stage.rejects import RowProblem, is_blank
from tokenloom.config.trained_kinds import MESSAGE_ROLES
from tokenloom.resources.tables.json_text import is_json, json_texts, read_json_value
from tokenloom.resources.tables.json_values import LIST, NULL, OBJECT, TEXT, kinds_of, read_values, typed
from tokenloom.resources.tables.nested_paths import is_list, list_values, plain, without_null_fields
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    any_of,
    flags_of,
    list_array,
    offsets_of,
    ranges,
    text_array,
    text_parts,
)
from tokenloom.resources.tables.stored_texts import text_in

_GAP = b"\n\n"
_SPEAKERS = {b"Human:": "user", b"Assistant:": "assistant", b"System:": "system"}
_CERTAIN = r"(?s)^\s*(?:Human|System):.*\n\nAssistant:"


def is_transcript(text: pa.Array, certain: bool) -> Flags:
    """Return which texts are transcripts.

    Args:
        certain: whether to require a human or system turn at the start and an assistant turn after it; if not, all
            texts count as transcripts.
    """
    return flags_of(pc.match_substring_regex(text, _CERTAIN)) if certain else np.ones(len(text), bool)


def split_transcripts(text: pa.Array) -> tuple[pa.Array, Flags]:
    """Split each transcript into its turns.

    A turn starts with a speaker's name at the start of the text or after a blank line; a system turn only at the start.

    Returns:
        Lists of {role, content}, with the content trimmed, and bool [texts], which are not transcripts.
    """
    # A blank line before each text lets one rule find all turns: a speaker's name after a gap.
    offsets, data = text_parts(pc.binary_join_element_wise("\n\n", pc.utf8_ltrim_whitespace(text), ""))
    gaps = np.flatnonzero((data[:-1] == _GAP[0]) & (data[1:] == _GAP[1]))
    row = np.searchsorted(offsets, gaps, side="right") - 1
    # Names are compared as rows of bytes, which must not run past the end of the data.
    padded = np.append(data, np.zeros(16, np.uint8))
    speaker, starts = np.full(len(gaps), -1), np.zeros(len(gaps), np.int64)
    for index, name in enumerate(_SPEAKERS):
        name_start = gaps + len(_GAP)
        same = (padded[name_start[:, None] + np.arange(len(name))] == np.frombuffer(name, np.uint8)).all(axis=1)
        same &= name_start + len(name) <= offsets[row + 1]
        # A system turn in the middle is more likely something that is quoted.
        if name == b"System:":
            same &= gaps == offsets[row]
        speaker[same] = index
        starts[same] = name_start[same] + len(name)
    turns = speaker >= 0
    gaps, row, speaker, starts = gaps[turns], row[turns], speaker[turns], starts[turns]
    is_transcript = np.zeros(len(text), bool)
    is_transcript[row[gaps == offsets[row]]] = True
    in_transcript = is_transcript[row]
    gaps, row, speaker, starts = gaps[in_transcript], row[in_transcript], speaker[in_transcript], starts[in_transcript]
    ends = np.append(gaps[1:], 0)
    is_last = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, bool)
    ends = np.where(is_last, offsets[row + 1], ends[: len(gaps)])
    content = text_array(offsets_of(ends - starts), data[ranges(starts, ends - starts)])
    roles = pa.array(list(_SPEAKERS.values())).take(pa.array(speaker))
    struct = pa.StructArray.from_arrays([roles, pc.utf8_trim_whitespace(content)], ["role", "content"])
    count = np.bincount(row, minlength=len(text)).astype(np.int64)
    return list_array(offsets_of(count), struct), ~is_transcript


FIELD_PAIRS = (("role", "content"), ("from", "value"))
"""Names of the fields of messages that are read without Python."""

_MESSAGES = [pa.struct([(name, pa.string()) for name in layout]) for layout in FIELD_PAIRS]
_LIST = r"^\s*(?:\[|\{\s*\"(?:role|content|from|value)\"\s*:\s*\[)"
_LIST_OF_MESSAGES = r"""^\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:"""
_ROLE = r'"(?:role|from)"\s*:\s*"(?:system|user|human|assistant|gpt|model|tool)"'
_SAID = r'"(?:content|value)"\s*:'
_ONE_MESSAGE = rf"(?s)^\s*\{{\s*(?:{_ROLE}\s*,\s*{_SAID}.*|{_SAID}.*,\s*{_ROLE}\s*)\}}\s*$"
_AROUND_LIST = r'^\s*\{\s*"(?:messages|conversations?)"\s*:\s*\[\s*\{\s*"(?:role|content|from|value)"\s*:'
_TURNS = re.compile(r'\s*\[\s*\{\s*"(?:[^"\\]*"\s*:\s*\[|(?!role"|content"|from"|value")[^"\\]+"\s*:)')


def is_message_json(text: pa.Array, certain: bool) -> Flags:
    """Return which texts start like a JSON list.

    Args:
        certain: whether to require the start of a list of messages.
    """
    return flags_of(pc.match_substring_regex(text, _LIST_OF_MESSAGES if certain else _LIST))


def read_plain(text: pa.Array) -> pa.Array | None:
    """Parse texts that are JSON lists of messages, {role, content} or {from, value}, in one pass of pyarrow's reader.

    Returns:
        The lists with texts or nulls as fields; None if a text is not a list of objects that have at most these fields,
        each once, with texts or nulls as values.
    """
    for item in (*_MESSAGES, *_turns_of_first(text)):
        kind = pa.list_(item)
        try:
            lists = read_values(text, kind, closed=True)  # refuses what is deeper than the type before it recurses
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        lists.validate(full=True)
        return lists
    return None


def _turns_of_first(text: pa.Array) -> Iterator[pa.DataType]:
    """Yield the type of the objects in the first text if they are pairs of turns or objects of lists."""
    first = text[0].as_py() if len(text) else None
    if first is None or not _TURNS.match(first):
        return
    value = _value(first)
    item = value[0] if isinstance(value, list) and value else None
    names = pair_of(item) or columns_of_turns(item) if isinstance(item, dict) else None
    if isinstance(item, dict) and names:
        kind = pa.string() if pair_of(item) else pa.list_(pa.string())
        yield pa.struct([(name, kind) for name in item if name in names])


def parse(texts: Sequence[str]) -> list[Any]:
    """Return the value of each JSON text, or `Unfit` in its place."""
    return [_value(text) for text in texts]


def _value(text: str) -> Any:
    try:
        return read_json_value(text)
    except ValueError as error:
        return Unfit("invalid_json", f"not valid JSON: {error}")


ONE_BY_ONE = 256
"""Number of JSON texts, some of which are not plain, that are read one by one instead of dividing them further."""


def to_messages(values: pa.Array, role: str, speaker: str | None = None) -> tuple[pa.Array, list[RowProblem]]:
    """Convert each row's value to a list of messages.

    Args:
        values: lists of messages, single messages, or texts, as Arrow types or as a JSON column.
        role: the mapping's role, for rejects.
        speaker: the role of text that is neither a transcript nor JSON; default: such text is a problem.

    Returns:
        An array of type MESSAGES without nulls, and the rows that cannot be converted.
    """
    values = plain(values)
    if is_json(values.type):
        messages, problems = _from_json(json_texts(values), role, speaker)
    elif pa.types.is_list(values.type):
        messages, problems = _from_lists(values, role, values)
    elif pa.types.is_struct(values.type):
        messages, problems = _from_lists(_as_lists(values), role, values)
    elif pa.types.is_null(values.type):
        messages, problems = no_messages(len(values)), []
    else:
        messages, problems = _from_texts(values, role, speaker)
    if speaker is None:
        lengths, _ = list_values(messages)
        rejected = np.zeros(len(values), bool)
        for problem in problems:
            rejected |= problem.flags
        problems.append(
            RowProblem((lengths == 0) & ~rejected, "no_messages", role, "the conversation is empty", values)
        )
    return messages, problems


def struct_of(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return messages with these columns; the others are null."""
    arrays = [columns[part.name] if part.name in columns else pa.nulls(count, part.type) for part in MESSAGE]
    return pa.StructArray.from_arrays(arrays, fields=list(MESSAGE))


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
    struct = struct_of({"role": pa.repeat(pa.scalar(role), len(text)), "content": text}, len(text))
    return list_array(offsets_of(present.astype(np.int64)), struct)


def join_messages(*parts: pa.Array) -> pa.Array:
    """Concatenate conversations row by row."""
    split = [list_values(part) for part in parts]
    lengths = np.stack([length for length, _ in split], axis=1)
    # All parts become one array of messages, of which each row takes a range from every part.
    bases = np.cumsum([0, *(len(flat) for _, flat in split)])[:-1]
    starts = np.stack([offsets_of(length)[:-1] + base for (length, _), base in zip(split, bases, strict=True)], axis=1)
    flat = pa.concat_arrays([flat for _, flat in split])
    return list_array(offsets_of(lengths.sum(axis=1)), flat.take(pa.array(ranges(starts.ravel(), lengths.ravel()))))


def slice_messages(messages: pa.Array, start: Ints, length: Ints) -> pa.Array:
    """Return `length` messages of each row from `start` on; both int64 [rows]."""
    lengths, flat = list_values(messages)
    return list_array(offsets_of(length), flat.take(pa.array(ranges(offsets_of(lengths)[:-1] + start, length))))


def end_messages(messages: pa.Array, index: int) -> pa.Array:
    """Return each row's first (0) or last (-1) message; null for rows without messages."""
    lengths, flat = list_values(messages)
    offsets = offsets_of(lengths)
    return flat.take(pa.array(offsets[:-1] if index == 0 else offsets[1:] - 1, mask=lengths == 0))


def with_first(conversations: pa.Array, rows: Flags, **values: pa.Array) -> pa.Array:
    """Replace columns of the first message in some conversations; values are [rows]."""
    lengths, flat = list_values(conversations)
    places = np.zeros(len(flat), bool)
    places[offsets_of(lengths)[:-1][rows]] = True
    first = {
        name: pc.replace_with_mask(pc.struct_field(flat, name), pa.array(places), column.filter(pa.array(rows)))
        for name, column in values.items()
    }
    return with_columns(conversations, **first)


def with_columns(conversations: pa.Array, **columns: pa.Array) -> pa.Array:
    """Replace columns of the messages in all conversations; columns are [messages]."""
    lengths, flat = list_values(conversations)
    arrays = dict(zip(flat.type.names, flat.flatten(), strict=True)) | columns
    changed = pa.StructArray.from_arrays([*arrays.values()], fields=[*flat.type])
    return list_array(offsets_of(lengths), changed).cast(conversations.type)


def with_system(messages: pa.Array, rows: RowReader) -> pa.Array:
    """Put the row's system prompt, if any, before each conversation that does not start with a system message."""
    if "system" not in rows.sources:
        return messages
    system = rows.texts("system")
    is_first = flags_of(pc.equal(pc.struct_field(end_messages(messages, 0), "role"), "system"))
    return join_messages(messages_of("system", system, ~is_blank(system) & ~is_first), messages)


@dataclass
class _Collected:
    """Collects the conversations of different conversions, each of some of the rows, in the order of the rows."""

    rows: list[Ints] = field(default_factory=list)
    parts: list[pa.Array] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)

    def add(self, flags: Flags, messages: pa.Array, problems: Iterable[RowProblem] = ()) -> None:
        """Add the conversations of the flagged rows, and their problems."""
        if not flags.any():
            return
        self.rows.append(np.flatnonzero(flags))
        self.parts.append(messages.cast(MESSAGES))
        for problem in problems:
            within = np.zeros(len(flags), bool)
            within[flags] = problem.flags
            place = pa.array(np.cumsum(flags) - 1, mask=~flags)
            among_all = RowProblem(within, problem.code, problem.field, problem.message, problem.shown.take(place))
            self.problems += [among_all] if within.any() else []

    def messages(self, count: int) -> pa.Array:
        if len(self.parts) < 2:
            return self.parts[0] if self.parts else no_messages(count)
        # The conversions took rows out of order; this puts them back with one gather.
        order = np.empty(count, np.int64)
        order[np.concatenate(self.rows)] = np.arange(count)
        return pa.concat_arrays(self.parts).take(pa.array(order))


def _from_json(values: pa.Array, role: str, speaker: str | None) -> tuple[pa.Array, list[RowProblem]]:
    """Convert the values of a JSON column: lists of messages, single messages, and texts."""
    kinds, collected = kinds_of(values), _Collected()
    objects = np.isin(kinds, (LIST, OBJECT))
    if objects.any():
        texts = _in_brackets(_filtered(values, objects), kinds[objects] == OBJECT)
        collected.add(objects, *_from_json_lists(texts, role))
    for chosen in (kinds == TEXT, ~(objects | np.isin(kinds, (TEXT, NULL)))):
        if chosen.any():
            texts = _filtered(values, chosen)
            is_text = kinds[chosen][0] == TEXT
            texts = typed(texts) if is_text else pa.array([str(value) for value in parse(texts.to_pylist())])
            collected.add(chosen, *_from_texts(texts, role, speaker))
    collected.add(kinds == NULL, no_messages(int((kinds == NULL).sum())))
    return collected.messages(len(values)), collected.problems


def _filtered(values: pa.Array, flags: Flags) -> pa.Array:
    return values if flags.all() else values.filter(pa.array(flags))


def _in_brackets(texts: pa.Array, flags: Flags) -> pa.Array:
    """Return JSON texts, the flagged ones, single messages, as lists of one."""
    in_brackets = pc.binary_join_element_wise("[", texts, "]", "") if flags.any() else texts
    return pc.if_else(pa.array(flags), in_brackets, texts)


def _from_texts(values: pa.Array, role: str, speaker: str | None) -> tuple[pa.Array, list[RowProblem]]:
    """Convert text: JSON, transcripts, and single messages of the speaker."""
    text, not_text = as_text(values)
    collected = _Collected()
    collected.problems.append(RowProblem(not_text, "not_messages", role, "neither a list of messages nor text", values))
    blank = is_blank(text)
    around = flags_of(pc.match_substring_regex(text, _AROUND_LIST))
    message = "the JSON text of an object that holds a list of messages; write the list itself"
    collected.problems.append(RowProblem(around, "not_messages", role, message, text))
    is_message = flags_of(pc.match_substring_regex(text, _ONE_MESSAGE))
    text = _in_brackets(text, is_message)
    is_lists = (is_message_json(text, certain=speaker is not None) | is_message) & ~blank
    is_turns = is_transcript(text, certain=speaker is not None) & ~is_lists & ~blank
    if is_lists.any():
        collected.add(is_lists, *_from_json_lists(_filtered(text, is_lists), role))
    if is_turns.any():
        shown = _filtered(text, is_turns)
        turns, invalid = split_transcripts(shown)
        messages, unfit = _from_lists(turns, role, turns)
        message = "neither JSON nor a transcript that starts with Human:, Assistant: or System:"
        collected.add(is_turns, messages, [RowProblem(invalid, "not_messages", role, message, shown), *unfit])
    is_plain = ~is_lists & ~is_turns
    collected.add(is_plain, messages_of(speaker or "user", _filtered(text, is_plain), ~blank[is_plain]))
    return collected.messages(len(text)), collected.problems


def _from_json_lists(text: pa.Array, role: str) -> tuple[pa.Array, list[RowProblem]]:
    """Convert JSON texts of lists: by pyarrow's reader where all messages are plain, else one by one."""
    lists = read_plain(text)
    if lists is not None:
        return _from_lists(lists, role, text)
    # Few texts are usually not plain: halving finds them, and pyarrow's reader takes all others.
    if len(text) <= ONE_BY_ONE:
        return _from_objects(parse(text.to_pylist()), role, text)
    collected, first = _Collected(), np.arange(len(text)) < len(text) // 2
    for half in (first, ~first):
        collected.add(half, *_from_json_lists(text.filter(pa.array(half)), role))
    return collected.messages(len(text)), collected.problems


def _from_lists(lists: pa.Array, role: str, shown: pa.Array) -> tuple[pa.Array, list[RowProblem]]:
    """Convert lists of structs: by Arrow where all messages have only a role and a text, else one by one."""
    lengths, flat = list_values(lists)
    flat = plain(flat)
    if not pa.types.is_struct(flat.type):
        problem = RowProblem(lengths > 0, "not_messages", role, "a list, but not of messages", shown)
        return no_messages(len(lists)), [problem]
    collected = _Collected()
    if (turns := _spread(lengths, flat)) is not None:
        by_arrow, one_by_one = pa.array(~turns[1]), pa.array(turns[1])
        collected.add(~turns[1], *_from_lists(turns[0], role, shown.filter(by_arrow)))
        objects = lists.filter(one_by_one).to_pylist()
        collected.add(turns[1], *_from_objects(objects, role, shown.filter(one_by_one)))
        return collected.messages(len(lists)), collected.problems
    columns, is_plain = _plain_columns(flat)
    one_by_one = any_of(~is_plain, lengths)
    if not one_by_one.any():
        return list_array(offsets_of(lengths), struct_of(columns, len(flat))).cast(MESSAGES), []
    by_arrow = np.repeat(~one_by_one, lengths)
    by_name = {name: column.filter(pa.array(by_arrow)) for name, column in columns.items()}
    offsets = offsets_of(lengths[~one_by_one])
    collected.add(~one_by_one, list_array(offsets, struct_of(by_name, int(offsets[-1]))))
    objects = without_null_fields(lists.filter(pa.array(one_by_one)))
    collected.add(one_by_one, *_from_objects(objects, role, shown.filter(pa.array(one_by_one))))
    return collected.messages(len(lists)), collected.problems


def _spread(lengths: Ints, flat: pa.Array) -> tuple[pa.Array, Flags] | None:
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


def _plain_columns(flat: pa.Array) -> tuple[dict[str, pa.Array], Flags]:
    """Return the columns of messages with only a role and a text, and which messages are so.

    The columns of the other messages are meaningless.
    """
    fields = dict(zip((part.name for part in flat.type), map(plain, flat.flatten()), strict=True))
    speaks, said = (next((name for name in names if name in fields), "") for names in (ROLE_FIELDS, CONTENT_FIELDS))
    none = np.zeros(len(flat), bool)
    if not all(name in fields and pa.types.is_string(fields[name].type) for name in (speaks, said)):
        return {}, none
    role, content = fields.pop(speaks), fields.pop(said)
    names = {name: name for name in MESSAGE_ROLES} if speaks == "role" else ROLE_NAMES
    # The content of these speakers is a call, which only Python reads.
    known = pa.array([name for name in names if name not in CALL_ROLES])
    index = pc.index_in(role if speaks == "role" else pc.utf8_lower(pc.utf8_trim_whitespace(role)), known)
    is_plain = flags_of(index.is_valid()) & flags_of(content.is_valid())
    for other in fields.values():
        is_plain &= ~flags_of(other.is_valid())
    roles = pa.array([names[name] for name in known.to_pylist()]).take(index)
    return {"role": roles, "content": content}, is_plain


def _from_objects(values: Sequence[Any], role: str, shown: pa.Array) -> tuple[pa.Array, list[RowProblem]]:
    """Convert conversations as Python reads them; an `Unfit` among them is the reason why one could not be read."""
    values = text_in(values) if "binary" in str(shown.type) else values
    rows: list[list[ReadMessage]] = []
    unfit: dict[tuple[str, str], dict[int, str | None]] = {}
    for index, value in enumerate(values):
        try:
            if isinstance(value, Unfit):
                raise value
            rows.append(conversation(value or []))
        except Unfit as reason:
            rows.append([])
            unfit.setdefault((reason.code, str(reason)), {})[index] = reason.shown
    problems = []
    for (code, message), found in unfit.items():
        flags = np.zeros(len(rows), bool)
        flags[list(found)] = True
        quoted = [found.get(index) for index in range(len(rows))]
        problems.append(RowProblem(flags, code, role, message, pa.array(quoted) if any(quoted) else shown))
    columns = list(zip(*(message for row in rows for message in row), strict=True))
    arrays = [pa.array(column, part.type) for column, part in zip(columns, MESSAGE, strict=False)]
    flat = pa.StructArray.from_arrays(arrays, fields=list(MESSAGE)) if arrays else pa.array([], MESSAGE)
    return list_array(offsets_of(np.array([len(row) for row in rows], np.int64)), flat).cast(MESSAGES), problems


def _as_lists(structs: pa.Array) -> pa.Array:
    valid = flags_of(structs.is_valid())
    return list_array(offsets_of(valid.astype(np.int64)), structs.filter(pa.array(valid)))
