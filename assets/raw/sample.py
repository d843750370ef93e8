"""The rows of a source that are used: the first ones of each split, and a fraction of them by their content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk
from tokenloom.assets.stage.rejects import ROW, count_rejected
from tokenloom.resources.tables.hashes import Hashes
from tokenloom.resources.tables.ragged import Flags, one_array

_MIXER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying is one to one


class Block(Protocol):
    """Consecutive records or rows of a source."""

    @property
    def rows(self) -> Flags:
        """bool [records]: which records are rows, and not blank."""
        ...

    def slice(self, start: int, end: int) -> Self:
        """Return the records [start, end)."""
        ...


AnyBlock = TypeVar("AnyBlock", bound=Block)


@dataclass
class Room:
    """How many more rows of a split are read.

    Args:
        left: `dataset.max_rows`, less what was read; None: all.
    """

    left: int | None

    def take(self, blocks: Iterator[AnyBlock]) -> Iterator[AnyBlock]:
        """Yield the blocks up to the last row that is read; the last block ends there."""
        if self.left is None:
            yield from blocks
            return
        while self.left and (block := next(blocks, None)) is not None:
            ends = np.flatnonzero(block.rows)
            if len(ends) > self.left:
                block = block.slice(0, int(ends[self.left - 1]) + 1)
            self.left -= min(len(ends), self.left)
            yield block

    def first(self, parsed: ParsedChunk) -> tuple[ParsedChunk, bool]:
        """Return the rows of a chunk that are read, for records that hold several; and whether they are all."""
        assert self.left is not None
        room, rows = self.left, parsed.table.num_rows + parsed.rejects.num_rows
        self.left -= min(rows, room)
        if rows <= room:
            return parsed, True
        read = parsed.select(one_array(parsed.table[ROW]).to_numpy() < room)
        return replace(read, rejects=read.rejects.filter(pc.less(read.rejects[ROW], room))), False


def in_fraction(hashes: Hashes, fraction: float) -> Flags:
    """Return bool [records]: which records are in the fraction, given their hashes, uint64 [records].

    The hashes are mixed: their order also decides which rows are validation rows.
    """
    mixed = (hashes ^ (hashes >> np.uint64(32))) * _MIXER
    return (mixed ^ (mixed >> np.uint64(29))) * _MIXER < np.uint64(fraction * 2.0**64)


def sampled(chunk: ParsedChunk, by_row: Hashes, by_record: Hashes | None, fraction: float) -> tuple[ParsedChunk, Flags]:
    """Return the rows and rejects of a chunk that are in a fraction, and bool [rows]: which rows they are.

    Args:
        by_row: uint64 [rows], the hashes of the rows.
        by_record: uint64 [records], the hashes of the records; None if records hold several rows, whose rejects are
            then all kept.
    """
    members = in_fraction(by_row, fraction)
    sample = chunk.select(members)
    if by_record is not None:
        used = in_fraction(by_record, fraction)[chunk.rejected]
        rejects, others = (sample.rejects.filter(pa.array(flags)) for flags in (used, ~used))
        filtered = others.num_rows - count_rejected(others)  # which are records of dropped rows
        sample = replace(sample, rejects=rejects, filtered=sample.filtered - filtered)
    return sample, members
