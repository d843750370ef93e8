"""Which rows of a dataset are dropped, and for which row: a function of the fingerprints and texts of all rows.

The same rows are found by their hashes. Of pairs of rows that share a band, the true similarity decides. First, rows
are compared with the first row of each of their buckets; where that is first in all of its own, it is certain to be
kept, so that the rows similar to it are done. Then the rows that are left are compared with each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.columns.row_texts import OWN, beside_texts, text_blocks
from tokenloom.assets.dedup.candidates import RarestNgrams, Similar, buckets, pairs_with_firsts, settle, sharing
from tokenloom.assets.fingerprints.minhash import shingles
from tokenloom.assets.fingerprints.stage import BAND, HASH, WORDS, Compared
from tokenloom.resources.tables.hashes import Hashes, Words
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    any_of,
    flags_of,
    flat_numbers,
    offsets_of,
    one_array,
    ranges,
    row_of,
)

_PAIRS, _NGRAMS = 1 << 12, 1 << 22
"""Pairs, and n-grams of these, that are compared at a time; more only of one pair."""
SHARED, FEWEST, _SAMPLE = 0.9, 4, 100
"""An n-gram that this part of a sample of rows has does not make rows similar, in datasets of so many rows."""
_NONE = np.zeros(0, np.uint64)
_COLUMNS = 6
"""Columns of fingerprints that are read at a time."""
_TOP = np.uint64(52)
"""Bits of an n-gram's hash that are compared; the others number the pair."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """The rows of a dataset, by number: those of `train` after all others, each split in source order. Those of other
    datasets come before them.

    Args:
        counts: the number of rows of each chunk, in this order.
        fingerprints: opens the fingerprints of a chunk; they are not kept open, so that no more than `_COLUMNS` columns
            of all rows are in memory at a time.
        load: returns the canonical rows of a chunk, as many as its fingerprints.
        compared: how the rows of each chunk are compared.
        given: the number of first chunks that are of other datasets, whose rows are never dropped.
    """

    counts: Sequence[int]
    fingerprints: Callable[[int], pa.Table]
    load: Callable[[int], pa.Table]
    compared: Sequence[Compared]
    given: int = 0

    @cached_property
    def starts(self) -> Ints:
        """The first row of each chunk, and the number of all, int64 [chunks + 1]."""
        return offsets_of(np.array(self.counts, np.int64))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of numbers of all rows."""
        return self._columns([name])[0] if self.counts else np.zeros(0)

    def _columns(self, names: Sequence[str]) -> npt.NDArray[Any]:
        """Return columns of the same type, [names, rows]."""
        kind = self.fingerprints(0).schema.field(names[0]).type.to_pandas_dtype()
        numbers = np.empty((len(names), len(self)), kind)
        for chunk, (start, end) in enumerate(pairwise(self.starts.tolist())):
            table = self.fingerprints(chunk)
            for column, name in zip(numbers, names, strict=True):
                column[start:end] = flat_numbers(one_array(table[name]))
        return numbers

    def bands(self) -> Iterator[Hashes]:
        """Yield the keys of each band, uint64 [rows]."""
        names = [name for name in (self.fingerprints(0).column_names if self.counts else ()) if name.startswith(BAND)]
        for start in range(0, len(names), _COLUMNS):
            yield from self._columns(names[start : start + _COLUMNS])

    def hashes(self) -> tuple[Hashes, Flags]:
        """Return the exact hashes, uint64 [rows, 2], and which rows have one, bool [rows]."""
        found, known = np.zeros((len(self), 2), np.uint64), np.zeros(len(self), bool)
        for chunk, (start, end) in enumerate(pairwise(self.starts.tolist())):
            column = one_array(self.fingerprints(chunk)[HASH])
            data = np.frombuffer(column.buffers()[1], np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
            found[start:end], known[start:end] = data.reshape(-1, 2), flags_of(column.is_valid())
        return found, known


@dataclass(frozen=True)
class Decision:
    """The rows that are dropped.

    Attributes:
        rows: int64, ascending.
        survivors: int64, the kept row that each repeats.
        similarities: float32; 1 for rows that are the same.
        exact: bool, whether they are the same.
        shared: number of n-grams that nearly all rows have.
        limited: number of kept rows that were not compared with all that could be similar.
    """

    rows: Ints
    survivors: Ints
    similarities: Floats
    exact: Flags
    shared: int = 0
    limited: int = 0


def decide(rows: Rows, exact: bool, threshold: float | None) -> Decision:
    """Return which rows are dropped.

    Args:
        exact: whether rows with the same hash as an earlier one are.
        threshold: the least similarity to a kept earlier row; None: no other row is.
    """
    given = rows.starts[rows.given]
    survivor, similarity = np.full(len(rows), -1, np.int64), np.ones(len(rows), np.float32)
    same, told = np.zeros(len(rows), bool), [0, 0]
    if exact:
        first = _first_with_same_hash(*rows.hashes())
        same = first < np.arange(len(rows))
        same[:given] = False
        survivor[same] = first[same]
    if threshold is not None:
        alive = np.flatnonzero((rows.column(WORDS) > 0) & ~same)
        near, likeness, *told = _near(rows, alive, given, threshold)
        dropped = near >= 0
        survivor[dropped], similarity[dropped] = near[dropped], likeness[dropped]
        moved = same & dropped[np.maximum(survivor, 0)]  # the same as a row that is itself dropped
        similarity[moved], survivor[moved] = likeness[survivor[moved]], near[survivor[moved]]
        same &= ~moved
    dropped_rows = np.flatnonzero(survivor >= 0)
    return Decision(dropped_rows, survivor[dropped_rows], similarity[dropped_rows], same[dropped_rows], *told)


def _first_with_same_hash(hashes: Hashes, has_hash: Flags) -> Ints:
    """Return the first row with the hash of each row, int64 [rows]; a row without a hash is only itself."""
    first = np.arange(len(hashes))
    rows, _ = buckets(hashes[:, 0], np.flatnonzero(has_hash))
    order = rows[np.lexsort((rows, hashes[rows, 1], hashes[rows, 0]))]
    starts = np.ones(len(order), bool)
    starts[1:] = (hashes[order[1:]] != hashes[order[:-1]]).any(axis=1)
    number = np.cumsum(starts) - 1
    first[order] = order[np.flatnonzero(starts)][number] if len(order) else order
    return first


def _near(rows: Rows, alive: Ints, given: int, threshold: float) -> tuple[Ints, Floats, int, int]:
    """Return the kept row that each row is similar to, or -1, int64 [rows], how similar, float32 [rows], and `shared`
    and `limited` of `Decision`.

    Args:
        alive: int64, the rows to compare.
        given: the number of first rows, which are all kept.
    """
    count = len(rows)
    survivor, likeness = np.full(count, -1, np.int64), np.zeros(count, np.float32)
    later, leader, certain = pairs_with_firsts(rows.bands, alive, count)
    common = _common(rows, alive[alive >= given]) if len(later) else _NONE
    dropped = (common, _NONE) if len(common) else (_NONE,)  # rows are similar with and without them
    certain[:given] = True
    # a first row that is certain to be kept settles its bucket: the others need no comparison with each other
    chosen = certain[leader] & (later >= given)
    later, leader = later[chosen], leader[chosen]
    wanted = np.union1d(later, leader)
    sets = [NgramSets(rows, wanted, ignored) for ignored in dropped]
    similar = _similarities(sets, np.searchsorted(wanted, later), np.searchsorted(wanted, leader))
    enough = np.flatnonzero(similar >= threshold)[::-1]  # assigned in reverse: of several, the first row remains
    survivor[later[enough]], likeness[later[enough]] = leader[enough], similar[enough]
    left = alive[survivor[alive] < 0]
    # a row that shares no band with another one that is left has no candidate
    left = left[sharing(rows.bands, left, count)[left]]
    sets = [NgramSets(rows, left, ignored) for ignored in dropped]
    rarest = RarestNgrams(sets[0].ngrams, sets[0].sizes, threshold)

    def between(earlier: Ints, later: Ints) -> Similar:
        found: list[Similar] = [(later[:0], later[:0], np.zeros(0, np.float32))]
        for one, other in rarest.pairs(earlier, later[left[later] >= given]):
            similar = _similarities(sets, one, other)
            enough = similar >= threshold
            found.append((one[enough], other[enough], similar[enough]))
        ones, others, alike = zip(*found, strict=True)
        return np.concatenate(ones), np.concatenate(others), np.concatenate(alike)

    by, similar = settle(len(left), between)
    lost = by >= 0
    survivor[left[lost]], likeness[left[lost]] = left[by[lost]], similar[lost]
    return survivor, likeness, len(common), int((rarest.room[~lost] < 0).sum())


def _common(rows: Rows, rows_here: Ints) -> Hashes:
    """Return the n-grams that nearly all have of a sample of rows, which their hashes pick, uint64, ascending."""
    if len(rows_here) < FEWEST:
        return _NONE
    hashes, has_hash = rows.hashes()
    picked = np.argsort(np.where(has_hash, hashes[:, 0], 0)[rows_here], kind="stable")[:_SAMPLE]
    ngrams, times = np.unique(NgramSets(rows, np.sort(rows_here[picked]), None).ngrams, return_counts=True)
    return ngrams[times >= SHARED * len(picked)]


def _similarities(sets: Sequence[NgramSets], one: Ints, other: Ints) -> Floats:
    """Return the least similarity of each pair of rows, float32 [pairs]."""
    return np.minimum.reduce([each.similarities(one, other) for each in sets])


class NgramSets:
    """The sets of n-grams of some rows, in a file. Rows are numbered by their places in `wanted`.

    Args:
        wanted: int64, ascending. Chunks are read once, in the order of rows.
        common: n-grams that do not count, but in rows that have no others; None: all count, and nothing beside texts.

    Attributes:
        ngrams, sizes: uint64, one set after the other, and int64 [rows].
    """

    def __init__(self, rows: Rows, wanted: Ints, common: Hashes | None):
        cuts, sizes = np.searchsorted(wanted, rows.starts), [np.zeros(0, np.int64)]
        with tempfile.TemporaryFile(prefix="tokenloom-dedup-") as file:
            for chunk, (begin, end) in enumerate(pairwise(cuts.tolist())):
                if begin < end:
                    own = pa.array(wanted[begin:end] - rows.starts[chunk])
                    table = rows.load(chunk).take(own).combine_chunks()
                    for ngrams, counts in _ngram_sets(table, rows.compared[chunk], common):
                        file.write(ngrams.data)
                        sizes.append(counts)
            file.flush()
            self.sizes = np.concatenate(sizes)
            self._bounds = offsets_of(self.sizes)
            self.ngrams: Hashes = np.memmap(file, np.uint64, "r") if self._bounds[-1] else _NONE

    def similarities(self, one: Ints, other: Ints) -> Floats:
        """Return the similarity of each pair of rows, float32 [pairs]."""
        similarity, start, sizes = np.zeros(len(one), np.float32), 0, self.sizes[one] + self.sizes[other]
        bounds = offsets_of(sizes)
        while start < len(one):
            fits = int(np.searchsorted(bounds, bounds[start] + _NGRAMS, side="right")) - 1
            end = min(max(fits, start + 1), start + _PAIRS)
            joined = []
            for side in (one[start:end], other[start:end]):
                counts, first = self.sizes[side], self._bounds[side]
                if end - start == 1:  # without numbers, which take more memory than long sets
                    joined.append(self.ngrams[first[0] : first[0] + counts[0]])
                else:
                    # with the pair's number above the hash, all are sorted at once: equal neighbours are of one pair
                    pair = row_of(counts).astype(np.uint64) << _TOP
                    joined.append(pair | self.ngrams[ranges(first, counts)])
            both = np.concatenate(joined)
            both.sort()
            same = (both[1:][both[1:] == both[:-1]] >> _TOP).astype(np.int64)
            shared = np.bincount(same, minlength=end - start)
            similarity[start:end] = shared / np.maximum(sizes[start:end] - shared, 1)
            start = end
        return similarity


def _ngram_sets(table: pa.Table, compared: Compared, common: Hashes | None) -> Iterator[tuple[Hashes, Ints]]:
    """Yield the sets of n-grams of some rows, one after the other, and the number of each."""
    texts, row = compared.texts_of(table, OWN)
    apart = beside_texts(table, compared.form) >> (np.uint64(64) - _TOP)
    for some, rows_of in text_blocks(texts, row):
        first, last = int(rows_of[0]), int(rows_of[-1]) + 1
        words = Words.of_rows(some, last - first)
        top, offsets = shingles(words, rows_of - first, last - first, compared.ngram_size)
        top >>= np.uint64(64) - _TOP
        number = row_of(np.diff(offsets))
        if last - first > 1:
            order = np.lexsort((top, number))
            top, number = top[order], number[order]
        else:
            top.sort()
        chosen = np.ones(len(top), bool)
        chosen[1:] = (top[1:] != top[:-1]) | (number[1:] != number[:-1])
        if common is not None and len(common):
            distinct = chosen & ~np.isin(top, common)
            # a row of nothing but common n-grams keeps them, or it would be similar to nothing and everything
            chosen &= distinct | ~any_of(distinct, np.diff(offsets))[number]
        top, number = top[chosen], number[chosen]
        if common is not None and apart.any():
            top ^= apart[first + number]
        yield top, np.bincount(number, minlength=last - first)
