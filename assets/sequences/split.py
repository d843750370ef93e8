"""Splits long rows into overlapping pieces; the caller masks the overlap, so that every token is trained once."""

from __future__ import annotations

import numpy as np

from tokenloom.resources.tables.ragged import Ints, offsets_of, row_of


def overlapping(lengths: Ints, max_length: int, stride: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Split rows into pieces of at most `max_length` tokens; consecutive pieces share `stride` tokens.

    Args:
        lengths: int64 [rows].
        stride: in tokens, less than `max_length`.

    Returns:
        Four arrays, int64 [pieces]: the row of the piece, its first token within the row, its number of tokens, and how
        many of them it shares with the piece before.
    """
    step = max_length - stride
    counts = 1 + np.maximum(-(-(lengths - max_length) // step), 0)
    row = row_of(counts)
    number = np.arange(len(row)) - np.repeat(offsets_of(counts)[:-1], counts)
    start = number * step
    return row, start, np.minimum(lengths[row] - start, max_length), np.where(number > 0, stride, 0)
