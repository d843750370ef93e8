"""Text with brackets around what is trained, for where there are no colours."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from tokenloom.assets.shown_rows.token_runs import Run
from tokenloom.resources.visible import visible

BRACKETS = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""Around trained text."""


def bracketed(runs: Iterable[Run]) -> str:
    """Return the text of runs, with brackets around what is trained."""
    parts = []
    for trained, group in groupby(runs, key=lambda run: run.trained):
        text = "".join(map(plain_text, group))
        parts.append(text.join(BRACKETS) if trained else text)
    return "".join(parts)


def plain_text(run: Run) -> str:
    """Return the text of a run, or what stands for it."""
    if run.opens:
        return f"\n\N{BOX DRAWINGS LIGHT HORIZONTAL} {visible(run.text)}\n"
    return f"[{cut_marker(run.tokens)}]" if run.dropped else visible(run.text)


def cut_marker(tokens: int) -> str:
    """Return what is shown in place of tokens that were cut from a row."""
    return f"\N{BLACK SCISSORS} cut: {tokens:,} {'token' if tokens == 1 else 'tokens'} dropped here"
