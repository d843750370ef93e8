"""Finds the stop of a turn: what the model must generate to end it, up to and including EOS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from tokenloom.assets.prompts.outline import MARK, Outline, mark
from tokenloom.assets.prompts.segments import split_control
from tokenloom.assets.prompts.spans import Piece


@dataclass
class StopFinder(Outline):
    """An outline whose turns end with stops."""

    _stops: dict[tuple[str, bool, str], str] = field(default_factory=dict)

    @cached_property
    def closing(self) -> str | None:
        """The stop of a plain answer: what the template writes after it at the end of a conversation, right-stripped.

        Cut to the lines that the template also writes if a question follows, if there are any. None if unknown.
        """
        plain = self._plain(self._last) if self._last >= 0 else None
        if plain is None:
            return None
        same = takewhile(lambda pair: pair[0] == pair[1], zip(plain[1], self._followed(self._last), strict=False))
        common = "".join(char for char, _ in same)
        lines = common if common == plain[1] else common[: common.rfind("\n") + 1]
        return (lines if lines.strip() else plain[1]).rstrip()

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
        shared = self._shared(text, self._ended(index))
        texts = [piece.text for piece in shared]
        if self.eos in texts:
            return "".join(piece.text or "" for piece in shared[: texts.index(self.eos) + 1])
        if last:  # at the end of a conversation there can be more control tokens, such as a header
            answers = self.messages[index]["role"] == "assistant"
            shared = self._shared(text, self._followed(index)) if answers else []
        return _leading_control(shared) or first or self._closing_of(text)

    def _closing_of(self, text: str) -> str:
        return self.closing if self.closing and text.startswith(self.closing) else ""

    def _ended(self, index: int) -> str:
        """Return the text after a message's content if the conversation ends with this message, or ""."""
        message = {**self._marked[index], "content": mark(index)}
        written = self._written([*self._marked[:index], message], True, False) or ""
        _, found, after = written.rpartition(mark(index))
        return after if found and not MARK.search(after) else ""

    def _shared(self, text: str, other: str) -> list[Piece]:
        """Return what two texts begin with alike: control tokens, and the texts between them that are equal."""
        pieces = zip(split_control(text, self.control), split_control(other, self.control), strict=False)
        return [piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], pieces)]

    def _cut_after_eos(self, text: str) -> str:
        """Return a text up to and including the first EOS, or the whole text."""
        before, found, _ = text.partition(self.eos) if self.eos else (text, "", "")
        return before + found

    def stop_of(self, text: str) -> str:
        """Return the stop at the end of a turn's text: `closing`, else a control token, else ""."""
        if self.closing == "" and self.eos and text.endswith(self.eos):
            return self.eos
        if self.closing is not None and text.endswith(self.closing):
            return self.closing
        return max((token for token in self.control if text.endswith(token)), key=len, default="")


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
    stopped = any(piece.weight and (piece.control or (piece.text or "").strip()) for piece in pieces[after:])
    if stopped:
        return pieces
    return [*pieces[:after], Piece(eos, role="assistant", weight=weight, control=True, part=part), *pieces[after:]]
