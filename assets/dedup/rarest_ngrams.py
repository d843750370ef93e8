"""Pairs of rows that can be similar, found without comparing each row with each.

Of two sets of `a` and `b` n-grams with a similarity of at least `t`, `t / (1 + t) × (a + b)` are the same. In one order
of all n-grams, the first that both have is followed, in each set, by the rest of those. So it is among the first of
each, and with the rarest first, few rows share one (Xiao et al., Efficient Similarity Joins for Near Duplicate
Detection, 2008).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.hashes import Hashes
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges, row_of

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
        least, bounds, parts = threshold - _SLACK, offsets_of(sizes), [*_parts(sizes)]
        mask = min(max(1 << len(ngrams).bit_length(), 1 << 10), _COUNTERS) - 1
        counters, kept = np.zeros(mask + 1, np.int32), np.zeros(len(sizes), np.int64)
        for first, last in parts:
            np.add.at(counters, (ngrams[bounds[first] : bounds[last]] & np.uint64(mask)).view(np.int64), 1)
        found, reaches = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for first, last in parts:
            some, own = np.asarray(ngrams[bounds[first] : bounds[last]]), sizes[first:last]
            row, count = row_of(own), counters[(some & np.uint64(mask)).view(np.int64)]
            order = np.lexsort((some, count, row))
            rest = np.repeat(bounds[first + 1 : last + 1] - bounds[first], own) - np.arange(len(some))
            reach = (rest * ((1 + least) / least) - own[row]).astype(np.int64)
            chosen = (reach >= own[row] * least - 1) & (count[order] > 1)
            found.append(some[order[chosen]])
            reaches.append(reach[chosen])
            kept[first:last] = np.bincount(row[chosen], minlength=last - first)
        _, number, times = np.unique(np.concatenate(found), return_inverse=True, return_counts=True)
        shared = times[number] > 1
        self._sizes, self._bounds = sizes, offsets_of(shared.astype(np.int64))[offsets_of(kept)]
        self._ngrams, self._reach = number[shared], np.concatenate(reaches)[shared]
        self.room = np.full(len(sizes), MOST)

    def pairs(self, earlier: Ints, later: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield the pairs that can be similar, for some later rows at a time: the later row, int64 [pairs], ascending,
        and the earlier one, given both kinds of rows, ascending."""
        count, width = len(self._sizes), int(self._sizes.max(initial=0)) + 1
        (places, owner), (wanted, row) = self._of(earlier), self._of(later)
        order = np.lexsort((self._sizes[owner], self._ngrams[places]))
        places, owner = places[order], owner[order]
        keys, least = self._ngrams[places] * width + self._sizes[owner], self._ngrams[wanted] * width
        first = np.searchsorted(keys, least)
        # A row of more n-grams than an n-gram reaches shares another before it, or is not similar.
        last = np.searchsorted(keys, least + np.minimum(self._reach[wanted], width - 1), side="right")
        counts = np.minimum(last - first, MOST)
        self.room[row[last - first > MOST]] = -1
        for begin, end in _parts(np.bincount(row, counts, count).astype(np.int64)):
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


def _parts(sizes: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive rows, about `_AT_ONCE` in size."""
    cuts = np.flatnonzero(np.diff(offsets_of(sizes)[1:] // _AT_ONCE, prepend=-1))
    yield from zip(cuts.tolist(), np.append(cuts[1:], len(sizes)).tolist(), strict=False)
