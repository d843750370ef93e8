"""Finds what the model generates of each message in a chat template's outline, and the stop that ends its turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise, product, takewhile
from typing import NamedTuple

from tokenloom.assets.prompts.outline import Outline, ShapeError, alike, inserted
from tokenloom.assets.prompts.spans import Piece, split_control
from tokenloom.resources.templates.jinja import Slot
from tokenloom.resources.templates.marks import MARK, mark

MARKED = "use a chat template with {% generation %} marks and train_on: completions"
"""The remedy where the text of a whole conversation does not show what the model generates of a message."""

REPEATED = "the chat template writes a trained message more than once"


@dataclass(frozen=True)
class TurnBounds:
    """The part of the outline that the model generates for a message, or the position of an empty content.

    Args:
        message: index of the message.
        start, end: character positions in the outline; equal for an empty content.
        stop: where the turn's stop starts, within the turn; `end` if the turn has no stop.
        stop_follows: whether the stop, if any, comes after the turn, as it does after plain answers.
    """

    message: int
    start: int
    stop: int
    end: int
    stop_follows: bool = False


@dataclass
class TurnBoundaries(Outline):
    """An outline in which the turns of messages, and the stops that end them, are found."""

    _stops: dict[tuple[str, bool, str], str] = field(default_factory=dict, init=False)

    def turn_bounds(self, messages: Sequence[int], marked: bool) -> list[TurnBounds]:
        """Return what the model generates for some messages in addition to their contents, and where empty contents
        are.

        Args:
            marked: whether the template's `{% generation %}` blocks decide what is generated.

        Raises:
            ShapeError: the boundaries of a message with tool calls or reasoning are unknown.
        """
        placed = {slot.value for slot in self.slots}
        reasoned = {owner for value, owner in enumerate(self.owners) if value != owner and value in placed}
        turns: list[TurnBounds | None] = []
        for index in messages:
            content = self.messages[index].get("content")
            if not marked and (index in reasoned or "tool_calls" in self.messages[index]):
                turns.append(self.turn(index))
            elif not content:
                turns.append(self.empty(index, marked))
            elif not marked and isinstance(content, list) and {"type": "image"} in content:
                turns.append(self.illustrated(index))
            elif not marked and self.messages[index]["role"] == "assistant":
                turns.append(self.lead(index))
        return [turn for turn in turns if turn is not None]

    def turn(self, index: int) -> TurnBounds:
        """Return what the model generates for a message with tool calls or reasoning.

        The turn starts after the generation prompt. Its end is found by rendering the conversation up to this message:
        what follows the message's last mark there is the end of the turn, and must follow it in the whole outline too.

        Raises:
            ShapeError: the boundaries are unknown.
        """
        named = self._exact
        if named is None:
            raise self._unknown(index, "the template changes the names of called functions")
        start, tools = self._start(index, named)
        marks = self._marks_of(index)
        at_end = self.prefix(index + 1, False, tools) or ""
        if mark(index) in at_end and mark(index) not in named:
            message = f"the chat template drops the content of message {index} when messages follow"
            raise ShapeError("content_dropped", message, MARKED)
        # rendered up to this message, nothing follows that the template could have written for a later one
        last = [match for match in MARK.finditer(at_end) if match[0] in marks]
        here = [match for match in MARK.finditer(named) if match[0] in marks][: len(last)]
        if at_end and not last and "tool_calls" in self.messages[index]:
            raise self._unknown(index, "the template does not write the names of the called functions")
        if not last or [match[0] for match in last] != [match[0] for match in here]:
            raise self._unknown(index, "the template writes it differently at the end of a conversation")
        end = stop = here[-1].end()
        if "tool_calls" in self.messages[index] or last[-1][0] != mark(index):
            rest = at_end[last[-1].end() :]
            rest = ("".join(rest.partition(self.eos)[:2]) if self.eos else rest).rstrip()
            ends_here = self.eos and self.eos in MARK.split(named[end:], maxsplit=1)[0]
            if not named.startswith(rest, end) and self.eos and not ends_here:
                rest = rest.removesuffix(self.eos).rstrip()  # some templates write EOS only at a conversation's end
            if not named.startswith(rest, end):
                raise self._unknown(index, "the template ends it differently at the end of a conversation")
            stop, end = end + len(rest) - len(self.stop_of(rest)), end + len(rest)
        if set(MARK.findall(named[start:end])) - {match[1] for match in last}:
            results = "tool_calls" in self.messages[index] and "the results of its calls"
            raise self._unknown(index, f"the template writes {results or 'other messages'} into it")
        # regions are places in the outline with the real names, which are not as long as their marks
        positions = [len(self._restored(named[:at])) for at in (start, stop, end)]
        return TurnBounds(index, *positions, stop_follows=self.closing == "")

    def lead(self, index: int) -> TurnBounds | None:
        """Return what the model generates before a message's content, or None if it is only white space or unknown."""
        if self._exact is None:
            return None
        before, content, _ = self._exact.partition(mark(index))
        prompts = content and not (self._prompt and before.endswith(self._prompt))
        at = self._prompted(index, before) if prompts else None
        lead = "" if at is None else before[at:]
        if not lead.strip() or MARK.search(lead):
            return None
        start, end = (len(self._restored(text)) for text in (before[:at], before))
        return TurnBounds(index, start, end, end)

    def _prompted(self, index: int, before: str) -> int | None:
        """Return where the text before a content goes on after the generation prompt, or None if unknown.

        If no prompt is its beginning, it is where the text differs from the prompt: as with a prompt that goes on with
        an empty thought, or after a later system message, which changes how the conversation starts.
        """
        bare = self.prefix(index, False) or ""
        asked = [self.prefix(index, prompt) for prompt in self.prompts]
        prompts = [prompt for prompt in asked if prompt and prompt != bare]
        for prompt in prompts:
            if before.startswith(prompt):
                return len(prompt)
        header = prompts[0].removeprefix(bare) if prompts else self._always(bare)
        if not header or (prompts and not prompts[0].startswith(bare)):
            return None
        bare = bare if prompts else bare.removesuffix(header)
        if not before.startswith(bare):
            at = before.rfind(header)
            return at + len(header) if at >= 0 else None
        at = len(bare) + inserted(before[len(bare) :], header, self.control)[0]
        lead = before[at:].strip()
        return at if lead.startswith(self.control) and lead not in header else None

    def _always(self, bare: str) -> str:
        """Return the generation prompt at the end of a text if the template writes it after every conversation."""
        header = bare.rpartition(self.eos)[2] if self.eos else ""
        return header if header.strip() and not MARK.search(header) and self.text.endswith(header) else ""

    def empty(self, index: int, marked: bool) -> TurnBounds | None:
        """Return the position of an empty content, or what the model generates for the message before it; None if
        unknown.

        Args:
            marked: whether the template's `{% generation %}` blocks decide what is generated.

        Raises:
            ShapeError: the template writes the content in several places.
        """
        filled = self.with_message(index, {**self.messages[index], "content": mark(index)}) or ""
        if filled.count(mark(index)) > 1:
            raise ShapeError("content_repeated", REPEATED)
        before, content, after = filled.partition(mark(index))
        at = len(before)
        prompt = "" if marked or self.messages[index]["role"] != "assistant" else self._asked(index)
        if not content or before + after != self.text:
            return self._bare(index, prompt)
        # the generation prompt can be shorter than what the template writes before an answer, such as an empty thought
        led = prompt and before.startswith(prompt) and not MARK.search(before, len(prompt))
        if not led or not before[len(prompt) :].strip():
            return TurnBounds(index, at, at, at)
        return TurnBounds(index, len(prompt), at, at, stop_follows=True)

    def illustrated(self, index: int) -> TurnBounds | None:
        """Return what the model generates for a content with images, or None if it is unknown: all of an answer after
        its prompt; of another message what the template writes in place of a text."""
        if self.messages[index]["role"] == "assistant":
            return self._bare(index, self._asked(index))
        # a mark in its place shows what is written around the content
        for content in (mark(index), [{"type": "text", "text": mark(index)}]):
            text = self.with_message(index, {**self.messages[index], "content": content}) or ""
            before, written, after = text.partition(mark(index))
            start, end = len(before), len(self.text) - len(after)
            if written and start < end and self.text.startswith(before) and self.text.endswith(after):
                return None if MARK.search(self.text[start:end]) else TurnBounds(index, start, end, end, True)
        return None

    def _bare(self, index: int, prompt: str) -> TurnBounds | None:
        """Return what the template writes for an answer without a mark, or None if it is unknown or nothing.

        Args:
            prompt: the text before it, with the generation prompt; "" if there is none.
        """
        end = (self.written(self.messages[: index + 1]) or "").rstrip()
        follows = prompt and end.startswith(prompt) and end != prompt and self.text.startswith(end)
        if not follows or MARK.search(end, len(prompt)):
            return None
        stop = len(end) - len(self.stop_of(end[len(prompt) :]))
        return TurnBounds(index, len(prompt), stop, len(end), stop_follows=stop == len(end))

    def _asked(self, index: int) -> str:
        """Return the text before a message, with the generation prompt; "" if the template has none."""
        prompted, bare = (self.written(self.messages[:index], True, prompt) or "" for prompt in (True, False))
        return prompted if prompted != bare else ""

    @cached_property
    def closing(self) -> str | None:
        """The stop of a plain answer: what the template writes after it at the end of a conversation, right-stripped.

        Cut to the lines that the template also writes if a question follows, if there are any. None if unknown.
        """
        plain = self._ended(self._last) if self._last >= 0 else None
        if plain is None:
            return None
        _, stop = plain
        shared = stop[: alike(stop, self._followed(self._last))]
        lines = shared if shared == stop else shared[: shared.rfind("\n") + 1]
        return (lines if lines.strip() else stop).rstrip()

    def stop_after(self, index: int, text: str) -> str:
        """Return the stop after a message's content: what ends its turn, up to and including EOS.

        The stop is text that the template also writes if the conversation ends with this message, so that it never
        contains the header of the next turn. Without EOS it is the control tokens that the template writes there, else
        the first control token, else `closing`.

        Args:
            text: the template's text between the content and the next value.
        """
        last = index == len(self.messages) - 1
        key = (self.messages[index]["role"], last, text)
        if key not in self._stops:
            self._stops[key] = self._stop_after(index, text, last)
        return self._stops[key]

    def stop_before(self, role: str) -> str:
        """Return the control token that a message of a role starts with, or "": where turns have no stop, it is one."""
        return _leading_control(split_control(self._followed(len(self.messages) - 1, role), self.control), 1).strip()

    def _stop_after(self, index: int, text: str, last: bool) -> str:
        first = _leading_control(split_control(text, self.control), 1)
        if self.eos and first.endswith(self.eos):
            return first
        shared = self._shared(text, (self._ended(index, self._marked[index]) or ("", ""))[1])
        texts = [piece.text for piece in shared]
        if self.eos in texts:
            return "".join(piece.text or "" for piece in shared[: texts.index(self.eos) + 1])
        if last:  # at the end of a conversation there can be more control tokens, such as a header
            shared = self._shared(text, self._followed(index)) if self.messages[index]["role"] == "assistant" else []
        closing = self.closing if self.closing and text.startswith(self.closing) else ""
        return _leading_control(shared) or first or closing

    def _shared(self, text: str, other: str) -> list[Piece]:
        """Return what two texts begin with alike: control tokens, and the texts between them that are equal."""
        pieces, others = (split_control(one, self.control) for one in (text, other))
        return pieces[: alike(pieces, others)]

    def stop_of(self, text: str) -> str:
        """Return the stop at the end of a turn's text: `closing`, else a control token, else ""."""
        if self.closing == "" and self.eos and text.endswith(self.eos):
            return self.eos
        if self.closing is not None and text.endswith(self.closing):
            return self.closing
        return max((token for token in self.control if text.endswith(token)), key=len, default="")

    @cached_property
    def _exact(self) -> str | None:
        """The named outline if putting the names back gives the outline itself, else None."""
        return self.named if self.named is not None and self._restored(self.named) == self.text else None

    @cached_property
    def _prompt(self) -> str:
        """The generation prompt before the last answer."""
        prompted, without = (self.prefix(self._last, prompted) or "" for prompted in (True, False))
        return prompted.removeprefix(without) if prompted.startswith(without) else ""

    def _start(self, index: int, named: str) -> tuple[int, bool]:
        """Return where the model starts to write a message, and whether tools are described before it.

        Raises:
            ShapeError: no generation prompt is a prefix of the outline.
        """
        # the model starts where a prompt for inference ends, so that must be a prefix of the trained text
        for prompt, tools in product(self.prompts, (True, False)):
            prefix = self.prefix(index, prompt, tools)
            if prefix is None or not named.startswith(prefix):
                continue
            if prefix == self.prefix(index, False, tools):
                return self._start_of_plain(index, prefix, named, tools), tools
            return len(prefix), tools
        for tools in (True, False):
            # a generation prompt can begin as the turn does and go on, for example with <think>
            prompt, header = self.prefix(index, True, tools) or "", self._header(index, tools)
            if header and prompt.startswith(header) and named.startswith(header):
                return len(header), tools
        raise self._unknown(index, "it does not start with the generation prompt")

    def _start_of_plain(self, index: int, prefix: str, named: str, tools: bool) -> int:
        """Return where a message starts that the template does not prompt for: after the header of a plain answer.

        Raises:
            ShapeError: the template has no generation prompt, or writes the message without that header.
        """
        plain, _ = self._ended(index, tools=tools) or ("", "")
        header = plain[len(prefix) :] if plain.startswith(prefix) else None
        if header is not None and not header.strip():
            return len(prefix)
        answers = (at for at, message in enumerate(self.messages) if message["role"] == "assistant")
        if header is None or not named.startswith(plain) or not any(map(self._asked, answers)):
            raise self._unknown(index, "the template has no generation prompt")
        return len(plain)

    def _header(self, index: int, tools: bool) -> str:
        """Return the text before a plain answer that replaces a message in its place, if it ends with a header."""
        before, _ = self.around(index, after=self._marked[index + 1 :], tools=tools) or ("", "")
        return before if len(before) > len(self.prefix(index, False, tools) or "") else ""

    def _unknown(self, index: int, reason: str) -> ShapeError:
        calls = "tool_calls" in self.messages[index]
        has = "tool calls" if calls else "reasoning"
        message = f"cannot determine what the model generates of message {index}, which has {has}: {reason}"
        return ShapeError("tool_calls" if calls else "reasoning", message, MARKED)


