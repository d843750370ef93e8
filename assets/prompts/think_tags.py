"""Finds inline reasoning, `<think>…</think>` at the start of a content."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.ragged import Ints, holds

OPEN, CLOSE = "<think>", "</think>"

_PARTS = f"^(?s)(?P<before>(?:{OPEN})?\n*)(?P<thought>.*?)\n*{CLOSE}"


def inline_parts(content: str) -> tuple[str, str, str, str] | None:
    """Return a content with inline reasoning in parts; None if it has none, or several.

    Returns:
        the text before the reasoning, the reasoning, the text between it and the rest, and the rest. Line feeds next to
        `<think>` and `</think>` belong to the first and third part.
    """
    head, close, tail = content.partition(CLOSE)
    opening = OPEN if head.startswith(OPEN) else ""
    if not close or OPEN in head[len(opening) :] or OPEN in tail or CLOSE in tail:
        return None
    thought, rest = head[len(opening) :].strip("\n"), tail.lstrip("\n")
    start = len(head) - len(head[len(opening) :].lstrip("\n"))
    return head[:start], thought, content[start + len(thought) : len(content) - len(rest)], rest


def thought_bounds(contents: pa.Array) -> Ints | None:
    """Return where the inline reasoning of each content is, as `inline_parts` divides it; None if no content has any.

    Args:
        contents: string [rows].

    Returns:
        int64 [rows, 2], start and end in bytes; 0 and 0 for contents without inline reasoning.
    """
    if not holds(contents, CLOSE.encode()):
        return None
    once = pc.equal(pc.count_substring(contents, CLOSE), 1)
    opened = pc.starts_with(contents, OPEN).cast(pa.int32())
    rows = np.flatnonzero(pc.and_(once, pc.equal(pc.count_substring(contents, OPEN), opened)))
    bounds = np.zeros((len(contents), 2), np.int64)
    before, thought = pc.extract_regex(contents.take(pa.array(rows)), _PARTS).flatten()
    bounds[rows] = np.cumsum(np.column_stack([pc.binary_length(before), pc.binary_length(thought)]), axis=1)
    return bounds


def reasoning_bounds(contents: pa.Array) -> Ints | None:
    """Return where the inline reasoning of each content is, with its tags and the line feeds after them.

    Args:
        contents: string [rows].

    Returns:
        int64 [rows, 2], start (always 0) and end in bytes; 0 and 0 for contents without inline reasoning, -1 and -1 for
        contents with tags in other places. None if no content has tags.
    """
    if not any(holds(contents, tag.encode()) for tag in (OPEN, CLOSE)):
        return None
    opens, closes = (pc.count_substring(contents, tag).to_numpy() for tag in (OPEN, CLOSE))
    opened = pc.match_substring_regex(contents, rf"^\s*{OPEN}").to_numpy(zero_copy_only=False)
    bounds = np.zeros((len(contents), 2), np.int64)
    bounds[(opens > 0) | (closes > 0)] = -1
    rows = np.flatnonzero((closes == 1) & (opens == opened))
    (reasoning,) = pc.extract_regex(contents.take(pa.array(rows)), rf"^(?s)(?P<all>.*?{CLOSE}\n*)").flatten()
    bounds[rows, 0], bounds[rows, 1] = 0, pc.binary_length(reasoning)
    return bounds
