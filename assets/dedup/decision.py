"""Which rows of a dataset are dropped, and for which row: a function of the fingerprints and texts of all rows.

The same rows are found by their hashes. Of pairs of rows that share a band, the true similarity decides. First, rows
are compared with the first row of each of their buckets; where that is first in all of its own, it is certain to be
kept, so that the rows similar to it are done. Then the rows that are left are compared with each other: in small
buckets each with each, in large ones by their rarest n-grams.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.columns.row_texts import OWN, beside_texts, text_blocks
from tokenloom.assets.dedup.candidates import Similar, buckets, pairs, pairs_with_firsts, survivors_of_many
from tokenloom.assets.dedup.rare_ngrams import MOST, FirstNgrams
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
        found = np.empty((len(names), len(self)), kind)
        for chunk, (start, end) in enumerate(pairwise(self.starts.tolist())):
            table = self.fingerprints(chunk)
            for column, name in zip(found, names, strict=True):
                column[start:end] = flat_numbers(one_array(table[name]))
        return found

    def bands(self) -> Iterator[Hashes]:
        """Yield the keys of each band, uint64 [rows]."""
        columns = self.fingerprints(0).column_names if self.counts else ()
        names = [name for name in columns if name.startswith(BAND)]
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
        limited: number of kept rows that were compared with `MOST` others, not with all that could be similar.
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
    found = np.flatnonzero(survivor >= 0)
    return Decision(found, survivor[found], similarity[found], same[found], *told)


def _first_with_same_hash(hashes: Hashes, known: Flags) -> Ints:
    """Return the first row with the hash of each row, int64 [rows]; a row without a hash is only itself."""
    first = np.arange(len(hashes))
    rows, _ = buckets(hashes[:, 0], np.flatnonzero(known))
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

    def similar(later: Ints, earlier: Ints) -> Similar:
        found = Similar.of(later, earlier)
        for dropped in _counted(common):
            found = found.least(similarities(rows, found.later, found.earlier, dropped), threshold)
        return found

    certain[:given] = True
    chosen = certain[leader] & (later >= given)
    found = similar(later[chosen], leader[chosen]).take(slice(None, None, -1))
    survivor[found.later] = found.earlier  # assigned in reverse: of several, the first row remains
    likeness[found.later] = found.alike
    left = alive[survivor[alive] < 0]
    later, earlier, crowded = pairs(rows.bands, left, count)
    later, earlier, alike = similar(later[later >= given], earlier[later >= given])
    known = Similar(np.searchsorted(left, later), np.searchsorted(left, earlier), alike)
    with tempfile.TemporaryDirectory(prefix="tokenloom-dedup-") as folder:
        crowd = _Crowd(rows, left, crowded[left], given, threshold, common, Path(folder)) if crowded.any() else None
        lost, by, alike = survivors_of_many(known, len(left), crowd and crowd.similar)
        survivor[left[lost]], likeness[left[lost]] = left[by], alike
        limited = int((crowd.full & (survivor[left] < 0)).sum()) if crowd else 0
        del crowd
    return survivor, likeness, len(common), limited


def _common(rows: Rows, own: Ints) -> Hashes:
    """Return the n-grams that nearly all rows of a sample have, which their hashes pick, uint64, ascending.

    Args:
        own: int64, the rows to choose from.
    """
    if len(own) < FEWEST:
        return _NONE
    hashes, known = rows.hashes()
    picked = np.argsort(np.where(known, hashes[:, 0], 0)[own], kind="stable")[:_SAMPLE]
    sets = [ngrams for _, ngrams, _ in _sets(rows, np.sort(own[picked]), None)]
    found, times = np.unique(np.concatenate(sets), return_counts=True)
    return found[times >= SHARED * len(picked)]


def _counted(common: Hashes) -> tuple[Hashes, ...]:
    """Return the n-grams that are left out when rows are compared: none, too, so that rows are similar in both ways."""
    return (common, _NONE) if len(common) else (_NONE,)


class _Crowd:
    """Rows of large buckets, with their sets of n-grams in files.

    Args:
        left: int64, rows.
        crowded: bool [left], those to compare; rows are numbered by their places here.
        given: the number of first rows, which are all kept.
        common: n-grams that do not count.

    Attributes:
        full: bool [left], the rows that were not compared with all that could be similar.
    """

    def __init__(
        self, rows: Rows, left: Ints, crowded: Flags, given: int, threshold: float, common: Hashes, folder: Path
    ):
        self._given, self._threshold = np.searchsorted(left, given), threshold
        self._sets: list[tuple[Hashes, Ints, Ints]] = []
        for number, dropped in enumerate(_counted(common)):
            sizes, file = np.zeros(len(left), np.int64), folder / f"{number}"
            with file.open("wb") as opened:
                for wanted, ngrams, counts in _sets(rows, left[crowded], dropped):
                    opened.write(ngrams.data)
                    sizes[np.searchsorted(left, wanted)] = counts
            bounds = offsets_of(sizes)
            self._sets.append((_mapped(file, int(bounds[-1])), bounds, sizes))
        ngrams, _, sizes = self._sets[0]
        self._firsts = FirstNgrams.of(ngrams, sizes, threshold)
        self._room, self.full = np.full(len(left), MOST), np.zeros(len(left), bool)

    def similar(self, earlier: Ints, later: Ints) -> Similar:
        """Return the similar pairs of some earlier and later rows."""
        found = [Similar.of(later[:0], later[:0])]
        for one, other, full in self._firsts.pairs(earlier, later[later >= self._given], self._room):
            self.full |= full
            pairs = Similar.of(one, other)
            for ngrams, bounds, sizes in self._sets:
                sets = ((ngrams, bounds[rows], sizes[rows]) for rows in (pairs.later, pairs.earlier))
                pairs = pairs.least(_jaccard(*sets), self._threshold)
            found.append(pairs)
        return Similar.joined(found)


def similarities(rows: Rows, later: Ints, earlier: Ints, common: Hashes = _NONE) -> Floats:
    """Return the similarity of pairs of rows: the n-grams that both have, by those that one has, float32 [pairs].

    Chunks are read once, in the order of rows. The n-grams of rows that later ones are compared with go to a file.

    Args:
        later: int64 [pairs], ascending; each greater than its earlier row.
        common: n-grams that do not count.
    """
    similar = np.zeros(len(later), np.float32)
    known = np.unique(earlier)
    with tempfile.TemporaryDirectory(prefix="tokenloom-dedup-") as folder:
        file = Path(folder) / "ngrams"
        bounds, written = np.zeros(len(known) + 1, np.int64), 0
        for wanted, ngrams, counts in _sets(rows, np.union1d(later, earlier), common):
            own = offsets_of(counts)
            kept = np.isin(wanted, known, assume_unique=True)
            with file.open("ab") as opened:
                opened.write(ngrams[np.repeat(kept, counts)].data)
            bounds[written + 1 : written + 1 + kept.sum()] = bounds[written] + np.cumsum(counts[kept])
            written += int(kept.sum())
            first, last = np.searchsorted(later, [wanted[0], wanted[-1] + 1])
            sets = _mapped(file, int(bounds[written]))
            mine, theirs = np.searchsorted(wanted, later[first:last]), np.searchsorted(known, earlier[first:last])
            others = (sets, bounds[theirs], bounds[theirs + 1] - bounds[theirs])
            similar[first:last] = _jaccard((ngrams, own[mine], counts[mine]), others)
            del sets
    return similar


def _mapped(file: Path, count: int) -> Hashes:
    return np.memmap(file, np.uint64, "r", shape=count) if count else np.zeros(0, np.uint64)


_Sets = tuple[Hashes, Ints, Ints]
"""N-grams, and the first and the number of those of each row."""


def _jaccard(one: _Sets, other: _Sets) -> Floats:
    """Return the similarity of each pair of sets, float32 [pairs]."""
    sizes = one[2] + other[2]
    found, start = np.zeros(len(sizes), np.float32), 0
    total = offsets_of(sizes)
    while start < len(sizes):
        end = int(np.searchsorted(total, total[start] + _NGRAMS, side="right")) - 1
        part = slice(start, min(max(end, start + 1), start + _PAIRS))
        joined = []
        for ngrams, first, counts in (one, other):
            pair = row_of(counts[part]).astype(np.uint64) << _TOP
            joined.append(pair | ngrams[ranges(first[part], counts[part])])
        both = np.concatenate(joined)
        both.sort()
        same = both[1:][both[1:] == both[:-1]] >> _TOP
        shared = np.bincount(same.astype(np.int64), minlength=part.stop - start)
        found[part] = shared / np.maximum(sizes[part] - shared, 1)
        start = part.stop
    return found


def _sets(rows: Rows, wanted: Ints, common: Hashes | None) -> Iterator[tuple[Ints, Hashes, Ints]]:
    """Yield the sets of n-grams of some rows, chunk by chunk: the rows, their n-grams one after the other, and the
    number of each.

    Args:
        wanted: int64, ascending.
        common: n-grams that do not count, but in rows that have no others; None: all count, and what is beside the
            texts does not.
    """
    cuts = np.searchsorted(wanted, rows.starts)
    for chunk, (begin, end) in enumerate(pairwise(cuts.tolist())):
        if begin < end:
            own = wanted[begin:end]
            table = rows.load(chunk).take(pa.array(own - rows.starts[chunk])).combine_chunks()
            yield own, *_ngram_sets(table, rows.compared[chunk], common)


def _ngram_sets(table: pa.Table, compared: Compared, common: Hashes | None) -> tuple[Hashes, Ints]:
    """Return the set of n-grams of each row, one after the other, and the number of each."""
    texts, row = compared.texts_of(table, OWN)
    counts, found = np.zeros(table.num_rows, np.int64), [np.zeros(0, np.uint64)]
    apart = beside_texts(table, compared.form) >> (np.uint64(64) - _TOP)
    for some, rows_of in text_blocks(texts, row):
        first, last = int(rows_of[0]), int(rows_of[-1]) + 1
        hashes, offsets = shingles(Words.of(some), rows_of - first, last - first, compared.ngram_size)
        of_row = row_of(np.diff(offsets))
        order = np.lexsort((hashes, of_row))
        top, number = hashes[order] >> (np.uint64(64) - _TOP), of_row[order]
        chosen = np.ones(len(top), bool)
        chosen[1:] = (top[1:] != top[:-1]) | (number[1:] != number[:-1])
        if common is not None and len(common):
            own = chosen & ~np.isin(top, common)
            chosen &= own | ~any_of(own, np.diff(offsets))[number]
        top, number = top[chosen], number[chosen]
        found.append(top if common is None else top ^ apart[first + number])
        counts[first:last] = np.bincount(number, minlength=last - first)
    return np.concatenate(found), counts
