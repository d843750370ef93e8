"""Answers with inline reasoning, `<think>…</think>`, for templates that take contents apart.

Such a template does not place the content whole, but it places the reasoning and the rest of the content. Here both are
values; the template still gets them in one content, as in the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.conversations import Conversations, Message
from tokenloom.assets.prompts.outline import Prompt
from tokenloom.assets.prompts.text_ranges import WeightedRange, shifted
from tokenloom.assets.prompts.think_tags import CLOSE, OPEN, inline_parts
from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.templates.trace import MARK_CLOSE, MARK_OPEN

if TYPE_CHECKING:
    from tokenloom.assets.prompts.trained_turns import ShapeFormat


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
        text = chat.written(split, messages, Prompt.NONE)
        asked = product(split.around, chat.prompts(split))
        prompts = (chat.written(split, messages[:message], prompt) or "" for message, prompt in asked)
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
