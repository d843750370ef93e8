"""What parsing made of a chunk's records: rows, what was set aside, and where each stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.rejects import ROW, join_rejects, no_rejects
from tokenloom.errors import SourceError
from tokenloom.resources.tables.ragged import Ints, offsets_of, one_array


@dataclass(frozen=True)
class Parsed:
    """A chunk's rows.

    Args:
        table: the columns as found.
        records: int64 [rows], ascending: the record that each row comes from.
        rejects: records set aside; their row position is the record.
        filtered: records that hold no row, such as blank lines of text.
    """

    table: pa.Table
    records: Ints
    rejects: pa.Table
    filtered: int = 0

    @classmethod
    def of(cls, table: pa.Table, records: Ints, rejects: Sequence[pa.Table] = (), filtered: int = 0) -> Parsed:
        return cls(table, records, join_rejects(rejects), filtered)

    @classmethod
    def whole(cls, table: pa.Table) -> Parsed:
        """A table each of whose rows is a record."""
        return cls(table, np.arange(table.num_rows, dtype=np.int64), no_rejects())

    def select(self, rows: np.ndarray, keep_losses: bool = True) -> Parsed:
        """The rows where the flags bool [rows] hold; rejects and filtered ones only with `keep_losses`."""
        kept = replace(self, table=self.table.filter(pa.array(rows)), records=self.records[rows])
        return kept if keep_losses else replace(kept, rejects=no_rejects(), filtered=0)

    def positioned(self, places: Ints | None, source: str) -> Parsed:
        """The same with each row's position within the chunk as a column, and in the rejects.

        Args:
            places: int64 [records], where each record stands; None: rows are numbered one after the other.
            source: the file, for messages.

        Raises:
            SourceError: a column has the name of the positions.
        """
        if ROW in self.table.column_names:
            raise SourceError(f"{source}: a column is named {ROW}, which holds row positions here; rename it there")
        rejected = one_array(self.rejects[ROW]).to_numpy()
        within = np.zeros(len(self.records), np.int64)
        if places is None:
            last = max(self.records[-1:].max(initial=-1), rejected.max(initial=-1))
            counts = np.bincount(np.concatenate([self.records, rejected]), minlength=last + 1)
            places = offsets_of(counts)
            first = np.searchsorted(self.records, self.records)
            within = np.arange(len(self.records)) - first
        table = self.table.append_column(ROW, pa.array(places[self.records] + within, pa.int32()))
        index = self.rejects.column_names.index(ROW)
        rejects = self.rejects.set_column(index, ROW, pa.array(places[rejected], pa.int32()))
        return replace(self, table=table.combine_chunks(), rejects=rejects)
