"""Finds what of a message a chat template reads, and in which form.

What data have in several forms reaches the template in the first one that it reads. A form is tried with probes in
place of texts; `is_read` says whether what the template writes shows that it reads them:

| of a message | forms, in order | the template reads a form if it writes |
|---|---|---|
| role | the source's name, one of `MESSAGE_ROLES` | (it compares roles with the name) |
| content that is not text | as in the source, as text | each text of its parts, but no field that nothing reads |
| arguments of calls | as in the source, an object, JSON text | the text, or the object but not as Python's `repr` |
| reasoning within a content | in the content, as a value | the content whole, and no prompt opens the reasoning |

A template that takes contents apart does not place a content with reasoning whole, but it places the reasoning and the
rest of the content. Then both are values; the template still gets them in one content, as in the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.content_parts import blank_parts, filled
from tokenloom.assets.prompts.conversations import (
    ArgumentForm,
    Conversations,
    Turn,
    dumped,
    parsed,
    unchanged,
    with_arguments,
)
from tokenloom.assets.prompts.outline import Message, Prompt, attempt
from tokenloom.assets.prompts.spans import CLOSE, OPEN, flat_spans, inline_parts
from tokenloom.assets.schema.conventions import KNOWN, has_text, is_unknown, kind_of
from tokenloom.assets.schema.profiles import words
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import MESSAGES, REASONING_FIELDS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import count_rows
from tokenloom.resources.tables.json_text import strings_in, to_json_text
from tokenloom.resources.tables.ragged import Ints, list_parts, one_array, sum_rows
from tokenloom.resources.templates.marks import bare, mark

Write = Callable[[Sequence[Message]], str]
"""Renders messages; raises `TemplateError` if the template refuses them."""

Asked = Callable[[Sequence[Message], Prompt], str | None]
"""Renders messages with a generation prompt; None if the template refuses them."""

Kind = tuple[str, str | None]
"""A role, and the kind of its contents."""

_OBJECT = {"\ue0d0": "\ue0d1"}
_TEXT = json.dumps(_OBJECT, ensure_ascii=False)


def is_read(text: str | None, probes: Iterable[str], printed: Iterable[str] = ()) -> bool:
    """Return whether a template reads a form.

    Args:
        text: what it writes; None if it refuses the form.
        probes: texts that it writes if it reads the form.
        printed: texts that it writes only if it prints the form as it is.
    """
    if not text:
        return False
    return all(probe in text for probe in probes) and not any(sign in text for sign in printed)


def readable(group: Conversations, known_roles: Collection[str], write: Write) -> Conversations:
    """Return conversations with the role and the content of each message in the form in which the template reads them.

    Args:
        known_roles: the roles that the template compares with.
        write: renders messages; raises `TemplateError` if the template refuses them.
    """
    group = replace(group, turns=tuple(_spoken(turn, known_roles) for turn in group.turns))
    kinds = sorted({(turn.role, turn.content_kind) for turn in group.turns if turn.content_kind})
    if not kinds or any(turn.problem for turn in group.turns):
        return group
    as_text = _unread(_as_text(group, set()), write)
    if as_text is None:  # the template refuses some of the forms: only trying one after another shows which
        as_text = {*kinds}
        for kind in kinds:
            if _unread(_as_text(group, as_text - {kind}), write) == set():
                as_text.remove(kind)
    return _concatenated(_as_text(group, as_text), write)


def readable_form(messages: Sequence[Message], write: Write) -> ArgumentForm:
    """Return the form of arguments that a template reads: as in the source if possible.

    Args:
        messages: a conversation.
        write: renders messages with the template.
    """
    for form in (unchanged, parsed, dumped):
        probes: list[Any] = []

        def probe(arguments: Any, form: ArgumentForm = form, probes: list[Any] = probes) -> Any:
            if not isinstance(arguments, dict) and parsed(arguments) is arguments:
                return arguments  # neither an object nor the text of one
            probes.append(form(_OBJECT if isinstance(arguments, dict) else _TEXT))
            return probes[-1]

        given = with_arguments(messages, probe)
        shown, printed = ([str(one) for one in probes if isinstance(one, kind)] for kind in (str, dict))
        if not probes or is_read(attempt(write, given), shown, printed):
            return form
    return unchanged


def _spoken(turn: Turn, known_roles: Collection[str]) -> Turn:
    """Return a message with the source's own name for its role, if the template knows that name."""
    name = turn.spoken or (turn.fields or {}).get("role")
    return replace(turn, spoken=name, problem=None) if name in known_roles else turn


