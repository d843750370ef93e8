"""Content-defined chunking: the content of the rows decides where chunks end, not their position.

A row ends a chunk if its hash is lower than that of every other row that ends less than `reach` bytes before or after
it. An edit therefore moves only cuts within one reach of it. Chunks are one to a few reaches long, two on average, and
their sizes vary much less than with a threshold on the hash. A row's chance of being a candidate is proportional to its
size. No cut is made within one reach of the start or end of a file. If `maximum` bytes or `max_rows` rows contain no
cut, one is forced after the row with the lowest hash for its size. The method is the local maximum of Bjørner, Blass
and Gurevich ("Content-dependent chunking for differential compression, the local maximum approach", J. Comput. Syst.
Sci. 76, 2010), applied to rows instead of a rolling window of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.resources.tables.hashes import Hashes
from tokenloom.resources.tables.ragged import Ints

CANDIDATES = 64
"""The number of candidate rows per `target` bytes, if there are that many rows."""

_LOWEST, _HIGHEST = np.uint64(0), np.uint64((1 << 64) - 1)


@dataclass(frozen=True)
class Candidates:
    """Rows that can end a chunk.

    The start and end of a file are candidates with the lowest possible hash.

    Args:
        ends: int64 [candidates], ascending: the byte at which each row ends.
        hashes: uint64 [candidates].
    """

    ends: Ints
    hashes: Hashes

    @staticmethod
    def at(end: int) -> Candidates:
        """Return the start or end of a file as a candidate."""
        return Candidates(np.array([end], np.int64), np.array([_LOWEST]))

    @staticmethod
    def of(hashes: Hashes, offsets: Ints, size: ChunkSize) -> Candidates:
        """Return the candidates among some rows: those with a low hash for their size.

        Args:
            offsets: int64 [rows + 1], the bytes at which rows start and end.
        """
        unit = max(size.target // CANDIDATES, 1)
        threshold = np.minimum(np.diff(offsets), unit).view(np.uint64)
        # in proportion to the row's bytes, so that the number of candidates depends on bytes, not on how long rows are
        threshold *= np.uint64((1 << 64) // (unit + 1))
        low = np.flatnonzero(hashes < threshold)
        return Candidates(offsets[low + 1], hashes[low]).without_repeats(size.reach)

    def without_repeats(self, reach: int) -> Candidates:
        """Drop candidates inside a run of equal hashes: two at each end are enough to keep the run from cutting."""
        equal = (self.hashes[1:] == self.hashes[:-1]) & (np.diff(self.ends) < reach)
        kept = np.ones(len(self.ends), bool)
        kept[2:-2] = ~(equal[:-3] & equal[1:-2] & equal[2:-1] & equal[3:])
        return self if kept.all() else Candidates(self.ends[kept], self.hashes[kept])

    @staticmethod
    def join(parts: Sequence[Candidates]) -> Candidates:
        """Return the candidates of all parts, in order."""
        ends, hashes = zip(*((part.ends, part.hashes) for part in parts), strict=True)
        return Candidates(np.concatenate(ends), np.concatenate(hashes))

    def since(self, position: int, reach: int) -> Candidates:
        """Return the candidates after a position and less than a reach before it, relative to the position."""
        first = np.searchsorted(self.ends, position - reach, side="right")
        return Candidates(self.ends[first:] - position, self.hashes[first:])

    def lowest(self, reach: int) -> Ints:
        """Return the ends of the candidates that are lower than all others less than a reach away."""
        index = np.arange(len(self.ends))
        first = np.searchsorted(self.ends, self.ends - reach, side="right")
        last = np.searchsorted(self.ends, self.ends + reach, side="left")
        rival = np.minimum(_least(self.hashes, first, index), _least(self.hashes, index + 1, last))
        # with `<=`, two equal hashes less than a reach apart would both cut, and enclose a chunk that is too short
        return self.ends[self.hashes < rival]


def _least(hashes: Hashes, start: Ints, end: Ints) -> Hashes:
    """Return the lowest hash of each range [start, end), or the highest possible hash if the range is empty.

    Each range is the union of two ranges of 2^k hashes, so that many long ranges take n log n steps.
    """
    least, lengths = np.full(len(start), _HIGHEST), end - start
    width, lowest = 1, hashes
    # after k rounds, lowest[i] is the minimum of the 2^k hashes from i on
    while width <= lengths.max(initial=0):
        index = np.flatnonzero((lengths >= width) & (lengths < 2 * width))
        least[index] = np.minimum(lowest[start[index]], lowest[end[index] - width])
        width, lowest = 2 * width, np.minimum(lowest[:-width], lowest[width:])
    return least


def _force(bounds: Ints, offsets: Ints, hashes: Hashes, size: ChunkSize, open_end: int) -> Ints:
    """Cut chunks of more than `maximum` bytes or `max_rows` rows after the row with the lowest hash for its size.

    The cut is at least `reach` and at most `maximum` bytes from the start of the chunk. A single larger row stays
    whole.

    Args:
        bounds: int64 [chunks + 1], the rows at which chunks start.
        offsets: int64 [rows + 1], the bytes at which rows start.
        open_end: bytes at the end of the last chunk that later rows can still cut.
    """
    forced: list[Ints] = []
    for chunk in np.flatnonzero((np.diff(offsets[bounds]) > size.maximum) | (np.diff(bounds) > size.max_rows)):
        row, end, cuts = int(bounds[chunk]), int(bounds[chunk + 1]), []
        # rows that are not read yet can still cut within a reach of the end
        final = offsets[end] - (open_end if end == len(hashes) else 0)
        while final - offsets[row] > size.maximum or (
            end - row > size.max_rows and final >= offsets[row + size.max_rows]
        ):
            # a single row can be longer than a reach, so the chunk has at least one row
            first = max(int(np.searchsorted(offsets, offsets[row] + size.reach)), row + 1)
            last = int(np.searchsorted(offsets, offsets[row] + size.maximum, side="right")) - 1
            last = min(last, row + size.max_rows)
            # over the size: a row of n bytes counts as n random hashes, the lowest of which is about n times lower
            sizes = np.diff(offsets[first - 1 : last + 1]).astype(np.uint64)
            row = first + int(np.argmin(hashes[first - 1 : last] // sizes)) if last >= first else max(last, row + 1)
            if row < end:
                cuts.append(row)
        forced.append(np.array(cuts, np.int64))
    return np.unique(np.concatenate([bounds, *forced])) if forced else bounds


B = TypeVar("B", bound="Block")


class Block(Protocol):
    """Rows that can be cut into chunks."""

    @property
    def hashes(self) -> Hashes:
        """uint64 [rows]: hashes of the rows' content."""
        ...

    @property
    def offsets(self) -> Ints:
        """int64 [rows + 1]: the bytes at which rows start, from 0, and the size of all of them."""
        ...

    def slice(self: B, start: int, end: int) -> B:
        """Return the rows [start, end)."""
        ...

    @staticmethod
    def join(blocks: list[Any]) -> Any:
        """Concatenate several blocks."""
        ...


