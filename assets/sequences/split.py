"""Divides long rows into pieces that overlap, so that every token is trained once."""

from __future__ import annotations

import numpy as np

from tokenloom.resources.tables.ragged import Ints, offsets_of, row_of


def overlapping(lengths: Ints, max_length: int, stride: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Pieces of at most `max_length` tokens, each from the second of a row on beginning `stride` tokens early.

    Args:
        lengths: int64 [rows].
        stride: less than `max_length`.

    Returns:
        int64 [pieces]: the row of each piece, its first token within the row, its tokens, and how many of them the
        piece before it ends with.
    """
    step = max_length - stride
    counts = 1 + np.maximum(-(-(lengths - max_length) // step), 0)
    row = row_of(counts)
    number = np.arange(len(row)) - np.repeat(offsets_of(counts)[:-1], counts)
    begin = number * step
    return row, begin, np.minimum(lengths[row] - begin, max_length), np.where(number > 0, stride, 0)
