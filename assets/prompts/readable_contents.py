"""The form in which roles, and contents that are not text, reach a chat template: as in the source if it reads that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tokenloom.assets.columns.content_parts import blank_parts, filled
from tokenloom.assets.prompts.conversations import Conversations, Message, Turn
from tokenloom.assets.prompts.outline import mark
from tokenloom.errors import TemplateError

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
