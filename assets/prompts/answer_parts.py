"""Marks which parts of a trained answer are reasoning and tool calls, for the counters of trained tokens.

Reasoning is a value of the template, so its position is known. The text of a message's tool calls is what the template
writes with them and not without them: the conversation is rendered again without the calls of the message, and the two
outlines are compared. If the position cannot be determined, the text stays part of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, takewhile

from tokenloom.assets.prompts.conversations import Message
from tokenloom.assets.prompts.outline import mark
from tokenloom.assets.prompts.spans import REASONING, TOOL_CALL, Piece
from tokenloom.assets.prompts.stops import StopFinder
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.trace import MARK_CLOSE, MARK_OPEN

_MARK = f"{MARK_OPEN}[0-9]+{MARK_CLOSE}"

Range = tuple[int, int]


def answer_parts(pieces: Sequence[Piece], outline: StopFinder, contents: int) -> list[list[Piece]]:
    """Divide the pieces of trained answers where tool calls start and end, and mark them as reasoning or tool calls.

    Args:
        pieces: the pieces of the whole outline, in order.
        contents: the number of values that are contents; the values after them are reasoning.
    """
    values = {slot.column: slot.value for slot in outline.slots if slot.value >= 0}
    trained = {piece.message for piece in pieces if is_trained(piece) and piece.text is not None}
    calling = [index for index, message in enumerate(outline.messages) if message.get("tool_calls")]
    ranges = [found[0] for index in calling if {index, -1} & trained and (found := added_calls(outline, index))]
    parts: list[list[Piece]] = []
    start = 0
    for piece in pieces:
        if piece.text is None:
            value = values[piece.column]
            size = len(mark(value))
            reasons = value >= contents and is_trained(piece)
            parts.append([replace(piece, part=REASONING) if reasons else piece])
        else:
            size = len(piece.text)
            parts.append(list(divided(piece, start, ranges)) if is_trained(piece) else [piece])
        start += size
    return parts


def added_calls(outline: StopFinder, index: int) -> tuple[Range, bool] | None:
    """Find what a template writes for a message's calls: where it starts and ends, in characters, and whether all other
    text is the same without the calls. None if unknown.

    The rest of the conversation can need the calls, so it is omitted if the template refuses it without them.
    """
    message = outline.messages[index]
    before, after = outline.messages[:index], outline.messages[index + 1 :]
    bare = {name: value for name, value in message.items() if name != "tool_calls"}
    for rest in [after, ()] if after else [()]:
        whole = outline.text if len(rest) == len(after) else written(outline, [*before, message])
        without = written(outline, [*before, bare, *rest])
        if without is None:  # some templates refuse a message with neither calls nor content
            without = written(outline, [*before, {**bare, "content": ""}, *rest])
        if whole is None or without is None:
            continue
        start, end = inserted(whole, without, outline.control)
        same = whole[:start] + whole[end:] == without
        start, end = _before_stop(outline, whole, start, end)
        if outline.text.startswith(whole[:end]) and _holds_calls(outline, index, whole[start:end]):
            return (start, end), same
    return None


def is_trained(piece: Piece) -> bool:
    """Return whether a piece is trained text of the assistant."""
    return piece.weight > 0 and piece.role == "assistant"


def _holds_calls(outline: StopFinder, index: int, text: str) -> bool:
    """Return whether a text has all calls of a message, and nothing of other messages."""
    names = [call["function"]["name"] for call in outline.messages[index]["tool_calls"]]
    others = {outline.owners[int(found[1:-1])] for found in re.findall(_MARK, text)} - {index}
    return not others and all(name in text for name in names)


def divided(piece: Piece, start: int, ranges: Sequence[Range]) -> Iterator[Piece]:
    """Yield the parts of a piece of text inside and outside of tool calls; control tokens stay whole.

    Args:
        start: the piece's position, in characters.
    """
    text = piece.text or ""
    near = [(first - start, end - start) for first, end in ranges if first < start + len(text) and end > start]
    if piece.control or not near:
        yield replace(piece, part=TOOL_CALL) if near else piece
        return
    cuts = {0, len(text), *(cut for bounds in near for cut in bounds if 0 < cut < len(text))}
    for begin, end in pairwise(sorted(cuts)):
        called = any(first <= begin and end <= last for first, last in near)
        yield replace(piece, text=text[begin:end], part=TOOL_CALL if called else piece.part)


def inserted(whole: str, without: str, control: tuple[str, ...]) -> Range:
    """Return the part of a text that is missing in another one; marks and control tokens are compared as a whole."""
    both = [_atoms(control).split(text) for text in (whole, without)]
    start = _common(*both)
    backwards = ([atom[::-1] for atom in reversed(atoms)] for atoms in both)
    return start, len(whole) - min(_common(*backwards), len(without) - start, len(whole) - start)


def _before_stop(outline: StopFinder, whole: str, start: int, end: int) -> Range:
    """Return a part of a text, moved left until a turn's stop follows it, if the text without it stays the same.

    Without this, `<` at the start of the stop could be the one at the start of a call.
    """
    for moved in range(start + 1):
        if outline.closing and whole.startswith(outline.closing, end - moved):
            return start - moved, end - moved
        if whole[start - moved - 1 : start - moved] != whole[end - moved - 1 : end - moved]:
            break
    return start, end


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of characters that two texts have in common at their start.

    Args:
        one, other: the texts in parts; parts with odd numbers have nothing in common with other parts.
    """
    same = _equal(one, other)
    shared = sum(map(len, one[:same]))
    if same % 2 == 0 and same < min(len(one), len(other)):
        shared += _equal(one[same], other[same])
    return shared


def _equal(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of equal items at the start of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@lru_cache(maxsize=16)
def _atoms(control: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(control, key=lambda token: (-len(token), token))
    return re.compile(f"({'|'.join([_MARK, *map(re.escape, longest_first)])})")


def written(outline: StopFinder, messages: Sequence[Message]) -> str | None:
    """Render messages; None if the template refuses them."""
    try:
        return outline.write(messages, True, False)
    except TemplateError:
        return None
