"""A cache of the sequences of a raw dataset's rows, each encoded on first access."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import DataValidationError
from tokenloom.loaders.on_the_fly.raw_rows import rows_at
from tokenloom.loaders.on_the_fly.row_encoder import RowEncoder, SkippedRow
from tokenloom.loaders.reading.batch import Batch
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.tables.ragged import Ints, list_parts
from tokenloom.resources.tables.sequence_schema import ROWS

LARGEST = 1 << 30
"""Size in bytes above which tables are not merged."""


class SequenceCache:
    """Sequences by the number of their raw row.

    Sequences are kept as Arrow tables, at about 3 bytes per token. A new table is merged with the previous one if that
    one has no more rows, so there are few tables and each row is copied few times.

    Args:
        raw: the raw rows, by number; see `tokenloom.loaders.on_the_fly.raw_rows`.
        encoder: encodes the rows.
        enabled: keep the sequences; False: keep only the reasons of rows without one.
    """

    def __init__(self, raw: Any, encoder: RowEncoder, enabled: bool):
        self._raw, self._encoder, self._enabled = raw, encoder, enabled
        self.skipped: dict[int, SkippedRow] = {}
        self._tables: list[pa.Table] = []
        self._places = np.zeros(len(raw) if enabled else 0, np.int64)  # 1 + the place among all sequences, or 0
        self._reader = encoder.reader([])
        self._lock = Lock()

    def batch(self, rows: Ints) -> Batch:
        """Return a batch of rows, padded to the longest.

        Raises:
            DataValidationError: a row has no sequence; the message names the row and the reason.
        """
        with self._lock:  # threads can share a dataset
            reader, places = self._encoded(rows)
        if not places.all():
            skipped = self.skipped[int(rows[np.flatnonzero(places == 0)[0]])]
            raise DataValidationError(
                f"{skipped}; to drop such rows, call usable() or pass skip_errors=True to create_preprocessed_dataset"
            )
        return self._encoder.batch(reader, places - 1)

    def are_usable(self, rows: Ints) -> np.ndarray:
        """Return whether each row is exactly one sequence, bool [rows]."""
        with self._lock:
            return self._encoded(rows)[1] > 0

    def _encoded(self, rows: Ints) -> tuple[SequenceReader, Ints]:
        """Return a reader and, for each row, 1 + the place of its sequence in it, or 0 if it has none."""
        unknown = np.unique(rows if not self._enabled else rows[self._places[rows] == 0])
        if self.skipped:
            unknown = unknown[~np.isin(unknown, np.fromiter(self.skipped, np.int64))]
        tables = self._encode(unknown) if len(unknown) else []
        if not self._enabled:
            numbers = np.concatenate([np.zeros(0, np.int64), *(_row_numbers(table) for table in tables)])
            order = np.argsort(numbers)
            index = np.searchsorted(numbers[order], rows)
            index[index == len(numbers)] = 0
            known = numbers[order][index] == rows if len(numbers) else np.zeros(len(rows), bool)
            return self._encoder.reader(tables), np.where(known, np.append(order, 0)[index] + 1, 0)
        for table in tables:
            self._keep(table)
        if tables:
            self._reader = self._encoder.reader(self._tables)
        return self._reader, self._places[rows]

    def _encode(self, numbers: Ints) -> list[pa.Table]:
        """Encode rows, and keep the sequences that are the only one of a single row."""
        tables, skipped = self._encoder.encode(rows_at(self._raw, numbers), numbers)
        self.skipped |= {row.row: row for row in skipped}
        return [self._one_to_one(table) for table in tables]

    def _one_to_one(self, table: pa.Table) -> pa.Table:
        """Drop sequences of several rows, and those of rows with several sequences."""
        offsets, rows = list_parts(table[ROWS])
        numbers, which, counts = np.unique(rows.to_numpy(), return_inverse=True, return_counts=True)
        several = np.bincount(which, np.repeat(np.diff(offsets), np.diff(offsets)) > 1, len(numbers)) > 0
        several |= counts > 1
        if not several.any():
            return table
        message = (
            "the engine did not build exactly one sequence from it (because of length.strategy: split, or packing): "
            "use StreamingPreprocessedDataset, or build the dataset"
        )
        self.skipped |= {row: SkippedRow(row, "several_sequences", message) for row in numbers[several].tolist()}
        first = which[np.minimum(offsets[:-1], max(len(which) - 1, 0))]
        return table.filter(pa.array(~several[first]))

    def _keep(self, table: pa.Table) -> None:
        before = sum(kept.num_rows for kept in self._tables)
        self._places[_row_numbers(table)] = before + 1 + np.arange(table.num_rows)
        self._tables.append(table.drop_columns([ROWS]).combine_chunks())
        while len(self._tables) > 1 and self._tables[-2].num_rows <= self._tables[-1].num_rows:
            if sum(table.nbytes for table in self._tables[-2:]) > LARGEST:
                break
            self._tables[-2:] = [pa.concat_tables(self._tables[-2:]).combine_chunks()]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_reader")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())
        self._reader = self._encoder.reader(self._tables)


def _row_numbers(table: pa.Table) -> Ints:
    return list_parts(table[ROWS])[1].to_numpy()
