"""Content-defined chunking: where to cut follows from the rows' content, not from their position.

A row ends a chunk where a hash of its content falls below a threshold that grows with the row's size, so that
chunks hold `target` bytes on average whatever the rows' lengths. Such a row is passed over when another one
lies within `minimum` bytes before it. Both rules look only at nearby rows, so an edit moves no distant cut.
The file's start counts as a cut.
Where no cut falls within `maximum` bytes one is forced, behind the row that came nearest to being one. The idea is that
of Low-Bandwidth File System (Muthitacharoen et al., SOSP 2001), with rows in place of a rolling window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from tokenloom.assets.raw.row_hash import Hashes
from tokenloom.resources.ragged import Ints


@dataclass(frozen=True)
class ChunkSize:
    """Sizes of chunks in bytes."""

    target: int = 4 << 20
    minimum: int = 1 << 20
    maximum: int = 16 << 20


def cut(hashes: Hashes, sizes: Ints, size: ChunkSize, previous: int = 0) -> Ints:
    """Bounds [chunks + 1] in rows: chunk i holds rows bounds[i]:bounds[i + 1].

    Args:
        hashes: uint64 [rows], of each row's content.
        sizes: int64 [rows], bytes of each row.
        previous: where, in bytes from the first row (so not above 0), the last candidate before it ended.
    """
    if not len(hashes):
        return np.zeros(1, np.int64)
    position = np.cumsum(sizes)
    candidates = _candidates(hashes, sizes, size)
    apart = np.diff(position[candidates], prepend=previous) >= size.minimum
    bounds = np.unique(np.concatenate([[0], candidates[apart] + 1, [len(hashes)]]))
    return _force(bounds, np.concatenate([[0], position]), hashes, size)


def _candidates(hashes: Hashes, sizes: Ints, size: ChunkSize) -> Ints:
    """The rows whose content ends a chunk."""
    threshold = np.minimum(sizes, size.target).astype(np.uint64) * np.uint64((1 << 64) // (size.target + 1))
    return np.flatnonzero(hashes < threshold)


def _force(bounds: Ints, offsets: Ints, hashes: Hashes, size: ChunkSize) -> Ints:
    """Cut chunks of more than `maximum` bytes behind the row with the lowest hash for its size, no less than `minimum`
    and no more than `maximum` from their begin; a larger single row stays whole."""
    forced: list[Ints] = []
    for chunk in np.flatnonzero(np.diff(offsets[bounds]) > size.maximum):
        row, end, cuts = int(bounds[chunk]), int(bounds[chunk + 1]), []
        while offsets[end] - offsets[row] > size.maximum:
            first = max(int(np.searchsorted(offsets, offsets[row] + size.minimum)), row + 1)
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


def cut_blocks(blocks: Iterator[B], size: ChunkSize) -> Iterator[B]:
    """Cut a stream of rows into chunks, the same whatever its blocks; holds little more than the largest chunk."""
    pending: list[B] = []
    held = previous = 0
    for block in blocks:
        pending.append(block)
        held += int(block.sizes.sum())
        if held >= 2 * size.target:
            *whole, (rest, previous) = _chunks(pending[0].join(pending), size, previous)
            yield from (chunk for chunk, _ in whole)
            pending, held = [rest], int(rest.sizes.sum())
    if pending:
        yield from (chunk for chunk, _ in _chunks(pending[0].join(pending), size, previous))


def _chunks(block: B, size: ChunkSize, previous: int) -> list[tuple[B, int]]:
    """Chunks, each with where the last candidate before it ended, in bytes from its first row."""
    position = np.concatenate([[0], np.cumsum(block.sizes)])
    ended = np.concatenate([[previous], position[_candidates(block.hashes, block.sizes, size) + 1]])
    bounds = cut(block.hashes, block.sizes, size, previous)
    starts = position[bounds[:-1]]
    latest = ended[np.searchsorted(ended, starts, side="right") - 1] - starts
    return [
        (block.slice(begin, end), int(before)) for (begin, end), before in zip(pairwise(bounds), latest, strict=True)
    ]
