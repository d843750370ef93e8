"""Similar rows among many that share a bucket, found without comparing each with each.

Of two sets of `a` and `b` n-grams with a similarity of at least `t`, `t / (1 + t) × (a + b)` are the same. Put in one
order of all n-grams, the first that both have is followed, in each, by the rest of those. So it is among the first of
each, and with the rarest first, few rows share one (Xiao et al., Efficient Similarity Joins for Near Duplicate
Detection, 2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.hashes import Hashes
from tokenloom.resources.tables.ragged import Flags, Ints, offsets_of, ranges, row_of

MOST = 512
"""Number of earlier rows with which a row is compared here, and that are looked up for each of its n-grams."""
_AT_ONCE = 1 << 22
"""N-grams, or pairs of rows, that are worked on at a time; more only within one row."""
_COUNTERS = 1 << 24
_SLACK = 1e-6
"""Similarities are rounded to 32 bits."""


@dataclass(frozen=True)
class FirstNgrams:
    """The rarest n-grams of rows, without those that only one row has.

    Attributes:
        sizes: int64 [rows], the number of all n-grams of each row.
        bounds: int64 [rows + 1], the n-grams kept of each row.
        ngrams: int64 [n-grams], numbers of n-grams.
        reach: int64 [n-grams]: a similar row of more n-grams also shares one that comes before this.
    """

    sizes: Ints
    bounds: Ints
    ngrams: Ints
    reach: Ints

    @classmethod
    def of(cls, ngrams: Hashes, sizes: Ints, threshold: float) -> FirstNgrams:
        """Return those of sets, one after the other.

        Args:
            ngrams: uint64, without duplicates within a row.
            threshold: the least similarity of similar rows.
        """
        least = threshold - _SLACK
        bounds, counters = offsets_of(sizes), min(max(1 << len(ngrams).bit_length(), 1 << 10), _COUNTERS)
        counts = np.zeros(counters, np.int32)
        counter = np.uint64(counters - 1)
        parts = [*_parts(sizes)]
        for first, last in parts:
            np.add.at(counts, (ngrams[bounds[first] : bounds[last]] & counter).view(np.int64), 1)
        kept, found, reaches = np.zeros(len(sizes), np.int64), [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for first, last in parts:
            some, own = ngrams[bounds[first] : bounds[last]], sizes[first:last]
            row, count = row_of(own), counts[(some & counter).view(np.int64)]
            order = np.lexsort((some, count, row))
            left = np.repeat(bounds[first + 1 : last + 1] - bounds[first], own) - np.arange(len(some))
            reach = (left * ((1 + least) / least) - own[row]).astype(np.int64)
            chosen = (reach >= own[row] * least - 1) & (count[order] > 1)
            found.append(some[order[chosen]])
            reaches.append(reach[chosen])
            kept[first:last] = np.bincount(row[chosen], minlength=last - first)
        _, number, times = np.unique(np.concatenate(found), return_inverse=True, return_counts=True)
        shared = times[number] > 1
        offsets = offsets_of(shared.astype(np.int64))[offsets_of(kept)]
        return cls(sizes, offsets, number[shared], np.concatenate(reaches)[shared])

    def pairs(self, earlier: Ints, later: Ints, room: Ints) -> Iterator[tuple[Ints, Ints, Flags]]:
        """Yield pairs that can be similar, some later rows at a time: these include all that are, but for rows without
        room.

        Args:
            earlier, later: int64, rows, ascending.
            room: int64 [rows], with how many rows each can be compared; counted down.

        Yields:
            int64 [pairs] twice: the later row, ascending, and the earlier one; and bool [rows], those without room.
        """
        places, owner = self._of(earlier)
        width = int(self.sizes.max(initial=0)) + 1
        order = np.lexsort((self.sizes[owner], self.ngrams[places]))
        places, owner = places[order], owner[order]
        keys = self.ngrams[places] * width + self.sizes[owner]
        wanted, row = self._of(later)
        first = np.searchsorted(keys, self.ngrams[wanted] * width)
        last = np.searchsorted(
            keys, self.ngrams[wanted] * width + np.minimum(self.reach[wanted], width - 1), side="right"
        )
        counts = np.minimum(last - first, MOST)
        full = np.zeros(len(self.sizes), bool)
        full[row[last - first > MOST]] = True
        for begin, end in _parts(np.bincount(row, counts, len(self.sizes)).astype(np.int64)):
            start, stop = np.searchsorted(row, [begin, end])
            at = ranges(first[start:stop], counts[start:stop])
            of_row = np.repeat(row[start:stop], counts[start:stop])
            chosen = (owner[at] < of_row) & (self.reach[places[at]] >= self.sizes[of_row])
            found = np.unique(of_row[chosen] * len(self.sizes) + owner[at[chosen]])
            of_row, other = found // len(self.sizes), found % len(self.sizes)
            number = np.arange(len(of_row)) - np.searchsorted(of_row, of_row)
            fits = number < room[of_row]
            full[of_row[~fits]] = True
            of_row, other = of_row[fits], other[fits]
            room -= np.bincount(of_row, minlength=len(room))
            yield of_row, other, full

    def _of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the places of the n-grams of some rows, and the row of each."""
        counts = self.bounds[rows + 1] - self.bounds[rows]
        return ranges(self.bounds[rows], counts), np.repeat(rows, counts)


def _parts(sizes: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive rows, about `_AT_ONCE` in size."""
    cuts = np.flatnonzero(np.diff(offsets_of(sizes)[1:] // _AT_ONCE, prepend=-1))
    yield from zip(cuts.tolist(), [*cuts[1:].tolist(), len(sizes)], strict=True)
