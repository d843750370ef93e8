"""Sets of n-grams of rows, their MinHash signatures, and bands: rows that share a band are likely to be similar.

Similarity is that of Jaccard: the n-grams that two rows share, divided by all that either has. For each of some random
permutations, the smallest n-gram of two rows is the same with this probability (Broder, 1997). A band is a hash of
several such values; see chapter 3 of Leskovec, Rajaraman and Ullman, Mining of Massive Datasets.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.hashes import Hashes, LongWords, Words, mix
from tokenloom.resources.tables.ragged import Ints, offsets_of

RECALL = 0.95
"""Least probability that two rows with a similarity at the threshold share a band."""
_CELLS, _AT_ONCE = 1 << 15, 4
"""N-grams, and permutations of each, that are computed at a time, so that they stay in the processor's cache."""
_ODD = np.uint64(0xD1B54A32D192ED03)

Signatures = npt.NDArray[np.uint32]


def bands_of(threshold: float, num_perm: int) -> tuple[int, int]:
    """Return the number of bands, and of permutations of each: the most with which `recall` is at least `RECALL`."""
    rows = next(r for r in range(num_perm, 0, -1) if r == 1 or recall(threshold, num_perm // r, r) >= RECALL)
    return num_perm // rows, rows


def recall(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two rows with a similarity share a band."""
    return 1 - (1 - similarity**rows) ** bands


def shingles(words: Words | LongWords, row_of_text: Ints, rows: int, size: int) -> tuple[Hashes, Ints]:
    """Return the n-grams of each row, uint64, and their bounds, int64 [rows + 1]; the same can occur several times.

    They go on from one text of a row to the next, so that a short answer counts too. A row of fewer words has one
    n-gram of all its words.

    Args:
        row_of_text: int64 [texts], ascending.
        size: words of an n-gram.
    """
    bounds = words.offsets[np.searchsorted(row_of_text, np.arange(rows + 1))]
    hashes, _ = words.ngrams(size, bounds)
    lengths = np.diff(bounds)
    counts = np.maximum(lengths - size + 1, 0)
    short = np.flatnonzero((counts == 0) & (lengths > 0))
    whole = words.hashes(bounds[short], bounds[short + 1])
    hashes = np.insert(hashes, offsets_of(counts)[short], whole) if len(short) else hashes
    counts[short] = 1
    return hashes, offsets_of(counts)


def signatures(hashes: Hashes, offsets: Ints, num_perm: int) -> Signatures:
    """Return the MinHash signatures of rows, uint32 [num_perm, rows].

    Args:
        hashes: uint64, the n-grams of the rows.
        offsets: int64 [rows + 1]; each row has an n-gram.
    """
    counts = np.diff(offsets)
    if len(counts) and counts.max() > _CELLS:  # a long row in parts, so that it takes no more memory than others
        parts = offsets_of(-(-counts // _CELLS))
        first = np.repeat(offsets[:-1] - parts[:-1] * _CELLS, np.diff(parts))
        cuts = np.append(first + np.arange(parts[-1]) * _CELLS, offsets[-1])
        return np.minimum.reduceat(signatures(hashes, cuts, num_perm), parts[:-1], axis=1)
    values, smallest_of_all = (hashes >> np.uint64(32)).astype(np.uint32), np.empty((num_perm, len(counts)), np.uint32)
    factors = permutations(num_perm)
    for rows in _alike(counts):
        # Short rows repeat their last n-gram, so that a group is one array and its minimum is taken across rows.
        place = np.minimum(np.arange(int(counts[rows[-1]]))[:, None], counts[rows] - 1) + offsets[rows]
        group = values[place]
        permuted, smallest = np.empty((_AT_ONCE, *group.shape), np.uint32), np.empty((num_perm, len(rows)), np.uint32)
        for start in range(0, num_perm, _AT_ONCE):
            some = factors[start : start + _AT_ONCE, None, None]
            part = np.multiply(group, some, out=permuted[: len(some)])
            np.minimum.reduce(part, axis=1, out=smallest[start : start + _AT_ONCE])
        smallest_of_all[:, rows] = smallest
    return smallest_of_all


def permutations(count: int) -> npt.NDArray[np.uint32]:
    """Return odd numbers, uint32 [count]: multiplying n-grams, which are hashes, by one of them permutes them."""
    return (mix(np.arange(1, count + 1, dtype=np.uint64) * _ODD) >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _alike(counts: Ints) -> Iterator[Ints]:
    """Yield groups of rows with similar numbers of n-grams, ascending."""
    order = np.argsort(counts, kind="stable")
    start = 0
    while start < len(order):
        # first by the shortest row, then by the longest of those, so that a group's array stays within the cache
        end = start + max(_CELLS // int(counts[order[start]]), 1)
        end = start + max(_CELLS // int(counts[order[min(end, len(order)) - 1]]), 1)
        yield order[start:end]
        start = end


def band_keys(found: Signatures, bands: int, rows: int) -> Iterator[Hashes]:
    """Yield a hash of the signatures in each band, uint64 [rows]."""
    for band in range(bands):
        keys = np.full(found.shape[1], band, np.uint64)
        for values in found[band * rows : (band + 1) * rows]:
            # order matters: the same values at other places are another band
            keys *= _ODD
            keys += values
        yield mix(keys)