def _as_text(group: Conversations, kinds: Collection[Kind]) -> Conversations:
    """Give the template the contents of some roles and kinds as text, and the others as in the source."""
    return with_turns(group, [replace(turn, as_text=(turn.role, turn.content_kind) in kinds) for turn in group.turns])


def with_turns(group: Conversations, turns: Sequence[Turn]) -> Conversations:
    """Return conversations with other turns. A content that is part of its turn is not a value."""
    values, empty = list(group.values), list(group.empty)
    for index, turn in enumerate(turns):
        if turn.is_constant:
            values[index] = pa.repeat(pa.scalar("", pa.string()), len(group.rows))
            empty[index] = True
    return replace(group, turns=tuple(turns), values=values, empty=empty)


def _unread(group: Conversations, write: Write) -> set[Kind] | None:
    """Return the roles and kinds of contents that the template does not read as they are; None if it refuses them.

    Texts of parts are marks, and each part has a field that no template reads: of a list that is printed, JSON shows
    the field, and Python's `repr` does not show the marks.
    """
    messages = group.messages(group.marks)
    text = attempt(write, messages)
    if text is None:
        return None
    unread, printed = set[Kind](), mark(10**9)
    marks: dict[int, list[str]] = {}
    contents: dict[int, Any] = {}
    for index, turn in enumerate(group.turns):
        if turn.content_kind in ("parts", "texts") and not turn.as_text:
            blank = turn.content if turn.content_kind == "parts" else blank_parts(turn.content) or []
            marks[index] = [mark(len(group.values) + len(group.turns) * at + index) for at in range(len(blank))]
            parts = filled(blank, marks[index])
            contents[index] = [{**part, "tokenloom": printed} if isinstance(part, dict) else part for part in parts]
        elif turn.is_constant:  # any other value is read if the text changes with it
            content = messages[index]["content"]
            others = [other for other in ("", _altered(content)) if other != content]
            if any(attempt(write, _replaced(messages, {index: other})) == text for other in others):
                unread.add((turn.role, turn.content_kind))
    text = attempt(write, _replaced(messages, contents)) if contents else None
    missing = [group.turns[index] for index in contents if not is_read(text, marks[index], [printed])]
    return unread.union((turn.role, turn.content_kind) for turn in missing)


def _replaced(messages: Sequence[Message], contents: Mapping[int, Any]) -> list[Message]:
    """Return messages with other contents, by the index of the message."""
    return [{**said, "content": contents[at]} if at in contents else said for at, said in enumerate(messages)]