def messages_of(pieces: Sequence[Piece], answers: Sequence[int]) -> Iterator[int | None]:
    """Yield the message of each trained piece of the assistant, and None for other pieces.

    Text of a generation block has no message of its own: it belongs to the message before it, else after it, whose
    content the block has, else to the next answer; -1 if there is none.

    Args:
        answers: the indices of the assistant's messages.
    """
    latest = -1
    for trained, run in groupby(pieces, lambda piece: piece.is_answer):
        block = list(run)
        if trained:
            place = bisect_right(answers, latest)
            following = answers[place] if place < len(answers) else -1
            latest = next((piece.message for piece in block if piece.message >= 0), following)
        for piece in block:
            latest = piece.message if trained and piece.message >= 0 else latest
            yield latest if trained else None


def divide(slots: Sequence[Slot], turns: Sequence[TurnBounds]) -> Iterator[tuple[Slot, TurnBounds | None, bool]]:
    """Yield the slots, cut at the bounds of turns: each with its turn, or None, and whether it is the stop.

    An empty turn (an empty content) becomes a slot with a value and no column.
    """
    at, waiting = 0, sorted((turn for turn in turns if turn.start == turn.end), key=lambda r: r.start)
    filled = [turn for turn in turns if turn.start < turn.end]
    cuts = {position for turn in turns for position in (turn.start, turn.stop, turn.end)}
    for slot in slots:
        length = len(mark(slot.value)) if slot.value >= 0 else len(slot.text)
        for start, end in pairwise([at, *sorted(cut for cut in cuts if at < cut < at + length), at + length]):
            while waiting and waiting[0].start <= start:
                turn = waiting.pop(0)
                yield Slot(turn.message, "", slot.generated), turn, False
            within = next((turn for turn in filled if turn.start <= start < turn.end), None)
            part = slot if slot.value >= 0 else Slot(-1, slot.text[start - at : end - at], slot.generated)
            yield part, within, within is not None and start >= within.stop
        at += length
    for turn in waiting:
        yield Slot(turn.message, "", 0), turn, False