def cut_blocks(blocks: Iterator[B], size: ChunkSize, before: Candidates | None = None) -> Iterator[B]:
    """Cut a stream of rows into chunks. The chunks do not depend on how the stream is split into blocks.

    Memory: little more than the largest chunk.

    Args:
        before: if the stream continues a file after a chunk, the candidates less than a reach before it; default: the
            stream starts a file.
    """
    pending: list[B] = []
    pending_bytes, pending_rows, left, candidates = 0, 0, 0, [before or Candidates.at(0)]
    for block in blocks:
        pending.append(block)
        offsets = block.offsets
        new = Candidates.of(block.hashes, offsets, size)
        candidates.append(Candidates(new.ends + pending_bytes, new.hashes))
        pending_bytes += int(offsets[-1])
        pending_rows += len(offsets) - 1
        # rows left over from the last cut count no more: else a long run of tiny ones is cut again with each block
        if pending_bytes >= 2 * size.target or pending_rows >= left + 2 * size.max_rows:
            whole = _chunks(_join_and_release(pending), size, candidates, last=False)
            # the last chunk stays: rows less than a reach after its end can have lower hashes
            pending.append(whole.pop())
            pending_bytes -= (done := sum(int(chunk.offsets[-1]) for chunk in whole))
            pending_rows = left = len(pending[0].hashes)
            candidates = [Candidates.join(candidates).since(done, size.reach)]
            # popped one by one, so that a chunk is released as soon as its reader is done with it
            while whole:
                yield whole.pop(0)
    if pending:
        yield from _chunks(_join_and_release(pending), size, candidates, last=True)


def _join_and_release(blocks: list[B]) -> B:
    """Return several blocks as one, and empty the list, so that they are in memory only once."""
    block = blocks[0].join(blocks)
    blocks.clear()
    return block


def _chunks(block: B, size: ChunkSize, candidates: Sequence[Candidates], last: bool) -> list[B]:
    """Return the chunks of a block.

    Args:
        candidates: those of the block, and those less than a reach before it.
        last: whether the block is the last one; if not, the end of its last chunk is not final.
    """
    offsets = block.offsets
    natural = Candidates.join([*candidates, Candidates.at(int(offsets[-1]))]).lowest(size.reach)
    # candidates at or before 0 only rival with those of this block; they ended chunks that were returned
    rows = np.searchsorted(offsets, natural[natural > 0])
    bounds = np.unique(np.concatenate([[0], rows, [len(block.hashes)]]))
    bounds = _force(bounds, offsets, block.hashes, size, open_end=0 if last else size.reach)
    return [block.slice(start, end) for start, end in pairwise(bounds.tolist())]
