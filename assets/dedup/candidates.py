"""Rows that can be similar, found without comparing each row with each, and which of them are kept.

Rows are numbers; of a pair, the row with the lower number comes first and can be kept. Rows that share a band are the
ones to compare. Of two sets of `a` and `b` n-grams with a similarity of at least `t`, `t / (1 + t) × (a + b)` are
the same. In one order of all n-grams, the first that both have is followed, in each set, by the rest of those. So it is
among the first of each, and with the rarest first, few rows share one (Xiao et al., Efficient Similarity Joins for Near
Duplicate Detection, 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.hashes import Hashes
from tokenloom.resources.tables.ragged import Flags, Ints, offsets_of, ranges, row_of

MOST = 512
"""Number of others with which a row is compared, and that are looked up for each of its n-grams."""
_AT_ONCE, _COUNTERS = 1 << 22, 1 << 24
"""N-grams, or pairs of rows, that are worked on at a time, more only within one row; and counters of n-grams."""
_SLACK = 1e-6
"""Similarities are rounded to 32 bits."""


class RarestNgrams:
    """The rarest n-grams of rows, without those that only one row has.

    Args:
        ngrams: uint64, the set of each row, one after the other.
        sizes: int64 [rows], the number of n-grams of each.
        threshold: the least similarity of similar rows.

    Attributes:
        room: int64 [rows], with how many others each can still be compared; -1 if there are more.
    """

    def __init__(self, ngrams: Hashes, sizes: Ints, threshold: float):
        least, bounds, parts = threshold - _SLACK, offsets_of(sizes), [*_in_parts(sizes)]
        mask = min(max(1 << len(ngrams).bit_length(), 1 << 10), _COUNTERS) - 1
        # counts collide, so that an n-gram can look more frequent; order and prefix then only are less sharp
        counters, taken = np.zeros(mask + 1, np.int32), np.zeros(len(sizes), np.int64)
        for first, last in parts:
            np.add.at(counters, (ngrams[bounds[first] : bounds[last]] & np.uint64(mask)).view(np.int64), 1)
        of_parts, reaches = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for first, last in parts:
            part, lengths = np.asarray(ngrams[bounds[first] : bounds[last]]), sizes[first:last]
            row, count = row_of(lengths), counters[(part & np.uint64(mask)).view(np.int64)]
            order = np.lexsort((part, count, row))
            rest = np.repeat(bounds[first + 1 : last + 1] - bounds[first], lengths) - np.arange(len(part))
            # the most n-grams that a similar row can have, if the first that both share has `rest` from it on
            reach = (rest * ((1 + least) / least) - lengths[row]).astype(np.int64)
            chosen = (reach >= lengths[row] * least - 1) & (count[order] > 1)
            of_parts.append(part[order[chosen]])
            reaches.append(reach[chosen])
            taken[first:last] = np.bincount(row[chosen], minlength=last - first)
        _, number, times = np.unique(np.concatenate(of_parts), return_inverse=True, return_counts=True)
        # an n-gram that is among the rarest of one row alone finds no pair
        shared = times[number] > 1
        self._sizes, self._bounds = sizes, offsets_of(shared.astype(np.int64))[offsets_of(taken)]
        self._ngrams, self._reach = number[shared], np.concatenate(reaches)[shared]
        self.room = np.full(len(sizes), MOST)

    def pairs(self, earlier: Ints, later: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield the pairs that can be similar, for some later rows at a time: the later row, int64 [pairs], ascending,
        and the earlier one, given both kinds of rows, ascending."""
        count, width = len(self._sizes), int(self._sizes.max(initial=0)) + 1
        (places, owner), (wanted, row) = self._of(earlier), self._of(later)
        # by n-gram, then by size: the rows of a fitting size are one range
        order = np.lexsort((self._sizes[owner], self._ngrams[places]))
        places, owner = places[order], owner[order]
        keys, least = self._ngrams[places] * width + self._sizes[owner], self._ngrams[wanted] * width
        first = np.searchsorted(keys, least)
        # A row of more n-grams than an n-gram reaches shares another before it, or is not similar.
        last = np.searchsorted(keys, least + np.minimum(self._reach[wanted], width - 1), side="right")
        # bounded for each n-gram, and by `room` for each row, or frequent n-grams would give quadratically many pairs
        counts = np.minimum(last - first, MOST)
        self.room[row[last - first > MOST]] = -1
        for begin, end in _in_parts(np.bincount(row, counts, count).astype(np.int64)):
            start, stop = np.searchsorted(row, [begin, end])
            at, one = ranges(first[start:stop], counts[start:stop]), np.repeat(row[start:stop], counts[start:stop])
            chosen = (owner[at] < one) & (self._reach[places[at]] >= self._sizes[one])
            one, other = np.divmod(np.unique(one[chosen] * count + owner[at[chosen]]), count)
            fits = np.arange(len(one)) - np.searchsorted(one, one) < self.room[one]
            self.room -= np.bincount(one[fits], minlength=count)
            self.room[one[~fits]] = -1
            yield one[fits], other[fits]

    def _of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the places of the n-grams of some rows, and the row of each."""
        counts = self._bounds[rows + 1] - self._bounds[rows]
        return ranges(self._bounds[rows], counts), np.repeat(rows, counts)


def _in_parts(sizes: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive rows, about `_AT_ONCE` in size."""
    cuts = np.flatnonzero(np.diff(offsets_of(sizes)[1:] // _AT_ONCE, prepend=-1))
    yield from zip(cuts.tolist(), np.append(cuts[1:], len(sizes)).tolist(), strict=False)


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
    # the low bits of a key are replaced by the row's number
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
    pairs = np.zeros(0, np.int64)
    for keys in bands():
        members, bounds = buckets(keys, rows)
        leaders = np.repeat(members[bounds[:-1]], np.diff(bounds))
        later = members != leaders
        first[members[later]] = False
        pairs = np.union1d(pairs, members[later] * count + leaders[later])
    return pairs // max(count, 1), pairs % max(count, 1), first


def sharing(bands: Bands, rows: Ints, count: int) -> Flags:
    """Return which rows share a bucket with another, bool [count]."""
    share = np.zeros(count, bool)
    for keys in bands():
        share[buckets(keys, rows)[0]] = True
    return share


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
        # a row that no undecided row comes before is kept; each round decides at least the first one
        kept |= unknown & ~waits
        unknown &= waits
    order = np.lexsort((earlier, later))
    later, earlier = later[order], earlier[order]
    survivor = np.full(count, -1, np.int64)
    lost = np.flatnonzero(~kept[later] & kept[earlier])[::-1]  # assigned in reverse: of several, the first remains
    survivor[later[lost]] = earlier[lost]
    return survivor


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
    survivor_of, likeness = np.full(count, -1, np.int64), np.zeros(count, np.float32)

    def decide(start: int, end: int) -> None:
        middle = start if end - start <= _LEAF else (start + end) // 2
        if middle > start:
            decide(start, middle)
        first, last = (low + np.flatnonzero(survivor_of[low:end] < 0) for low in (start, middle))
        later, earlier, alike = between(first[: len(first) - len(last)] if middle > start else first, last)
        survivor = survivors(later - start, earlier - start, end - start)
        dropped = np.flatnonzero(survivor >= 0)
        survivor_of[start + dropped] = start + survivor[dropped]
        chosen = survivor_of[later] == earlier
        likeness[later[chosen]] = alike[chosen]
        if middle > start:
            decide(middle, end)

    decide(0, count)
    return survivor_of, likeness