def _leading_control(pieces: Sequence[Piece], most: int | None = None) -> str:
    """Return the control tokens that some pieces begin with and the white space before each, or ""."""
    run = list(takewhile(lambda piece: piece.control or not (piece.text or "").strip(), pieces))
    ends = [number for number, piece in enumerate(run, 1) if piece.control][:most]
    return "".join(piece.text or "" for piece in run[: ends[-1]]) if ends else ""


class AnswerEnd(NamedTuple):
    """Where an answer ends, without its stop.

    Args:
        message: index of the answer.
        at: number of pieces before the end.
        weight: training weight of the answer's last piece.
    """

    message: int
    at: int
    weight: float


def without_trailing_space(literal: Sequence[Piece]) -> int:
    """Return the number of pieces before the trailing white space."""
    return max(index for index, piece in enumerate(literal, 1) if piece.control or (piece.text or "").strip())


def with_stop(pieces: list[Piece], answer_end: AnswerEnd | None, eos: str | None, part: str) -> list[Piece]:
    """Add EOS right after the last answer, if the answer is trained and the template writes no stop after it.

    Args:
        part: the part of EOS.
    """
    if eos is None or answer_end is None or not answer_end.weight:
        return pieces
    after, weight = answer_end.at, answer_end.weight
    if any(piece.weight and (piece.control or (piece.text or "").strip()) for piece in pieces[after:]):
        return pieces
    return [*pieces[:after], Piece(eos, role="assistant", weight=weight, control=True, part=part), *pieces[after:]]
