"""A parsed chunk: its rows, its rejected records, and the position of each in the file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.rejects import ROW, join_rejects, no_rejects, reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.tables.ragged import Ints, offsets_of, one_array

MAX_COLUMNS = 10_000
MAX_CELLS = 1 << 26
"""Rows times columns of a chunk. Only rows that lack most columns reach it: their nulls take memory, but no text."""


@dataclass(frozen=True)
class ParsedChunk:
    """The rows of a chunk.

    Args:
        table: the columns as found.
        records: int64 [rows], ascending: the record that each row comes from.
        rejects: rejected records; their row position is the record.
        filtered: the number of records without a row, such as blank lines of text.
        places: the place of each row, and of each reject, within its record; None numbers the rows.
        counters: counts of what no row uses.
        rejected: int64 [rejects], the record of each reject, once the chunk is positioned.
    """

    table: pa.Table
    records: Ints
    rejects: pa.Table
    filtered: int = 0
    places: tuple[Ints, Ints] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    rejected: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, table: pa.Table, records: Ints, rejects: Sequence[pa.Table] = (), filtered: int = 0) -> ParsedChunk:
        """Return a parsed chunk with several tables of rejects."""
        return cls(table, records, join_rejects(rejects), filtered)

    def select(self, rows: np.ndarray, keep_losses: bool = True) -> ParsedChunk:
        """Return the rows whose flag in bool [rows] is set.

        Args:
            keep_losses: whether to keep the rejects and the count of filtered records.
        """
        chunk = replace(self, table=self.table.filter(pa.array(rows)), records=self.records[rows])
        return chunk if keep_losses else replace(chunk, rejects=no_rejects(), filtered=0, counters={})

    def positioned(self, positions: Ints | None, source: str) -> ParsedChunk:
        """Return the chunk with each row's position within it as a column, also in the rejects.

        Args:
            positions: int64 [records], the position of each record; None numbers the rows consecutively.
            source: the file, for messages.

        Raises:
            SourceError: a column already has the name of the position column.
        """
        if ROW in self.table.column_names:
            raise SourceError(f"{source}: the column name {ROW} is reserved for row positions; rename the column")
        rejected = one_array(self.rejects[ROW]).to_numpy()
        within, rejected_within = np.zeros(len(self.records), np.int64), np.zeros(len(rejected), np.int64)
        if positions is None:
            # rows are numbered in the order of their records, rejected ones among them
            last = max(self.records[-1:].max(initial=-1), rejected.max(initial=-1))
            positions = offsets_of(np.bincount(np.concatenate([self.records, rejected]), minlength=last + 1))
            within = np.arange(len(self.records)) - np.searchsorted(self.records, self.records)
        if self.places is not None:
            within, rejected_within = self.places
        table = self.table.append_column(ROW, pa.array(positions[self.records] + within, pa.int32()))
        index = self.rejects.column_names.index(ROW)
        rejects = self.rejects.set_column(index, ROW, pa.array(positions[rejected] + rejected_within, pa.int32()))
        if self.places is not None:  # the rejects of a record are in the order of their places
            rejects, rejected = join_rejects([rejects]), np.sort(rejected)
        return replace(self, table=table.combine_chunks(), rejects=rejects, rejected=rejected, places=None)


def reject_too_large(rows: Ints, limit: int, excerpts: Sequence[str]) -> pa.Table:
    """Return rejects for records that are larger than `dataset.reader.max_record_bytes`."""
    message = f"larger than dataset.reader.max_record_bytes, {limit:,} bytes"
    return reject_rows(rows, "raw", "too_large", "", message, excerpts)


def reject_records(rejected: Iterable[tuple[int, str, str, str]]) -> list[pa.Table]:
    """Return rejects, one table per reason.

    Args:
        found: the record, code, message and excerpt of each reject.
    """
    reasons: defaultdict[tuple[str, str], tuple[list[int], list[str]]] = defaultdict(lambda: ([], []))
    for record, code, message, excerpt in rejected:
        records, excerpts = reasons[code, message]
        records.append(record)
        excerpts.append(excerpt)
    return [
        reject_rows(np.array(records), "raw", code, "", message, excerpts)
        for (code, message), (records, excerpts) in reasons.items()
    ]


def check_columns(count: int, name: str, rows: int = 1, kind: str = "columns") -> None:
    """Refuse a file with more than `MAX_COLUMNS` columns, or a chunk with more than `MAX_CELLS` cells.

    Raises:
        SourceError: it has more; the message names it.
    """
    if count > MAX_COLUMNS:
        raise SourceError(f"{name}: found {count:,} {kind}, but at most {MAX_COLUMNS:,} are supported")
    if count * rows > MAX_CELLS:
        raise SourceError(
            f"{name}: found {count:,} columns in {rows:,} rows, most of them missing in each row; put the values "
            "into one object per row"
        )
