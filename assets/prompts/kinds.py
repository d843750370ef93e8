"""Divides what is trained of each answer into kinds: reasoning, tool calls, and with weights by kind content and stop.

Contents and reasoning are values of the template, so their positions are known. The text of a message's tool calls is
what the template writes with them and not without them: the conversation is rendered again without the calls of the
message, and the two outlines are compared. If nothing weighs kinds, this is all: it is what trained tokens are counted
by, and the other text has no kind.

With weights by kind in `train_on`, all text has one. The stop is what ends the turn. What the template writes between
the parts is divided as follows:

- Text before the reasoning, such as `<think>`, is reasoning. So is the text that closes it: up to `</think>`, else what
  the template writes after the reasoning only because there is some, else all text up to the next part.
- An empty `<think></think>`, or what a template writes around reasoning, before an answer without any, is reasoning.
- All other text is content.

Where the template does not show which of two kinds a text is, their weights must be the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from tokenloom.assets.prompts.outline import ShapeError, inserted
from tokenloom.assets.prompts.spans import CLOSE, CONTENT, OPEN, PARTS, REASONING, STOP, TOOL_CALL, Piece
from tokenloom.assets.prompts.turns import TurnBoundaries, messages_of
from tokenloom.assets.stage.forms import REASONING_FIELDS
from tokenloom.resources.templates.marks import MARK, mark

_EMPTY = re.compile(rf"\s*(?:{OPEN})?\s*{CLOSE}\s*")
_PROBE = mark(10**9)
_WORDS = {CONTENT: "content", REASONING: "reasoning", TOOL_CALL: "tool calls", STOP: "the stop"}
_NAMES = ("", *PARTS)

Range = tuple[int, int]
"""Start and end in an outline, in characters."""


@dataclass
class AnswerKinds:
    """The kind of each character of an outline, as far as it is known.

    Args:
        pieces: the pieces of the whole outline, in order.
        outline: renders the conversations without some of their parts.
        contents: the number of values that are contents; the values after them are reasoning.
        weights: the weight of each kind; None if only reasoning and tool calls are to be found.
        marked: whether the template's `{% generation %}` blocks decide what is trained, stops included.
    """

    pieces: Sequence[Piece]
    outline: TurnBoundaries
    contents: int
    weights: Mapping[str, float] | None
    marked: bool

    def __post_init__(self) -> None:
        value_of = {slot.column: slot.value for slot in self.outline.slots if slot.value >= 0}
        values = [value_of[piece.column] if piece.text is None else -1 for piece in self.pieces]
        texts = (piece.text or mark(value) for piece, value in zip(self.pieces, values, strict=True))
        self._ranges = [*pairwise(accumulate(map(len, texts), initial=0))]
        self._values = {place for place, value in zip(self._ranges, values, strict=True) if value >= 0}
        self._control = {place for place, piece in zip(self._ranges, self.pieces, strict=True) if piece.control}
        # a byte per character: the number of its kind in `_NAMES`, and whether a part starts there; pieces are cut last
        self._kinds, self._starts = bytearray(len(self.outline.text)), bytearray(len(self.outline.text) + 1)
        for place, value, piece in zip(self._ranges, values, self.pieces, strict=True):
            if piece.is_answer:
                plain = CONTENT if self.weights and value >= 0 else piece.part
                self._label([place], REASONING if value >= self.contents else plain)

    def divide(self) -> list[list[Piece]]:
        """Divide the pieces of trained answers by kind. Returns a list for each piece of the outline.

        Raises:
            ShapeError: the kind of a text is unknown, and it could be one of several with different weights.
        """
        find = self._find_calls if self.weights is None else self._find_kinds
        find()
        return [[*self._parts(piece, place)] for piece, place in zip(self.pieces, self._ranges, strict=True)]

    def _parts(self, piece: Piece, place: Range) -> Iterator[Piece]:
        for part in self._cut([place]) if piece.is_answer else ():
            yield replace(piece, text=piece.text and self._text([part]), part=self._kind(part))
        if not piece.is_answer:
            yield piece

    def _find_calls(self) -> None:
        """Find the tool calls of trained messages; text of a generation block can be of any message."""
        answers = {place: piece for place, piece in zip(self._ranges, self.pieces, strict=True) if piece.is_answer}
        trained = {piece.message for piece in answers.values() if piece.text is not None}
        for index, message in enumerate(self.outline.messages):
            calls = added_calls(self.outline, index) if message.get("tool_calls") and {index, -1} & trained else None
            self._label_calls(answers, calls and calls[0])

    def _find_kinds(self) -> None:
        turns: dict[int, list[Range]] = {}
        answers = [index for index, message in enumerate(self.outline.messages) if message["role"] == "assistant"]
        for place, message in zip(self._ranges, messages_of(self.pieces, answers), strict=True):
            if message is not None:
                turns.setdefault(message, []).append(place)
        starts = {ranges[0][0] for ranges in turns.values()}
        for message, ranges in turns.items():
            self._find_kinds_of(message, ranges, ranges[-1][1] in starts)

    def _find_kinds_of(self, message: int, ranges: Sequence[Range], joined: bool) -> None:
        """Find the kinds of what is trained of a message.

        Args:
            joined: whether what is trained of another message follows.
        """
        called = message >= 0 and bool(self.outline.messages[message].get("tool_calls"))
        calls, apart = (called and added_calls(self.outline, message)) or (None, False)
        calls, within = self._without_values(calls, [place for place in ranges if place in self._values])
        if self.marked and not any(self._kind(place) == STOP for place in ranges):
            self._label_stop(message, ranges, called, joined)
        self._label_calls(ranges, calls)
        # in a message without content, what is around the calls belongs to them
        said = any(self._kind(place) == CONTENT for place in ranges if place in self._values)
        rest = CONTENT if not calls or said else TOOL_CALL
        # values, calls and stops have their kinds by now: what is between two of them has the one that they show
        runs = [(kind, [*run]) for kind, run in groupby(self._cut(ranges), key=self._kind)]
        before = ""
        for (kind, run), (following, _) in zip(runs, [*runs[1:], ("", [])], strict=True):
            if kind:
                self._label(run, self._one({kind, *within} if kind == TOOL_CALL else {kind}, message))
                before = kind
                continue
            closed, kinds = self._between(message, self._text(run), ranges[0][0], before, following)
            if CONTENT in kinds:
                beside = called and (calls is None or (not apart and TOOL_CALL in (before, following)))
                kinds = {rest if kind == CONTENT else kind for kind in kinds} | ({TOOL_CALL} if beside else set())
            reasoning, others = self._split(run, closed)
            self._label(reasoning, REASONING)
            self._label(others, self._one(kinds, message) if self._text(others).strip() else min(kinds))

    def _label(self, ranges: Iterable[Range], kind: str) -> None:
        for start, end in ranges:
            self._kinds[start:end] = bytes([_NAMES.index(kind)]) * (end - start)
            self._starts[start] = self._starts[end] = True

    def _kind(self, part: Range) -> str:
        return _NAMES[self._kinds[part[0]]]

    def _text(self, ranges: Iterable[Range]) -> str:
        return "".join(self.outline.text[start:end] for start, end in ranges)

    def _cut(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """Yield the parts of ranges, each of one kind."""
        for start, end in ranges:
            while start < end:
                following = self._starts.find(True, start + 1, end)
                yield start, end if following < 0 else following
                start = end if following < 0 else following

    def _split(self, ranges: Iterable[Range], size: int) -> tuple[list[Range], list[Range]]:
        """Divide ranges after `size` characters; a control token that ends after them is in the second part."""
        first, second = list[Range](), list[Range]()
        for start, end in ranges:
            at = start if second or (size < end - start and (start, end) in self._control) else min(start + size, end)
            first += [(start, at)] * (at > start)
            second += [(at, end)] * (at < end)
            size -= at - start
        return first, second

    def _label_calls(self, ranges: Iterable[Range], calls: Range | None) -> None:
        """Label what is within tool calls and has no kind; control tokens that reach out of calls are part of them."""
        for start, end in [*self._cut(ranges)] if calls else ():
            has_kind = self._kinds[start] or (start, end) in self._values
            if calls and not has_kind and calls[0] < end and calls[1] > start:
                whole = (start, end) in self._control
                self._label([(start, end) if whole else (max(start, calls[0]), min(end, calls[1]))], TOOL_CALL)

    def _without_values(self, calls: Range | None, values: Sequence[Range]) -> tuple[Range | None, set[str]]:
        """Return where the text of calls is without a content at its start or end, and without closed reasoning; and
        the kinds of the other values within it."""
        within: set[str] = set()
        text = self.outline.text
        for start, end in values:
            if calls is None or not calls[0] <= start < calls[1]:
                continue
            kind, closes = self._kind((start, end)), text.find(CLOSE, end, calls[1])
            if kind == CONTENT and not text[calls[0] : start].strip():
                calls = end, calls[1]
            elif kind == CONTENT and not text[end : calls[1]].strip():
                calls = calls[0], start
            elif kind == REASONING and closes >= 0:
                rest = text[closes + len(CLOSE) : calls[1]]
                calls = calls[1] - len(rest.lstrip()), calls[1]
            else:
                within.add(kind)
        return calls, within

    def _label_stop(self, message: int, ranges: Sequence[Range], called: bool, joined: bool) -> None:
        """Find the stop in an answer that generation blocks mark."""
        last = max((index for index, place in enumerate(ranges) if place in self._values), default=-1)
        tail = self._text(ranges[last + 1 :])
        at, body = 0, tail.rstrip()
        if called or last < 0 or self._kind(ranges[last]) != CONTENT:
            # the turn can go on before its stop, so that is only what is known to end turns
            outline, end = self.outline, ranges[-1][1]
            follows = bool(outline.closing) and outline.text[end:].lstrip().startswith(outline.closing or "")
            stop = "" if follows else outline.stop_of(body)
            at = len(body) - len(stop) if stop not in ("", OPEN, CLOSE) else len(tail)
        _, stop = self._split(ranges[last + 1 :], at)
        if joined and message >= 0:  # after the stop comes the header of the next answer
            stop, _ = self._split(stop, len(self.outline.stop_after(message, tail[at:])))
        self._label(stop, STOP)

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
        _, tag, after = text.partition(CLOSE)
        if tag:
            return len(text) - len(after.lstrip())
        # without the tag, what closes the reasoning is what the template does not write for the message without it
        said, owners = self.outline.messages[message], enumerate(self.outline.owners)
        bare = {name: value for name, value in said.items() if name not in REASONING_FIELDS}
        reasoning = next(mark(value) for value, of in owners if of == message and value >= self.contents)
        if isinstance(said.get("content"), str) and reasoning in said["content"]:
            bare["content"] = mark(message) if mark(message) in said["content"] else ""
        without = self.outline.with_message(message, bare)
        closes = None if without is None else self._closes(self.outline.text, without, reasoning, begin)
        if closes is None:
            return None if text.strip() else len(text)
        return closes if text[:closes].strip() and text[closes:].strip() else len(text)

    def _empty(self, message: int, text: str, begin: int) -> int | None:
        """Return how many characters before an answer are what surrounds reasoning elsewhere; None if unknown."""
        if OPEN in text or CLOSE in text:
            thought = _EMPTY.match(text)
            rest = text[thought.end() :] if thought else OPEN
            return None if OPEN in rest or CLOSE in rest else len(text) - len(rest)
        if message < 0 or not text.strip():
            return 0
        said = self.outline.messages[message]
        # with a thought in its place, the template shows what it writes around one
        thinking = self.outline.with_message(message, {**said, **dict.fromkeys(REASONING_FIELDS, _PROBE)})
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
        # in `<think>T</think><answer>` added to `<answer>`, the first `<` can be the added one, or the one before it:
        # of all places at which the added text can be, the first one is where the answer begins
        moved = 0
        while start - moved > begin and whole[start - moved - 1] == whole[end - moved - 1]:
            moved += 1
        if start - moved > begin:  # the text can be at several places, of which none is the beginning
            if whole[start - moved : start].strip():
                return None
            moved = 0
        return end - moved - stop if end - moved >= stop else None

    def _one(self, kinds: set[str], message: int) -> str:
        """Return the kind of a text, given those that it can be.

        Raises:
            ShapeError: there are several, with different weights.
        """
        if self.weights and len({self.weights[kind] for kind in kinds}) > 1:
            named = " or ".join(_WORDS[kind] for kind in _WORDS if kind in kinds)
            raise ShapeError(
                "kind_unknown",
                f"the chat template does not show what it writes for message {message} as {named}, whose weights "
                "differ; give them the same weight in prompt_template.train_on, or use another chat template",
            )
        return CONTENT if CONTENT in kinds else min(kinds)


def added_calls(outline: TurnBoundaries, index: int) -> tuple[Range, bool] | None:
    """Find what a template writes for a message's calls: where it starts and ends, in characters, and whether all other
    text is the same without the calls. None if unknown.

    The rest of the conversation can need the calls, so it is omitted if the template refuses it without them.
    """
    message = outline.messages[index]
    before, after = outline.messages[:index], outline.messages[index + 1 :]
    bare = {name: value for name, value in message.items() if name != "tool_calls"}
    for rest in [after, ()] if after else [()]:
        whole = outline.text if len(rest) == len(after) else outline.written([*before, message])
        without = outline.written([*before, bare, *rest])
        if without is None:  # some templates refuse a message with neither calls nor content
            without = outline.written([*before, {**bare, "content": ""}, *rest])
        if whole is None or without is None:
            continue
        start, end = inserted(whole, without, outline.control)
        same = whole[:start] + whole[end:] == without
        start, end = _before_stop(outline, whole, start, end)
        if outline.text.startswith(whole[:end]) and _holds_calls(outline, index, whole[start:end]):
            return (start, end), same
    return None


def _holds_calls(outline: TurnBoundaries, index: int, text: str) -> bool:
    """Return whether a text has all calls of a message, and nothing of other messages."""
    names = [call["function"]["name"] for call in outline.messages[index]["tool_calls"]]
    others = {outline.owners[int(value)] for value in MARK.findall(text)} - {index}
    return not others and all(name in text for name in names)


def _before_stop(outline: TurnBoundaries, whole: str, start: int, end: int) -> Range:
    """Return a part of a text, moved left until a turn's stop follows it, if the text without it stays the same.

    Without this, `<` at the start of the stop could be the one at the start of a call.
    """
    for moved in range(start + 1):
        if outline.closing and whole.startswith(outline.closing, end - moved):
            return start - moved, end - moved
        if whole[start - moved - 1 : start - moved] != whole[end - moved - 1 : end - moved]:
            break
    return start, end
