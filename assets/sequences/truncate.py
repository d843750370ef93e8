"""Truncates rows to `max_length` tokens, on the right, on the left or in the middle."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges

Truncation = Literal["truncate_right", "truncate_left", "truncate_middle"]


def kept_tokens(lengths: Ints, max_length: int, strategy: Truncation) -> tuple[Ints, Ints]:
    """Return which tokens are kept.

    Args:
        lengths: int64 [rows].

    Returns:
        int64, the flat indices of the kept tokens, in order; and int64 [rows], the new lengths.
    """
    starts = offsets_of(lengths)[:-1]
    new = np.minimum(lengths, max_length)
    if strategy == "truncate_right":
        return ranges(starts, new), new
    if strategy == "truncate_left":
        return ranges(starts + lengths - new, new), new
    head = (new + 1) // 2
    tail = new - head
    halves = np.column_stack([starts, starts + lengths - tail]).ravel()
    return ranges(halves, np.column_stack([head, tail]).ravel()), new
