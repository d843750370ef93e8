"""Divides what is trained of each answer into reasoning, tool calls, content and the stop."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from tokenloom.assets.prompts.outline import MARK, Message, ShapeError, inserted, mark
from tokenloom.assets.prompts.spans import CLOSE, CONTENT, OPEN, REASONING, STOP, TOOL_CALL, Piece
from tokenloom.assets.prompts.turns import StopFinder
from tokenloom.assets.stage.forms import REASONING_FIELDS
from tokenloom.errors import TemplateError

_EMPTY = re.compile(rf"\s*(?:{OPEN})?\s*{CLOSE}\s*")
_PROBE = mark(10**9)
_WORDS = {CONTENT: "content", REASONING: "reasoning", TOOL_CALL: "tool calls", STOP: "the stop"}


@dataclass(frozen=True)
class _Bit:
    """A piece, or a part of one.

    Args:
        home: index of the whole piece.
        start: position in the outline, in characters.
        text: its part of the outline.
    """

    home: int
    start: int
    piece: Piece
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def kind(self) -> str:
        return self.piece.part

    def of(self, kind: str) -> _Bit:
        return replace(self, piece=replace(self.piece, part=kind))

    def cut(self, at: int) -> list[_Bit]:
        """Return the parts before and after some characters; control tokens stay whole."""
        if self.piece.text is None or self.piece.control or not 0 < at < len(self.text):
            return [self]
        first, second = (replace(self.piece, text=text) for text in (self.text[:at], self.text[at:]))
        return [
            _Bit(self.home, self.start, first, first.text or ""),
            _Bit(self.home, self.start + at, second, second.text or ""),
        ]


@dataclass(frozen=True)
class AnswerKinds:
    """Divides the answers of an outline.

    Args:
        contents: the number of values that are contents; the values after them are reasoning.
        weights: the weight of each kind.
        marked: whether the template's `{% generation %}` blocks decide what is trained, stops included.
    """

    outline: StopFinder
    contents: int
    weights: Mapping[str, float]
    marked: bool

    def divide(self, pieces: Sequence[Piece]) -> list[list[Piece]]:
        """Divide the pieces of trained answers by kind. Returns a list for each piece of the outline.

        Raises:
            ShapeError: the kind of a text is unknown, and it could be one of several with different weights.
        """
        values = {slot.column: slot.value for slot in self.outline.slots if slot.value >= 0}
        parts: list[list[Piece]] = [[] if is_trained(piece) else [piece] for piece in pieces]
        turns: dict[int, list[_Bit]] = {}
        start = 0
        for home, (piece, message) in enumerate(zip(pieces, self._messages(pieces), strict=True)):
            value = -1 if piece.text is not None else values[piece.column]
            text = mark(value) if piece.text is None else piece.text
            if is_trained(piece):
                kind = piece.part if value < 0 else REASONING if value >= self.contents else CONTENT
                turns.setdefault(message, []).append(_Bit(home, start, piece, text).of(kind))
            start += len(text)
        starts = {bits[0].start for bits in turns.values()}
        for message, bits in turns.items():
            for bit in self._kinds(message, bits, bits[-1].end in starts):
                parts[bit.home].append(bit.piece)
        return parts

    def _messages(self, pieces: Sequence[Piece]) -> Iterator[int]:
        """Yield the message of each piece: that of the text before it, else of the text after it, else the next answer.

        Only the text of generation blocks has none of its own.
        """
        answers = [index for index, message in enumerate(self.outline.messages) if message["role"] == "assistant"]
        latest = -1
        for trained, run in groupby(pieces, is_trained):
            group = list(run)
            if trained:
                place = bisect_right(answers, latest)
                following = answers[place] if place < len(answers) else -1
                latest = next((piece.message for piece in group if piece.message >= 0), following)
            for piece in group:
                latest = piece.message if trained and piece.message >= 0 else latest
                yield latest

    def _kinds(self, message: int, bits: list[_Bit], joined: bool) -> Iterator[_Bit]:
        """Yield what is trained of a message, each part with its kind.

        Args:
            joined: whether what is trained of another message follows.
        """
        called = message >= 0 and bool(self.outline.messages[message].get("tool_calls"))
        calls, apart = (called and added_calls(self.outline, message)) or (None, False)
        values = [bit for bit in bits if bit.piece.text is None]
        calls, within = self._without_values(calls, values)
        if self.marked and not any(bit.kind == STOP for bit in bits):
            bits = self._stopped(message, bits, called, joined)
        bits = [part for bit in bits for part in _called(bit, calls)]
        begin, before = bits[0].start, ""
        rest = CONTENT if not calls or any(bit.kind == CONTENT for bit in values) else TOOL_CALL
        runs = [list(run) for _, run in groupby(bits, key=lambda bit: bit.kind)]
        for run, after in zip(runs, [*runs[1:], []], strict=True):
            if kind := run[0].kind:
                kinds = {kind, *within} if kind == TOOL_CALL else {kind}
                yield from (bit.of(self._one(kinds, message)) for bit in run)
                before = kind
                continue
            following, text = after[0].kind if after else "", "".join(bit.text for bit in run)
            closed, kinds = self._between(message, text, begin, before, following)
            if CONTENT in kinds:
                beside = called and (calls is None or (not apart and TOOL_CALL in (before, following)))
                kinds = {rest if kind == CONTENT else kind for kind in kinds} | ({TOOL_CALL} if beside else set())
            reasoning, others = _taken(run, closed)
            kind = self._one(kinds, message) if any(bit.text.strip() for bit in others) else min(kinds)
            yield from (bit.of(REASONING) for bit in reasoning)
            yield from (bit.of(kind) for bit in others)

    def _without_values(self, calls: Range | None, values: Sequence[_Bit]) -> tuple[Range | None, set[str]]:
        """Return where the text of calls is without a content at its start or end, and without closed reasoning; and
        the kinds of the other values within it."""
        within: set[str] = set()
        for value in values:
            if calls is None or not calls[0] <= value.start < calls[1]:
                continue
            text, closes = self.outline.text, self.outline.text.find(CLOSE, value.end, calls[1])
            if value.kind == CONTENT and not text[calls[0] : value.start].strip():
                calls = value.end, calls[1]
            elif value.kind == CONTENT and not text[value.end : calls[1]].strip():
                calls = calls[0], value.start
            elif value.kind == REASONING and closes >= 0:
                rest = text[closes + len(CLOSE) : calls[1]]
                calls = calls[1] - len(rest.lstrip()), calls[1]
            else:
                within.add(value.kind)
        return calls, within

    def _stopped(self, message: int, bits: list[_Bit], called: bool, joined: bool) -> list[_Bit]:
        """Find the stop in an answer that generation blocks mark. Returns all of its bits."""
        last = max((index for index, bit in enumerate(bits) if bit.piece.text is None), default=-1)
        tail = "".join(bit.text for bit in bits[last + 1 :])
        at, body = 0, tail.rstrip()
        if called or last < 0 or bits[last].kind != CONTENT:
            outline, end = self.outline, bits[-1].end
            follows = bool(outline.closing) and outline.text[end:].lstrip().startswith(outline.closing or "")
            stop = "" if follows else outline.stop_of(body)
            at = len(body) - len(stop) if stop not in ("", OPEN, CLOSE) else len(tail)
        before, stop_bits = _taken(bits[last + 1 :], at)
        ends = len(self.outline.stop_after(message, tail[at:])) if joined and message >= 0 else len(tail)
        stop_bits, after = _taken(stop_bits, ends)  # after the stop comes the header of the next answer
        return [*bits[: last + 1], *before, *(bit.of(STOP) for bit in stop_bits), *after]

    def _between(self, message: int, text: str, begin: int, before: str, after: str) -> tuple[int, set[str]]:
        """Return how many characters of a text between two parts of an answer are reasoning, and what the rest can be.

        Args:
            begin: where the trained text of the message begins.
            before, after: the kinds of the parts; "" if there is none.
        """
        if after == REASONING:
            return (0, {CONTENT, REASONING}) if before and text.strip() else (len(text), {REASONING})
        if before in (CONTENT, TOOL_CALL):
            return 0, {STOP if after in ("", STOP) else CONTENT}
        closed = self._closed(message, text, begin) if before == REASONING else self._empty(message, text, begin)
        return (0, {CONTENT, REASONING}) if closed is None else (closed, {CONTENT})

    def _closed(self, message: int, text: str, begin: int) -> int | None:
        """Return how many characters after the reasoning belong to it; None if unknown."""
        _, found, after = text.partition(CLOSE)
        if found:
            return len(text) - len(after.lstrip())
        said = self.outline.messages[message]
        bare = {name: value for name, value in said.items() if name not in REASONING_FIELDS}
        reasoning = next(
            mark(value)
            for value, owner in enumerate(self.outline.owners)
            if owner == message and value >= self.contents
        )
        if isinstance(said.get("content"), str) and reasoning in said["content"]:
            bare["content"] = mark(message) if mark(message) in said["content"] else ""
        without = self._written(message, bare)
        closes = None if without is None else self._closes(self.outline.text, without, reasoning, begin)
        if closes is None:
            return None if text.strip() else len(text)
        return closes if text[:closes].strip() and text[closes:].strip() else len(text)

    def _empty(self, message: int, text: str, begin: int) -> int | None:
        """Return how many characters before an answer are what surrounds reasoning elsewhere; None if unknown."""
        if OPEN in text or CLOSE in text:
            found = _EMPTY.match(text)
            rest = text[found.end() :] if found else OPEN
            return None if OPEN in rest or CLOSE in rest else len(text) - len(rest)
        if message < 0 or not text.strip():
            return 0
        thinking = self._written(message, {**self.outline.messages[message], **dict.fromkeys(REASONING_FIELDS, _PROBE)})
        if thinking is None or _PROBE not in thinking:
            return 0
        closes = self._closes(thinking, self.outline.text, _PROBE, begin)
        if closes is None:
            return None
        after = thinking.partition(_PROBE)[2]
        return 0 if after[:closes].strip() else len(text)

    def _closes(self, whole: str, without: str, reasoning: str, begin: int) -> int | None:
        """Return the length of what a template adds after reasoning, such as `</think>`; None if unknown.

        Args:
            whole, without: outlines with and without the reasoning.
            begin: where the trained text of the message begins.
        """
        start, end = inserted(whole, without, self.outline.control)
        stop = whole.find(reasoning) + len(reasoning)
        if whole[:start] + whole[end:] != without:
            return None
        if whole[start:end].strip() == reasoning:
            return 0
        moved = 0
        while start - moved > begin and whole[start - moved - 1] == whole[end - moved - 1]:
            moved += 1
        if start - moved > begin:  # the text can be at several places, of which none is the beginning
            if whole[start - moved : start].strip():
                return None
            moved = 0
        return end - moved - stop if end - moved >= stop else None

    def _written(self, message: int, changed: dict[str, object]) -> str | None:
        """Return the outline with another message in the place of one; None if the template refuses it."""
        messages = self.outline.messages
        return written(self.outline, [*messages[:message], changed, *messages[message + 1 :]])

    def _one(self, kinds: set[str], message: int) -> str:
        """Return the kind of a text, given those that it can be.

        Raises:
            ShapeError: there are several, with different weights.
        """
        if len({self.weights[kind] for kind in kinds}) > 1:
            named = " or ".join(_WORDS[kind] for kind in _WORDS if kind in kinds)
            raise ShapeError(
                "kind_unknown",
                f"the chat template does not show what it writes for message {message} as {named}, whose weights "
                "differ; give them the same weight in prompt_template.train_on, or use another chat template",
            )
        return CONTENT if CONTENT in kinds else min(kinds)


def _called(bit: _Bit, calls: Range | None) -> Iterator[_Bit]:
    """Divide a bit where tool calls start and end."""
    if bit.kind or calls is None:
        yield bit
        return
    start = bit.start
    for piece in divided(bit.piece, start, [calls]):
        yield _Bit(bit.home, start, piece, piece.text or "")
        start += len(piece.text or "")


def _taken(bits: Sequence[_Bit], size: int) -> tuple[list[_Bit], list[_Bit]]:
    """Divide adjacent bits after the first `size` characters."""
    taken: list[_Bit] = []
    left: list[_Bit] = []
    for bit in bits:
        for part in bit.cut(size - sum(len(other.text) for other in taken)):
            room = size - sum(len(other.text) for other in taken)
            (taken if not left and room >= len(part.text) > 0 else left).append(part)
    return taken, left


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
    others = {outline.owners[int(found)] for found in MARK.findall(text)} - {index}
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


def written(outline: StopFinder, messages: Sequence[Message]) -> str | None:
    """Render messages; None if the template refuses them."""
    try:
        return outline.write(messages, True, False)
    except TemplateError:
        return None
