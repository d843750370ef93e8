"""Compares rows by their content: which were added, removed or changed.

Rows are equal if their contents have the same hash. Rows are compared as multisets: a row that occurs m times in A and
n times in B is kept min(m, n) times, the first occurrences on each side. All other rows of A were removed, all other
rows of B were added. A removed and an added row count as one changed row if they have the same place: between the same
two kept neighbours (or the start or end of the split), at the same distance from the first of them. A row that only
moved is not a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tables.row_hash import Hashes, mix

_START, _END = np.uint64(1), np.uint64(2)


@dataclass(frozen=True)
class Side:
    """The rows of one side in order.

    Args:
        hashes: uint64 [items]; an item is a row, or a run of rows that both sides are known to have.
        known: bool [items]; True for such a run.
    """

    hashes: Hashes
    known: np.ndarray


@dataclass(frozen=True)
class RowDiff:
    """The differences, as ascending indices of items.

    Args:
        added: items only in B.
        removed: items only in A.
        changed: changed items, as indices into A and into B.
    """

    added: Ints
    removed: Ints
    changed: tuple[Ints, Ints]


def diff_rows(a: Side, b: Side) -> RowDiff:
    """Compare two sides; see the module's docstring for the definition of a difference."""
    kept_a, kept_b = _kept(a, b), _kept(b, a)
    lost_a, lost_b = np.flatnonzero(~kept_a), np.flatnonzero(~kept_b)
    places = _places(a.hashes, kept_a), _places(b.hashes, kept_b)
    _, in_a, in_b = np.intersect1d(*places, assume_unique=True, return_indices=True)
    order = np.argsort(in_b)
    in_a, in_b = in_a[order], in_b[order]
    return RowDiff(np.delete(lost_b, in_b), np.delete(lost_a, in_a), (lost_a[in_a], lost_b[in_b]))


def _kept(side: Side, other: Side) -> np.ndarray:
    """Return bool [items]: whether the other side also has the item."""
    kept = side.known.copy()
    mine = side.hashes[~side.known]
    theirs = np.sort(other.hashes[~other.known])
    matches = np.searchsorted(theirs, mine, side="right") - np.searchsorted(theirs, mine, side="left")
    kept[~side.known] = _occurrence(mine) < matches
    return kept


def _places(hashes: Hashes, kept: np.ndarray) -> Hashes:
    """Return uint64 [lost items], all different: hash of the two kept neighbours and the distance from the first."""
    index, end = np.arange(len(hashes)), len(hashes)
    before = np.maximum.accumulate(np.where(kept, index, -1))
    after = np.minimum.accumulate(np.where(kept, index, end)[::-1])[::-1]
    around = np.concatenate([[_START], mix(hashes), [_END]])
    lost = ~kept
    place = mix(mix(around[before[lost] + 1]) + around[after[lost] + 1])
    place = mix(place + (index - before)[lost].astype(np.uint64))
    return mix(place + _occurrence(place).astype(np.uint64))


def _occurrence(values: Hashes) -> Ints:
    """Return int64 [values]: number of equal values before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered, side="left")
    counted = np.empty(len(values), np.int64)
    counted[order] = np.arange(len(values)) - first
    return counted
