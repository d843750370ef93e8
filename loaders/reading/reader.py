"""Reads batches of sequences from chunks: what rows have in common is found out for many batches at once, and then
each is one vectorized gather a column, whatever chunks its rows come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.collation.batch import Batch, PaddingPolicy
from tokenloom.loaders.reading.address_space import FlatValues
from tokenloom.loaders.reading.chunk import Chunk, InMemory
from tokenloom.loaders.reading.rectangles import Flags
from tokenloom.loaders.reading.sequences import SequenceBatches, SequenceColumns
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, offsets_of


class SequenceReader:
    """Reads batches from chunks; row numbers count through all chunks. A chunk is opened when first read.

    Args:
        lengths: rows of each chunk.
        load: opens a chunk.
        weighted: whether any chunk has weights.
        all_trained: bool, or bool [chunks]: whether all tokens are known to be trained.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        load: Callable[[int], Chunk],
        weighted: bool,
        all_trained: bool | Flags = False,
    ):
        self._first_row = offsets_of(np.asarray(lengths, np.int64))
        self._load, self._weighted = load, weighted
        self._open = np.zeros(len(self._first_row) - 1, bool)
        self._all_trained = np.broadcast_to(all_trained, self._open.shape)
        self._opening = Lock()
        self._unchecked: dict[int, Chunk] = {}
        self._sides: dict[str, SequenceColumns] = {}
        self._label: FlatValues | None = None

    @classmethod
    def of_tables(cls, tables: Sequence[pa.Table]) -> SequenceReader:
        """A reader of chunks that are in memory."""
        weighted = any(name.endswith("weights") for table in tables for name in table.column_names)
        return cls([table.num_rows for table in tables], lambda chunk: InMemory(tables[chunk]), weighted)

    @classmethod
    def joined(cls, readers: Sequence[SequenceReader]) -> SequenceReader:
        """One reader of the chunks of several, in their order."""
        first = offsets_of(np.array([len(reader._open) for reader in readers]))
        lengths = np.concatenate([np.diff(reader._first_row) for reader in readers])
        all_trained = np.concatenate([reader._all_trained for reader in readers])

        def load(chunk: int) -> Chunk:
            number = int(np.searchsorted(first, chunk, side="right")) - 1
            return readers[number]._load(chunk - int(first[number]))

        return cls(lengths, load, any(reader._weighted for reader in readers), all_trained)

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def lengths(self, rows: Ints) -> Ints:
        """int64 [rows]: tokens of each row; of the longer side, where rows are pairs."""
        chunks, local = self._places(rows)
        return np.max([side.ids.rows(chunks, local)[1] for side in self._sides.values()], axis=0)

    def batch(self, rows: Ints, policy: PaddingPolicy) -> Batch:
        """A batch of rows, of which there is at least one; a negative row number stands for a row of padding.

        Returns:
            int64 [rows, width] `input_ids`, `attention_mask` and `labels` (not shifted, -100 where not trained); for
            packed sequences also int64 [rows, width] `position_ids`, int32 `cu_seqlens` over the flattened batch
            (runs of padding count as documents), and the int `max_seqlen`. Where any chunk has weights, float32
            [rows, width] `loss_weights`, 0 where `labels` are -100. Pairs have all that under `chosen_` and
            `rejected_`, each with a width of its own; labelled rows also have `label`, bool [rows].

        Raises:
            StoreError: bytes that are read are missing or damaged.
        """
        return next(self.batches([rows], policy))

    def batches(self, rows: Sequence[Ints], policy: PaddingPolicy) -> Iterator[Batch]:
        """The batch of each of some arrays of rows.

        Raises:
            StoreError: bytes that a batch needs are missing or damaged; those before it were given.
        """
        try:
            made = self._prepared(rows, policy)
        except StoreError:
            if len(rows) == 1:
                raise
            for some in rows:
                yield self.batch(some, policy)
            return
        for number in range(len(rows)):
            yield made(number)

    def _prepared(self, rows: Sequence[Ints], policy: PaddingPolicy) -> Callable[[int], Batch]:
        """What makes each of some batches, once all bytes that they need are checked."""
        bounds, joined = offsets_of(np.array([len(some) for some in rows])), np.concatenate(rows)
        real = joined >= 0
        real = None if real.all() else real
        chunks, local = self._places(joined if real is None else np.where(real, joined, max(int(joined.max()), 0)))
        if self._unchecked:
            self._touch(chunks, local)
        made = {
            f"{side}_" if side else "": SequenceBatches(columns, chunks, local, real, bounds, policy)
            for side, columns in self._sides.items()
        }
        label = None
        if self._label is not None:
            label = self._label.at(self._label.places(chunks, local)).view(bool)
            label = label if real is None else label & real

        def batch(number: int) -> Batch:
            if label is None and "" in made:
                return made[""].batch(number)
            found: Batch = {
                f"{side}{name}": value
                for side, batches in made.items()
                for name, value in batches.batch(number).items()
            }
            if label is not None:
                found["label"] = label[bounds[number] : bounds[number + 1]].copy()
            return found

        return batch

    def _places(self, rows: Ints) -> tuple[Ints, Ints]:
        """int64 [rows]: the chunk of each row, and the row within it; opens chunks."""
        chunks = self._first_row.searchsorted(rows, "right") - 1
        if not self._open[chunks].all():
            with self._opening:  # threads may share a reader
                empty = np.flatnonzero((np.diff(self._first_row) == 0) & ~self._open)  # never read, but to be whole
                for chunk in np.unique(np.append(chunks[~self._open[chunks]], empty)).tolist():
                    self._hold(chunk, self._load(chunk))
        return chunks, rows - self._first_row[chunks]

    def _touch(self, chunks: Ints, local: Ints) -> None:
        for number in sorted({*chunks.tolist()} & {*self._unchecked}):
            chunk, rows = self._unchecked[number], local[chunks == number]
            for columns in self._sides.values():
                columns.touch(chunk, number, rows)
            if not chunk.unchecked:
                self._unchecked.pop(number, None)

    def _hold(self, chunk: int, opened: Chunk) -> None:
        table = opened.table
        if table.num_rows != self._first_row[chunk + 1] - self._first_row[chunk]:
            raise StoreError(f"chunk {chunk} has {table.num_rows} rows, not as many as its manifest says; build again")
        if opened.unchecked:
            self._unchecked[chunk] = opened
        for side, columns in sides(table).items():
            if side not in self._sides:
                dtype = columns["input_ids"].type.value_type.to_pandas_dtype()
                self._sides[side] = SequenceColumns(dtype, self._all_trained, self._weighted)
            self._sides[side].hold(chunk, columns)
        if "label" in table.column_names:
            self._label = self._label or FlatValues(np.uint8, len(self._open))
            self._label.hold(chunk, table["label"].to_numpy().view(np.uint8))
        self._open[chunk] = True
