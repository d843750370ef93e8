"""Content-defined chunking: where to cut follows from the rows' content, not from their position.

A row ends a chunk where its hash is the lowest of all rows that end less than a reach before or behind it, so an edit
moves no cut farther away than that. Chunks so made lie between one and a few reaches: two on average, and much more
alike than those of a threshold. Among rows of unlike sizes each is tried in proportion to its bytes.
No cut falls within a reach of a file's begin or end. Where none falls within `maximum` bytes one is forced, behind the
row that came nearest to being one.
The idea is the local maximum of Bjørner, Blass and Gurevich ("Content-dependent chunking for differential compression,
the local maximum approach", J. Comput. Syst. Sci. 76, 2010), with rows in place of a window that rolls over bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tables.row_hash import Hashes

CANDIDATES = 64
"""How many rows are tried in `target` bytes, where there are so many."""

_LOWEST, _HIGHEST = np.uint64(0), np.uint64((1 << 64) - 1)


@dataclass(frozen=True)
class Candidates:
    """Rows that may end a chunk: where they end, int64 bytes ascending, and their hashes, uint64.

    The begin and the end of a file are candidates that no row is lower than.
    """

    ends: Ints
    hashes: Hashes

    @staticmethod
    def at(end: int) -> Candidates:
        return Candidates(np.array([end], np.int64), np.array([_LOWEST]))

    @staticmethod
    def of(hashes: Hashes, ends: Ints, sizes: Ints, size: ChunkSize) -> Candidates:
        unit = max(size.target // CANDIDATES, 1)
        threshold = np.minimum(sizes, unit).astype(np.uint64) * np.uint64((1 << 64) // (unit + 1))
        tried = np.flatnonzero(hashes < threshold)
        return Candidates(ends[tried], hashes[tried])

    def join(self, other: Candidates) -> Candidates:
        return Candidates(np.concatenate([self.ends, other.ends]), np.concatenate([self.hashes, other.hashes]))

    def before(self, place: int, reach: int) -> Candidates:
        """Those that end less than a reach before a place or at it, with the place as the origin."""
        near = slice(*np.searchsorted(self.ends, [place - reach, place], side="right"))
        return Candidates(self.ends[near] - place, self.hashes[near])

    def lowest(self, reach: int) -> Ints:
        """The ends of those that are lower than all others within a reach of them."""
        index = np.arange(len(self.ends))
        first = np.searchsorted(self.ends, self.ends - reach, side="right")
        last = np.searchsorted(self.ends, self.ends + reach, side="left")
        rival = np.minimum(_least(self.hashes, first, index), _least(self.hashes, index + 1, last))
        return self.ends[self.hashes < rival]


def _least(hashes: Hashes, begin: Ints, end: Ints) -> Hashes:
    """The least hash of each range [begin, end), the highest of all where a range is empty."""
    bounds = np.stack([begin, end], axis=1).reshape(-1)
    return np.where(begin < end, np.minimum.reduceat(np.append(hashes, _HIGHEST), bounds)[::2], _HIGHEST)


def _force(bounds: Ints, offsets: Ints, hashes: Hashes, size: ChunkSize, open_end: int) -> Ints:
    """Cut chunks of more than `maximum` bytes behind the row with the lowest hash for its size, no less than a reach
    and no more than `maximum` from their begin; a larger single row stays whole.

    Args:
        open_end: bytes at the end of the last chunk in which cuts are still to be found.
    """
    forced: list[Ints] = []
    for chunk in np.flatnonzero(np.diff(offsets[bounds]) > size.maximum):
        row, end, cuts = int(bounds[chunk]), int(bounds[chunk + 1]), []
        while offsets[end] - offsets[row] > size.maximum + (open_end if end == len(hashes) else 0):
            first = max(int(np.searchsorted(offsets, offsets[row] + size.reach)), row + 1)
            last = int(np.searchsorted(offsets, offsets[row] + size.maximum, side="right")) - 1
            sizes = np.diff(offsets[first - 1 : last + 1]).astype(np.uint64)
            row = first + int(np.argmin(hashes[first - 1 : last] // sizes)) if last >= first else max(last, row + 1)
            if row < end:
                cuts.append(row)
        forced.append(np.array(cuts, np.int64))
    return np.unique(np.concatenate([bounds, *forced])) if forced else bounds


B = TypeVar("B", bound="Block")


class Block(Protocol):
    """Rows that can be cut: hashes uint64 [rows] of their content, sizes int64 [rows] in bytes."""

    @property
    def hashes(self) -> Hashes: ...

    @property
    def sizes(self) -> Ints: ...

    def slice(self: B, begin: int, end: int) -> B: ...

    @staticmethod
    def join(blocks: list[Any]) -> Any: ...


def cut_blocks(blocks: Iterator[B], size: ChunkSize, before: Candidates | None = None) -> Iterator[B]:
    """Cut a stream of rows into chunks, the same whatever its blocks; holds little more than the largest chunk.

    Args:
        before: where the stream is the rest of a file behind a chunk: the candidates less than a reach before it.
    """
    pending: list[B] = []
    held, near = 0, before or Candidates.at(0)
    for block in blocks:
        pending.append(block)
        held += int(block.sizes.sum())
        if held >= 2 * size.target:
            *whole, rest, near = _chunks(pending[0].join(pending), size, near, last=False)
            yield from whole
            pending, held = [rest], int(rest.sizes.sum())
    if pending:
        yield from _chunks(pending[0].join(pending), size, near, last=True)[:-1]


def _chunks(block: Block, size: ChunkSize, before: Candidates, last: bool) -> list[Any]:
    """The chunks of a block, then the candidates that the last one must know of.

    Args:
        before: those less than a reach before the block.
        last: whether the block is the last; else where its last chunk ends is not decided yet.
    """
    offsets = np.concatenate([[0], np.cumsum(block.sizes)])
    found = before.join(Candidates.of(block.hashes, offsets[1:], block.sizes, size))
    natural = found.join(Candidates.at(int(offsets[-1]))).lowest(size.reach)
    rows = np.searchsorted(offsets, natural[natural > 0])
    bounds = np.unique(np.concatenate([[0], rows, [len(block.hashes)]]))
    decided = _force(bounds, offsets, block.hashes, size, open_end=0 if last else size.reach)
    chunks = [block.slice(begin, end) for begin, end in pairwise(decided.tolist())]
    return [*chunks, found.before(int(offsets[decided[-2]]), size.reach)]
