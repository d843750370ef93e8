"""Finds what of a message a chat template reads, and in which form."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.content_parts import blank_parts, filled
from tokenloom.assets.prompts.conversations import Conversations, Message, Turn
from tokenloom.assets.prompts.outline import mark
from tokenloom.assets.prompts.spans import CLOSE, OPEN, flat_spans, inline_parts
from tokenloom.assets.prompts.text_ranges import WeightedRange, shifted
from tokenloom.assets.schema.evidence.profiles import words
from tokenloom.assets.schema.evidence.training_flags import KNOWN, has_text, is_unknown, kind_of
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import MESSAGES, REASONING_FIELDS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import count_rows
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.json_text import to_json_text
from tokenloom.resources.tables.ragged import Ints, list_parts, one_array, sum_rows
from tokenloom.resources.templates.jinja import MARK_CLOSE, MARK_OPEN

if TYPE_CHECKING:
    from tokenloom.assets.prompts.exact import ShapeFormat

Write = Callable[[Sequence[Message]], str]
"""Renders messages; raises `TemplateError` if the template refuses them."""

Kind = tuple[str, str | None]
"""A role, and the kind of its contents."""


def readable(group: Conversations, known_roles: Collection[str], write: Write) -> Conversations:
    """Return conversations with each message in the form in which the template reads it.

    A message gets the source's own name for its role if the template compares roles with it. A content that is not text
    is given as in the source if the template writes it; else, and if the template prints a list of parts instead of
    reading the parts, as its text.

    Args:
        known_roles: the roles that the template compares with.
        write: renders messages; raises `TemplateError` if the template refuses them.
    """
    group = replace(group, turns=tuple(_spoken(turn, known_roles) for turn in group.turns))
    kinds = {turn.content_kind for turn in group.turns} - {None}
    if not kinds or any(turn.problem for turn in group.turns):
        return group
    as_in_source = _as_text(group, set())
    unread = _unread(as_in_source, write)
    if unread is not None:
        return _concatenated(_as_text(group, unread), write)
    every = {(turn.role, turn.content_kind) for turn in group.turns if turn.content_kind}
    plainly = set(every)
    for kind in sorted(every):
        if _unread(_as_text(group, plainly - {kind}), write) == set():
            plainly.remove(kind)
    return _concatenated(_as_text(group, plainly), write)


def _spoken(turn: Turn, known_roles: Collection[str]) -> Turn:
    """Return a message with the source's own name for its role, if the template knows that name."""
    name = turn.spoken or (turn.fields or {}).get("role")
    return replace(turn, spoken=name, problem=None) if name in known_roles else turn


def _as_text(group: Conversations, kinds: Collection[Kind]) -> Conversations:
    """Give the template the contents of some roles and kinds as text, and the others as in the source."""
    turns = tuple(replace(turn, as_text=(turn.role, turn.content_kind) in kinds) for turn in group.turns)
    values, empty = list(group.values), list(group.empty)
    for index, turn in enumerate(turns):
        if turn.is_constant:
            values[index] = pa.repeat(pa.scalar("", pa.string()), len(group.rows))
            empty[index] = True
    return replace(group, turns=turns, values=values, empty=empty)


def _unread(group: Conversations, write: Write) -> set[Kind] | None:
    """Try each role with each kind of content: return those that the template omits or prints as a list; None if it
    refuses them."""
    messages = group.messages(["" if empty else mark(value) for value, empty in enumerate(group.empty)])
    text = _text(messages, write)
    if text is None:
        return None
    found = _unread_parts(group, messages, write)
    for index, turn in enumerate(group.turns):
        if turn.is_constant and turn.content_kind == "value":
            content = messages[index]["content"]
            others = ["", *([_altered(content)] if _altered(content) != content else [])]
            if any(_text(_replaced(messages, {index: other}), write) == text for other in others):
                found.add((turn.role, turn.content_kind))
    return found


