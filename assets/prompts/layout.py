"""Layouts: the pieces of a text in order, with BOS, EOS and control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tokenloom.assets.prompts.answer_border import Rule
from tokenloom.assets.prompts.spans import Piece
from tokenloom.config import PipelineConfig, PromptTemplateConfig
from tokenloom.config.trained_kinds import KINDS
from tokenloom.resources.templates.custom import parse_custom


def custom_layout(
    config: PipelineConfig,
    fields: list[str],
    control: tuple[str, ...],
    bos: str | None,
    eos: str | None,
    border: Rule | None,
) -> list[Piece]:
    """Return the layout of a custom template: BOS, the template's parts, and a trained EOS after the answer.

    Args:
        fields: names of the columns, in the order in which `assemble` gets them.
        control: the tokenizer's control tokens; in the template's own text they become control tokens.
        bos, eos: tokens to add, or None.
        border: which white space before the answer belongs to it.
    """
    prompt = config.prompt_template
    everything = 1.0 if prompt.train_on == "all" else 0.0
    numbers = column_numbers(fields)
    pieces: list[Piece] = []
    ends: list[int] = []
    for part in parse_custom(config):
        if not part.is_field:
            pieces += split_control(part.text, control, weight=everything)
        elif part.text == prompt.label_column:
            number = numbers[part.text]
            pieces.append(Piece(None, fields.index(part.text), "answer", number, weight=1.0, border=border))
            ends.append(len(pieces))
        else:
            pieces.append(Piece(None, fields.index(part.text), "input", numbers[part.text], weight=everything))
    if prompt.label_column is None and eos:
        pieces.append(Piece(eos, weight=1.0, control=True))
    for end in reversed(ends):
        pieces = with_eos(pieces, end, eos)
    return with_bos(pieces, bos)


def with_eos(pieces: list[Piece], end: int, eos: str | None) -> list[Piece]:
    """Return pieces with a trained EOS after an answer: the template's own if it follows, else an added one.

    Args:
        end: the number of pieces before the end of the answer.
        eos: the token; None leaves the pieces unchanged.
    """
    if eos is None:
        return pieces
    own = next((at for at, piece in enumerate(pieces[end:], end) if (piece.text or "x").strip()), len(pieces))
    if own < len(pieces) and pieces[own].control and pieces[own].text == eos:
        stop = [replace(piece, role="answer", weight=1.0) for piece in pieces[end : own + 1]]
        return [*pieces[:end], *stop, *pieces[own + 1 :]]
    return [*pieces[:end], Piece(eos, role="answer", weight=1.0, control=True), *pieces[end:]]


def with_ends(pieces: list[Piece], bos: str | None, eos: str | None) -> list[Piece]:
    """Return pieces with BOS, and a trained EOS after the last trained one unless that is a control token."""
    last = max((index for index, piece in enumerate(pieces) if piece.weight), default=len(pieces) - 1)
    stopped = bool(pieces) and pieces[last].control
    return with_bos(pieces if stopped else with_eos(pieces, last + 1, eos), bos)


def column_numbers(fields: Iterable[str]) -> dict[str, int]:
    """Return the number of each column of a template in `SPAN`'s `message`: its index among the sorted names."""
    return {name: number for number, name in enumerate(sorted(fields))}


def with_bos(pieces: list[Piece], bos: str | None) -> list[Piece]:
    """Add BOS before the pieces, unless the template's own text starts with it (white space aside)."""
    solid = (piece for piece in pieces if piece.control or piece.text is None or piece.text.strip())
    first = next(solid, None)
    if bos is None or (first is not None and first.control and first.text == bos):
        return pieces
    return [Piece(bos, control=True), *pieces]


def split_control(text: str, control: tuple[str, ...], **attributes: float | int | str) -> list[Piece]:
    """Split a template's literal into pieces, each control token in its own piece."""
    if not control or not text:
        return [Piece(text, **attributes)] * bool(text)  # pyright: ignore[reportArgumentType]
    longest_first = "|".join(re.escape(token) for token in sorted(control, key=lambda token: (-len(token), token)))
    names = set(control)
    return [
        Piece(part, control=part in names, **attributes)  # pyright: ignore[reportArgumentType]
        for part in re.split(f"({longest_first})", text)
        if part
    ]


def roles_trained(prompt: PromptTemplateConfig) -> frozenset[str]:
    """Return the roles whose messages are trained; with `train_on: last`, of these only the last message is."""
    if prompt.train_on == "all":
        return frozenset({"system", "user", "assistant", "tool"})
    if isinstance(prompt.train_on, tuple):
        return frozenset(prompt.train_on)
    if (weights := prompt.weights) is not None:
        return frozenset("assistant" if name in KINDS else name for name, weight in weights.items() if weight)
    return frozenset({"assistant"})