def _altered(value: Any) -> Any:
    """Change every text in a value, except the types of content parts."""
    if isinstance(value, dict):
        return {name: inner if name == "type" else _altered(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_altered(inner) for inner in value]
    return f"{value}\ue0d2" if isinstance(value, str) else value


def _concatenated(group: Conversations, write: Write) -> Conversations:
    """Return conversations in which messages are marked as a problem if the template writes something between parts."""
    marks = [*map(mark, range(len(group.values)))]
    turns = list(group.turns)
    for index, turn in enumerate(turns):
        parts = turn.content
        if turn.content_kind != "parts" or turn.as_text or len(parts) < 2:
            continue
        messages = group.messages(marks)
        space = " " if turn.spaced else ""
        apart = [f"{space}{mark(len(marks) + number)}{space}" for number in range(len(parts))]
        contents = filled(parts, apart), turn.message("".join(apart), None)["content"]
        texts = [attempt(write, _replaced(messages, {index: content})) for content in contents]
        if texts[0] != texts[1]:
            does = "trims each of" if turn.spaced else "writes something between"
            message = f"the template {does} the {len(parts)} content parts of message {index}; join them"
            turns[index] = replace(turn, problem=("content_parts", message))
    return replace(group, turns=tuple(turns))


def taken(group: Conversations, index: Ints) -> Conversations:
    """Return some of a group's conversations; `index` is int64 [rows], positions in the group."""
    values = [value.take(pa.array(index)) for value in group.values]
    own = [group.own[place] for place in index.tolist()] if group.own else ()
    return replace(group, rows=group.rows[index], values=values, own=own)


def with_inline_reasoning(group: Conversations) -> Iterator[tuple[Ints, Conversations]]:
    """Yield the conversations of a group that have inline reasoning, by shape.

    Yields:
        int64 [rows], positions in the group; and these conversations, with that reasoning as values.
    """
    count = len(group.turns)
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant" and not turn.reasons]
    contents = {index: group.values[index].to_pylist() for index in answers}
    shapes: dict[tuple[tuple[int, str, str, bool, bool], ...], dict[int, dict[int, tuple[str, str, str, str]]]] = {}
    for row in range(len(group.rows)):
        divided = {index: parts for index in answers if (parts := inline_parts(contents[index][row])) is not None}
        shape = tuple(
            (index, before, after, not thought, not rest) for index, (before, thought, after, rest) in divided.items()
        )
        if shape:
            shapes.setdefault(shape, {})[row] = divided
    for shape, rows in shapes.items():
        places, around = np.array([*rows], np.int64), {index: (before, after) for index, before, after, *_ in shape}
        members = taken(group, places)
        thoughts = dict(zip(members.owners[count:], members.values[count:], strict=True))
        said = list(members.values[:count])
        for index in around:
            said[index] = pa.array([parts[index][3] for parts in rows.values()], pa.string())
            thoughts[index] = pa.array([parts[index][1] for parts in rows.values()], pa.string())
        turns = tuple(replace(turn, reasons=turn.reasons or at in around) for at, turn in enumerate(group.turns))
        values = [*said, *(thoughts[index] for index in sorted(thoughts))]
        empty = [value[0].as_py() == "" for value in values]
        yield places, replace(members, turns=turns, values=values, empty=empty, around=around)


def divided_by_template(
    group: Conversations, write: Asked, prompts: Callable[[], Sequence[Prompt]], given: bool = False
) -> list[Conversations]:
    """Separate conversations whose inline reasoning the template takes apart from the rest of a group.

    A generation prompt that opens the reasoning takes it apart, too: it gives the content's `<think>`.

    Args:
        prompts: returns the generation prompts that inference can choose from.
        given: separate only these, whose `<think>` the prompt gives and the template writes.
    """
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant"]
    tagged = any(pc.any(pc.match_substring(group.values[index], CLOSE), min_count=0).as_py() for index in answers)
    if not tagged or any(turn.problem for turn in group.turns):
        return [group]
    parts, left = [], np.ones(len(group.rows), bool)
    for index, split in with_inline_reasoning(group):
        messages = split.messages(split.tracked)
        texts = (bare(text) for message in split.around for text in strings_in(messages[message]["content"]))
        written = write(messages, Prompt.NONE)
        whole = is_read(written and bare(written), (text for text in texts if CLOSE in text))
        asked = product(split.around, prompts()) if whole else ()
        begun = (write(messages[:message], prompt) or "" for message, prompt in asked)
        opened = any(text.rstrip().endswith(OPEN) for text in begun)
        if not ((whole and opened) if given else (opened or not whole)):
            continue
        parts.append(split)
        left[index] = False
    return [*([taken(group, np.flatnonzero(left))] if left.any() else []), *parts]


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
        is_setting = name in KNOWN or kind_of(name) is not None or (name in REASONING_FIELDS and value is None)
        if not is_setting and is_unknown(name, value) and not reads(name):
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
    sentences = []
    if count := counters.get(UNHEEDED):
        sentences.append(
            f"{count:,} messages have a weight above 0 or weighted parts, but a role that is not trained, so they are "
            "masked; to train them, name their role in prompt_template.train_on"
        )
    fields = {name.removeprefix(UNREAD): count for name, count in counters.items() if name.startswith(UNREAD)}
    if fields:
        most = sorted(fields.items(), key=lambda field: -field[1])[:20]
        named = ", ".join(f"{name} ({count:,})" for name, count in most)
        sentences.append(
            f"fields of messages that the chat template does not read, with their number of messages: {named}; "
            "rename a flag to train or weight, or name ranges to train with prompt_template.train_ranges"
        )
    return sentences


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
        has_trained = np.isin(rows, rows[trained])
        if has_trained.all():
            return out
        left = out.table.filter(pa.array(has_trained)).combine_chunks()
        return replace(out, table=left, filtered=out.filtered + count_rows(out.table) - count_rows(left))

    def _declares(self, messages: pa.Array) -> bool:
        """Return whether a message has a weight or ranges."""
        weight, fields = (pc.struct_field(messages, name) for name in ("weight", "fields"))
        if weight.null_count < len(weight):
            return True
        named = (pc.any(pc.match_substring(fields, to_json_text(name)), min_count=0).as_py() for name in self.ranges)
        return fields.null_count < len(fields) and any(named)
