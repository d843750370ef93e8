"""Rows that share a band, which are the only ones to compare, and which of them are kept.

Rows are numbers; of a pair, the row with the lower number comes first and can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.hashes import Hashes
from tokenloom.resources.tables.ragged import Flags, Ints

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


def sharing(bands: Bands, rows: Ints, count: int) -> Flags:
    """Return which rows share a bucket with another, bool [count]."""
    found = np.zeros(count, bool)
    for keys in bands():
        found[buckets(keys, rows)[0]] = True
    return found


def survivors(later: Ints, earlier: Ints, count: int) -> Ints:
    """Return for each row the first kept row that it is similar to, or -1 if it is kept, int64 [count].

    A row is kept unless it is similar to a kept row before it: nothing is dropped for a row that is itself dropped.

    Args:
        later, earlier: int64 [pairs], all similar rows.
    """
    unknown = np.zeros(count, bool)
    unknown[later] = True
    kept = ~unknown
    while unknown.any():  # the first of them depends on none
        unknown[later[kept[earlier]]] = False  # dropped
        waits = np.zeros(count, bool)
        waits[later[unknown[earlier]]] = True
        kept |= unknown & ~waits
        unknown &= waits
    order = np.lexsort((earlier, later))
    later, earlier = later[order], earlier[order]
    found = np.full(count, -1, np.int64)
    lost = np.flatnonzero(~kept[later] & kept[earlier])[::-1]  # assigned in reverse: of several, the first remains
    found[later[lost]] = earlier[lost]
    return found


Similar = tuple[Ints, Ints, npt.NDArray[np.float32]]
"""The later and the earlier row of each pair, and how similar they are."""
_LEAF = 256
"""Rows that are compared with each other at once."""


def settle(count: int, between: Callable[[Ints, Ints], Similar]) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Return what `survivors` does, and how similar each row is to its survivor, without comparing rows with one that
    is dropped: of some rows, the first half is decided, then the other is compared with those of it that are kept.

    Args:
        between: returns the similar pairs of earlier and later rows, int64, ascending.
    """
    found, likeness = np.full(count, -1, np.int64), np.zeros(count, np.float32)

    def decide(start: int, end: int) -> None:
        middle = start if end - start <= _LEAF else (start + end) // 2
        if middle > start:
            decide(start, middle)
        first, last = (low + np.flatnonzero(found[low:end] < 0) for low in (start, middle))
        later, earlier, alike = between(first[: len(first) - len(last)] if middle > start else first, last)
        survivor = survivors(later - start, earlier - start, end - start)
        dropped = np.flatnonzero(survivor >= 0)
        found[start + dropped] = start + survivor[dropped]
        chosen = found[later] == earlier
        likeness[later[chosen]] = alike[chosen]
        if middle > start:
            decide(middle, end)

    decide(0, count)
    return found, likeness