def _unread_parts(group: Conversations, messages: Sequence[Message], write: Write) -> set[Kind]:
    """Find content parts that the template does not read: it omits one of their texts, or prints them as a list.

    In one rendering each text is a mark, and each part has a field that no template reads. Python's `repr` of a list,
    unlike JSON, does not show marks.
    """
    printed = mark(10**9)
    marks, contents = {}, {}
    for index, turn in enumerate(group.turns):
        if turn.content_kind in ("parts", "texts") and not turn.as_text:
            blank = turn.content if turn.content_kind == "parts" else blank_parts(turn.content) or []
            marks[index] = [mark(len(group.values) + len(group.turns) * at + index) for at in range(len(blank))]
            contents[index] = [
                {**part, "tokenloom": printed} if isinstance(part, dict) else part
                for part in filled(blank, marks[index])
            ]
    text = _text(_replaced(messages, contents), write) if contents else None
    unread = [
        index for index in contents if text is None or printed in text or any(part not in text for part in marks[index])
    ]
    return {(group.turns[index].role, group.turns[index].content_kind) for index in unread}


def _replaced(messages: Sequence[Message], contents: Mapping[int, Any]) -> list[Message]:
    """Return messages with other contents, by the index of the message."""
    return [
        {**message, "content": contents[index]} if index in contents else message
        for index, message in enumerate(messages)
    ]


