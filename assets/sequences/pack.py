"""Puts several documents into one sequence."""

from __future__ import annotations

import numpy as np

from tokenloom.resources.ragged import Ints


def concat(lengths: Ints, max_length: int) -> tuple[Ints, Ints, Ints]:
    """Join documents end to end and cut every `max_length` tokens; no token is lost or repeated.

    Args:
        lengths: int64 [documents], none 0.

    Returns:
        For the pieces that the cuts leave, in order: int64 [pieces] of the document and of the tokens in each; and
        int64 [sequences] of the number of pieces in each sequence.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.arange(max_length, total, max_length)
    bounds = np.unique(np.concatenate([[0], ends, cuts]))
    pieces = np.diff(bounds)
    begins = bounds[:-1]
    document = np.searchsorted(ends, begins, side="right")
    sequences = np.bincount(begins // max_length) if total else np.zeros(0, np.int64)
    return document, pieces, sequences
