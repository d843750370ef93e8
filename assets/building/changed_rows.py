"""Compares rows by their content: which were added, removed or changed.

Rows are equal where their contents hash alike. As multisets: of rows that both sides hold, as many are kept as both
have, the first ones; what is left of A was removed, what is left of B was added. A removed and an added row are one
changed row where they stand at the same place: between the same two neighbours that were kept (or the begin or end of
the split), and so many rows behind the first of these. A row that only moved is no difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tables.row_hash import Hashes, mix

_BEGIN, _END = np.uint64(1), np.uint64(2)


@dataclass(frozen=True)
class Side:
    """The rows of one side in order.

    Args:
        hashes: uint64 [items]: of each row's content, or for rows that both sides are known to hold, of all of them.
        known: bool [items]: where an item stands for such rows.
    """

    hashes: Hashes
    known: np.ndarray


@dataclass(frozen=True)
class RowDiff:
    """Indices of items, ascending: those only in B, those only in A, and the changed ones as they are in A and in B."""

    added: Ints
    removed: Ints
    changed: tuple[Ints, Ints]


def diff_rows(a: Side, b: Side) -> RowDiff:
    """What differs between two sides; see the module."""
    kept_a, kept_b = _kept(a, b), _kept(b, a)
    lost_a, lost_b = np.flatnonzero(~kept_a), np.flatnonzero(~kept_b)
    places = _places(a.hashes, kept_a), _places(b.hashes, kept_b)
    _, in_a, in_b = np.intersect1d(*places, assume_unique=True, return_indices=True)
    order = np.argsort(in_b)
    in_a, in_b = in_a[order], in_b[order]
    return RowDiff(np.delete(lost_b, in_b), np.delete(lost_a, in_a), (lost_a[in_a], lost_b[in_b]))


def _kept(side: Side, other: Side) -> np.ndarray:
    """bool [items]: which the other side holds too."""
    kept = side.known.copy()
    mine = side.hashes[~side.known]
    theirs = np.sort(other.hashes[~other.known])
    found = np.searchsorted(theirs, mine, side="right") - np.searchsorted(theirs, mine, side="left")
    kept[~side.known] = _occurrence(mine) < found
    return kept


def _places(hashes: Hashes, kept: np.ndarray) -> Hashes:
    """uint64 [lost items], all different: the neighbours that were kept, and the way from the first of them."""
    index, end = np.arange(len(hashes)), len(hashes)
    before = np.maximum.accumulate(np.where(kept, index, -1))
    behind = np.minimum.accumulate(np.where(kept, index, end)[::-1])[::-1]
    around = np.concatenate([[_BEGIN], mix(hashes), [_END]])
    lost = ~kept
    place = mix(mix(around[before[lost] + 1]) + around[behind[lost] + 1])
    place = mix(place + (index - before)[lost].astype(np.uint64))
    return mix(place + _occurrence(place).astype(np.uint64))


def _occurrence(values: Hashes) -> Ints:
    """int64: how many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered, side="left")
    counted = np.empty(len(values), np.int64)
    counted[order] = np.arange(len(values)) - first
    return counted