def _altered(value: Any) -> Any:
    """Change every text in a value, except the types of content parts."""
    if isinstance(value, dict):
        return {name: inner if name == "type" else _altered(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_altered(inner) for inner in value]
    return f"{value}\ue0d2" if isinstance(value, str) else value


def _concatenated(group: Conversations, write: Write) -> Conversations:
    """Return conversations in which messages are marked as a problem if the template writes something between parts."""
    marks = [mark(value) for value in range(len(group.values))]
    turns = list(group.turns)
    for index, turn in enumerate(turns):
        parts = turn.content
        if turn.content_kind != "parts" or turn.as_text or len(parts) < 2:
            continue
        messages = group.messages(marks)
        space = " " if turn.spaced else ""
        apart = [f"{space}{mark(len(marks) + number)}{space}" for number in range(len(parts))]
        texts = [
            _text(_replaced(messages, {index: content}), write)
            for content in (filled(parts, apart), turn.message("".join(apart), None)["content"])
        ]
        if texts[0] != texts[1]:
            does = "trims each of" if turn.spaced else "writes something between"
            message = f"the template {does} the {len(parts)} content parts of message {index}; join them"
            turns[index] = replace(turn, problem=("content_parts", message))
    return replace(group, turns=tuple(turns))


def _text(messages: Sequence[Message], write: Write) -> str | None:
    """Render messages; None if the template refuses them."""
    try:
        return write(messages)
    except TemplateError:
        return None


@dataclass(frozen=True)
class InlineConversations(Conversations):
    """Conversations with inline reasoning; their turns have reasoning.

    Args:
        around: for each message with inline reasoning, the text before and after the reasoning, which all rows share:
            `<think>` (some data omit it) and `</think>` with the line feeds next to them.
    """

    around: dict[int, tuple[str, str]]

    @cached_property
    def shape(self) -> str:
        """A text that other conversations of the same shape share."""
        return json.dumps([_plain(self).shape, list(self.around.items())])

    def messages(self, values: Sequence[str]) -> list[Message]:
        """Return the messages with these values, in the form that templates get: reasoning within contents."""
        count = len(self.turns)
        joined, rest = list(values[:count]), []
        for index, value in zip(self.owners[count:], values[count:], strict=True):
            if index in self.around:
                before, after = self.around[index]
                joined[index] = f"{before}{value}{after}{joined[index]}"
            else:
                rest.append(value)
        turns = tuple(
            replace(turn, reasons=False) if index in self.around else turn for index, turn in enumerate(self.turns)
        )
        return _plain(self, turns=turns).messages([*joined, *rest])

    def cuts_of(self, value: int, place: int) -> list[WeightedRange]:
        """Return the ranges of a value of a row; reasoning and the rest are parts of one content."""
        message, count = self.owners[value], len(self.turns)
        if message not in self.around:
            return super().cuts_of(value, place)
        found = self.cuts.get((int(self.rows[place]), message, "content"), ())
        before, after = (len(text.encode()) for text in self.around[message])
        thought = count + self.owners[count:].index(message)
        sizes = [len(self.values[index][place].as_py().encode()) for index in (message, thought)]
        return (
            shifted(found, before, sizes[1]) if value >= count else shifted(found, before + sizes[1] + after, sizes[0])
        )


def taken(group: Conversations, index: Ints) -> Conversations:
    """Return some of a group's conversations; `index` is int64 [rows], positions in the group."""
    values = [value.take(pa.array(index)) for value in group.values]
    own = [group.own[place] for place in index.tolist()] if group.own else ()
    return replace(group, rows=group.rows[index], values=values, own=own)


def with_inline_reasoning(group: Conversations) -> Iterator[tuple[Ints, InlineConversations]]:
    """Yield the conversations of a group that have inline reasoning, by shape.

    Yields:
        int64 [rows], positions in the group; and these conversations.
    """
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant" and not turn.reasons]
    contents = {index: group.values[index].to_pylist() for index in answers}
    shapes: dict[tuple[tuple[int, str, str, bool, bool], ...], list[int]] = {}
    for row in range(len(group.rows)):
        found = {index: parts for index in answers if (parts := inline_parts(contents[index][row])) is not None}
        shape = tuple(
            (index, before, after, not thought, not rest) for index, (before, thought, after, rest) in found.items()
        )
        if shape:
            shapes.setdefault(shape, []).append(row)
    for shape, rows in shapes.items():
        index = np.array(rows, np.int64)
        yield index, _split(taken(group, index), {message: (before, after) for message, before, after, *_ in shape})


def divided_by_template(chat: ShapeFormat, group: Conversations, given: bool = False) -> list[Conversations]:
    """Separate conversations whose inline reasoning the template takes apart from the rest of a group.

    A generation prompt that opens the reasoning takes it apart, too: it gives the content's `<think>`.

    Args:
        given: separate only these, whose `<think>` the prompt gives and the template writes.
    """
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant"]
    found = any(pc.any(pc.match_substring(group.values[index], CLOSE), min_count=0).as_py() for index in answers)
    if not found or any(turn.problem for turn in group.turns):
        return [group]
    parts, left = [], np.ones(len(group.rows), bool)
    for index, split in with_inline_reasoning(group):
        marks = ["" if empty else f"{MARK_OPEN}{value}{MARK_CLOSE}" for value, empty in enumerate(split.empty)]
        messages = split.messages(marks)
        text = chat.written(messages)
        asked = product(split.around, chat.prompts)
        prompts = (chat.written(messages[:message], prompt) or "" for message, prompt in asked)
        opened = any(prompt.rstrip().endswith(OPEN) for prompt in prompts)
        whole = text is not None and all(messages[message]["content"] in text for message in split.around)
        if (not (whole and opened)) if given else (whole and not opened):
            continue
        parts.append(split)
        left[index] = False
    return [*([taken(group, np.flatnonzero(left))] if left.any() else []), *parts]


def _split(group: Conversations, around: dict[int, tuple[str, str]]) -> InlineConversations:
    """Return conversations that have inline reasoning in the same messages, with that reasoning as values."""
    count = len(group.turns)
    turns = tuple(replace(turn, reasons=turn.reasons or index in around) for index, turn in enumerate(group.turns))
    contents, reasoning = list(group.values[:count]), dict(zip(group.owners[count:], group.values[count:], strict=True))
    for index in around:
        parts = [parts for text in contents[index].to_pylist() if (parts := inline_parts(text)) is not None]
        _, thoughts, _, rests = zip(*parts, strict=True)
        reasoning[index], contents[index] = pa.array(thoughts, pa.string()), pa.array(rests, pa.string())
    values = [*contents, *(reasoning[index] for index in sorted(reasoning))]
    plain = _plain(group, turns=turns, values=values, empty=[value[0].as_py() == "" for value in values])
    return InlineConversations(**{field.name: getattr(plain, field.name) for field in fields(plain)}, around=around)


def _plain(group: Conversations, **changes: object) -> Conversations:
    """Return a group as `Conversations` with some fields changed."""
    own = {field.name: getattr(group, field.name) for field in fields(Conversations)}
    return Conversations(**{**own, **changes})  # pyright: ignore[reportArgumentType]


UNHEEDED = "weights_without_effect"
"""Counter of messages with a weight above 0 whose role is not trained."""

UNREAD = "unread_fields."
"""Start of the counters of messages with a field that the template does not read; the field's name follows."""

MAX_NAMES, OTHERS = 50, "other fields"

LOST = "the text of the field {} of a trained answer is not in the rendered text"

_THOUGHT = {"reasoning", "thinking", "thought", "thoughts", "think", "cot", "analysis", "scratchpad"}
_CALLS = {"call", "calls"}
_ANSWER = {"refusal", "audio", "answer", "response", "output", "completion", "text", "reply", "message", "value"}


def unread(turn: Turn, reads: Callable[[str], bool]) -> Iterator[str]:
    """Yield the fields of a message that could be a flag or hold text, and that the template does not read."""
    for name, value in (turn.fields or {}).items():
        known = name in KNOWN or kind_of(name) is not None or (name in REASONING_FIELDS and value is None)
        if not known and is_unknown(name, value) and not reads(name):
            yield name


def counter_of(name: str, found: Collection[str]) -> str:
    """Return the counter of a field; names are the data's, and there can be any number of them."""
    shown = f"{UNREAD}{''.join(char if char.isprintable() else '?' for char in name[:64])}"
    return shown if shown in found or len(found) < MAX_NAMES else f"{UNREAD}{OTHERS}"


def is_lost(name: str, turn: Turn, empty: bool) -> bool:
    """Return whether a field that the template does not read has text that belongs to the answer."""
    if not has_text((turn.fields or {}).get(name)):
        return False
    named = {*words(name)}
    if named & _THOUGHT:
        return not turn.reasons
    if named & _CALLS:
        return not turn.tool_calls
    return empty and not turn.tool_calls and bool(named & _ANSWER)


def notices(counters: Mapping[str, int]) -> list[str]:
    """Return what the build reports about fields without effect."""
    found = []
    if count := counters.get(UNHEEDED):
        found.append(
            f"{count:,} messages have a weight above 0 or weighted parts, but a role that is not trained, so they are "
            "masked; to train them, name their role in prompt_template.train_on"
        )
    fields = {name.removeprefix(UNREAD): count for name, count in counters.items() if name.startswith(UNREAD)}
    if fields:
        most = sorted(fields.items(), key=lambda field: -field[1])[:20]
        named = ", ".join(f"{name} ({count:,})" for name, count in most)
        found.append(
            f"fields of messages that the chat template does not read, with their number of messages: {named}; "
            "rename a flag to train or weight, or name ranges to train with prompt_template.train_ranges"
        )
    return found


@dataclass(frozen=True)
class TrainedOnly:
    """Renders rows without those whose own flags and weights leave nothing to train; they count as filtered.

    Args:
        render: renders all rows.
        ranges: names of the fields of messages with ranges.
    """

    render: Callable[[pa.Table], ChunkOutput]
    ranges: tuple[str, ...]

    def __call__(self, table: pa.Table) -> ChunkOutput:
        out = self.render(table)
        said = [list_parts(one_array(column))[1] for column in table.columns if column.type == MESSAGES]
        if not any(map(self._declares, said)) or "spans" not in out.table.column_names:
            return out
        spans = flat_spans(out.table["spans"])
        trained = sum_rows((spans.weight > 0).astype(np.int64), spans.offsets) > 0
        rows = out.table[ROW].to_numpy()
        kept = np.isin(rows, rows[trained])
        if kept.all():
            return out
        left = out.table.filter(pa.array(kept)).combine_chunks()
        return replace(out, table=left, filtered=out.filtered + count_rows(out.table) - count_rows(left))

    def _declares(self, messages: pa.Array) -> bool:
        """Return whether a message has a weight or ranges."""
        weight, fields = (pc.struct_field(messages, name) for name in ("weight", "fields"))
        if weight.null_count < len(weight):
            return True
        found = (pc.any(pc.match_substring(fields, to_json_text(name)), min_count=0).as_py() for name in self.ranges)
        return fields.null_count < len(fields) and any(found)
