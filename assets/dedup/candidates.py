"""Pairs of rows that share a band, which are the only ones to compare.

Rows are numbers; of a pair, the row with the lower number comes first and can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.hashes import Hashes
from tokenloom.resources.tables.ragged import Flags, Ints, offsets_of, ranges

MOST_BEFORE = 32
"""Number of rows before another in a bucket up to which it is compared with all of them."""

Bands = Callable[[], Iterable[Hashes]]
"""Returns the keys of each band, uint64 [rows]."""


def buckets(keys: Hashes, rows: Ints) -> tuple[Ints, Ints]:
    """Return the rows that share a key with another, by key, and where each key's rows start.

    Keys are compared by their top bits, so that a key and a row fit into one number, which sorts several times as fast.
    Rows that differ in the others are candidates too, which costs one comparison.

    Args:
        keys: uint64 [rows of all].
        rows: int64, the rows to look at, ascending.

    Returns:
        int64 [members], ascending within a bucket, and int64 [buckets + 1].
    """
    bits = np.uint64(max(len(keys), 2).bit_length())
    packed = np.sort((keys[rows] >> bits << bits) | rows.astype(np.uint64))
    top = packed >> bits
    same = np.zeros(len(packed) + 1, bool)
    np.equal(top[1:], top[:-1], out=same[1:-1])
    members = np.flatnonzero(same[1:] | same[:-1])
    starts = np.flatnonzero(~same[:-1][members])
    return (packed[members] & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64), np.append(starts, len(members))


def pairs_with_firsts(bands: Bands, rows: Ints, count: int) -> tuple[Ints, Ints, Flags]:
    """Return each row with the first row of each of its buckets, and which rows are first in all of theirs.

    Args:
        rows: int64, the rows to look at, ascending.
        count: the number of all rows.

    Returns:
        int64 [pairs] twice: the later row, ascending, and the first; and bool [count].
    """
    first = np.ones(count, bool)
    found = np.zeros(0, np.int64)
    for keys in bands():
        members, bounds = buckets(keys, rows)
        leaders = np.repeat(members[bounds[:-1]], np.diff(bounds))
        later = members != leaders
        first[members[later]] = False
        found = np.union1d(found, members[later] * count + leaders[later])
    return found // max(count, 1), found % max(count, 1), first


def pairs(bands: Bands, rows: Ints, count: int) -> tuple[Ints, Ints, Flags]:
    """Return each row with the rows of each of its buckets that come before it, and the rows of large buckets, which
    are left out: those of more than `MOST_BEFORE` before one.

    Args:
        rows: int64, the rows to look at, ascending.
        count: the number of all rows.

    Returns:
        int64 [pairs] twice: the later row, ascending, and the earlier one; and bool [count].
    """
    found, crowded = np.zeros(0, np.int64), np.zeros(count, bool)
    for keys in bands():
        members, bounds = buckets(keys, rows)
        sizes = np.diff(bounds)
        large = np.repeat(sizes > MOST_BEFORE + 1, sizes)
        crowded[members[large]] = True
        start = np.repeat(bounds[:-1], sizes)
        before = np.where(large, 0, np.arange(len(members)) - start)
        found = np.union1d(found, np.repeat(members, before) * count + members[ranges(start, before)])
    return found // max(count, 1), found % max(count, 1), crowded


_ROUNDS = 50
"""Rounds after which the rows that still depend on others are looked at one by one."""


def survivors(later: Ints, earlier: Ints, count: int) -> Ints:
    """Return for each row the first kept row that it is similar to, or -1 if it is kept, int64 [count].

    A row is kept unless it is similar to a kept row before it: nothing is dropped for a row that is itself dropped.

    Args:
        later, earlier: int64 [pairs], all similar rows.
    """
    unknown = np.zeros(count, bool)
    unknown[later] = True
    kept = ~unknown
    for _ in range(_ROUNDS):
        if not unknown.any():
            break
        unknown[later[kept[earlier]]] = False  # dropped
        waits = np.zeros(count, bool)
        waits[later[unknown[earlier]]] = True
        kept |= unknown & ~waits
        unknown &= waits
    order = np.lexsort((earlier, later))
    later, earlier = later[order], earlier[order]
    bounds = offsets_of(np.bincount(later, minlength=count))
    for row in np.flatnonzero(unknown).tolist():  # in a long chain, each depends on the one before
        kept[row] = not kept[earlier[bounds[row] : bounds[row + 1]]].any()
    found = np.full(count, -1, np.int64)
    lost = np.flatnonzero(~kept[later] & kept[earlier])[::-1]  # assigned in reverse: of several, the first remains
    found[later[lost]] = earlier[lost]
    return found


class Similar(NamedTuple):
    """Pairs of rows: the later, the earlier, int64 [pairs], and how similar they are, float32 [pairs]."""

    later: Ints
    earlier: Ints
    alike: npt.NDArray[np.float32]

    @classmethod
    def of(cls, later: Ints, earlier: Ints) -> Similar:
        return cls(later, earlier, np.ones(len(later), np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Similar]) -> Similar:
        later, earlier = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        return cls(later, earlier, np.concatenate([part.alike for part in parts]))

    def least(self, alike: npt.NDArray[np.float32], threshold: float) -> Similar:
        """Return the pairs that are similar enough by this measure, too."""
        found = np.minimum(self.alike, alike)
        return Similar(self.later, self.earlier, found).take(found >= threshold)

    def take(self, chosen: Flags | Ints | slice) -> Similar:
        return Similar(self.later[chosen], self.earlier[chosen], self.alike[chosen])


_LEAF = 256
"""Rows that are compared with each other at once."""


def survivors_of_many(known: Similar, count: int, between: Callable[[Ints, Ints], Similar] | None) -> Similar:
    """Return the rows that are not kept, ascending, each with its survivor: as `survivors`, but similar rows are found
    on the way, so that none is compared with a row that is dropped.

    The first half is decided before the second, whose rows are compared with those that are kept.

    Args:
        known: similar rows, ascending.
        between: returns the similar pairs of earlier and later rows, int64, ascending; None: there are no others.
    """
    found, likeness = np.full(count, -1, np.int64), np.zeros(count, np.float32)

    def settle(start: int, end: int) -> None:
        middle = start if between is None or end - start <= _LEAF else (start + end) // 2
        if middle > start:
            settle(start, middle)
        limit = middle if middle > start else end
        first, last = np.searchsorted(known.later, [middle, end])
        pairs = known.take(slice(first, last))
        pairs = pairs.take((pairs.earlier >= start) & (pairs.earlier < limit))
        pairs = pairs.take((found[pairs.later] < 0) & (found[pairs.earlier] < 0))
        if between is not None:
            rows = (low + np.flatnonzero(found[low:high] < 0) for low, high in ((start, limit), (middle, end)))
            pairs = Similar.joined([pairs, between(*rows)])
        later, earlier, alike = pairs
        survivor = survivors(later - start, earlier - start, end - start)
        dropped = np.flatnonzero(survivor >= 0)
        found[start + dropped] = start + survivor[dropped]
        chosen = found[later] == earlier
        likeness[later[chosen]] = alike[chosen]
        if middle > start:
            settle(middle, end)

    settle(0, count)
    lost = np.flatnonzero(found >= 0)
    return Similar(lost, found[lost], likeness[lost])
