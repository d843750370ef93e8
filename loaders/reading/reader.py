"""Reads batches of sequences from chunks.

Rows are located for many batches at once. Each batch is then one vectorized gather per column, for any mix of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.reading.address_space import FlatValues
from tokenloom.loaders.reading.batch import Batch, PaddingPolicy
from tokenloom.loaders.reading.chunk import Chunk, InMemory
from tokenloom.loaders.reading.far_chunks import FarChunks
from tokenloom.loaders.reading.kept_columns import KeptColumns
from tokenloom.loaders.reading.kept_columns import Load as LoadSidecar
from tokenloom.loaders.reading.mapped_chunks import MappedChunks, Use
from tokenloom.loaders.reading.rectangles import Flags
from tokenloom.loaders.reading.sequences import SequenceBatches, SequenceColumns
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, offsets_of
from tokenloom.resources.tables.sequence_schema import INPUT_IDS, LABEL, ROWS, WEIGHTS

MOST_MAPS = 60_000
"""Files that are mapped at once; Linux allows 65,530 mappings per process."""


class SequenceReader:
    """Reads batches from chunks. Rows are numbered across all chunks. A chunk is opened when it is first read. Chunks
    of a bucket are downloaded then, and released again when others have been read since; so are those of datasets with
    very many chunks.

    Args:
        lengths: number of rows in each chunk.
        load: opens a chunk, given its index.
        weighted: whether any chunk has weights.
        all_trained: bool, or bool [chunks]: whether all tokens are known to be trained.
        labels: whether batches have labels; prompts have none.
        kept: names of kept columns, and what opens the sidecar of a chunk.
        far: the chunks that are downloaded; None if all are on this host.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        load: Callable[[int], Chunk],
        weighted: bool,
        all_trained: bool | Flags = False,
        labels: bool = True,
        kept: tuple[Sequence[str], LoadSidecar] | None = None,
        far: FarChunks | None = None,
    ):
        self._first_row = offsets_of(np.asarray(lengths, np.int64))
        self._load, self._weighted = load, weighted
        self._open = np.zeros(len(self._first_row) - 1, bool)
        self._all_trained = np.broadcast_to(all_trained, self._open.shape)
        self._opening = Lock()
        self._unchecked: dict[int, Chunk] = {}
        self._sides: dict[str, SequenceColumns] = {}
        self._label: FlatValues | None = None
        self._labels = labels
        self.kept = KeptColumns(*kept, len(self._open)) if kept else None
        self.far = far
        self._mapped = MappedChunks(far.sizes, far.limit // 2) if far else self._few_maps()
        self._empty = np.flatnonzero(np.diff(self._first_row) == 0)  # never read, but checked if they are on this host

    @classmethod
    def of_tables(
        cls,
        tables: Sequence[pa.Table],
        labels: bool = True,
        keep_columns: Sequence[str] = (),
        sidecars: Sequence[pa.Table | None] = (),
    ) -> SequenceReader:
        """Return a reader of tables in memory; `sidecars` are those of the tables if there are `keep_columns`."""
        weighted = any(name.endswith(WEIGHTS) for table in tables for name in table.column_names)
        rows, kept = [table.num_rows for table in tables], (keep_columns, sidecars.__getitem__)
        load = [InMemory(table) for table in tables].__getitem__
        return cls(rows, load, weighted, labels=labels, kept=kept if keep_columns else None)

    @classmethod
    def joined(cls, readers: Sequence[SequenceReader]) -> SequenceReader:
        """Return one reader over the chunks of several readers, in their order."""
        first = offsets_of(np.array([len(reader._open) for reader in readers]))
        lengths = np.concatenate([np.diff(reader._first_row) for reader in readers])
        all_trained = np.concatenate([reader._all_trained for reader in readers])

        def load(chunk: int) -> Chunk:
            number = int(np.searchsorted(first, chunk, side="right")) - 1
            return readers[number]._load(chunk - int(first[number]))

        def sidecar(chunk: int) -> pa.Table | None:
            number = int(np.searchsorted(first, chunk, side="right")) - 1
            kept = readers[number].kept
            return kept.sidecar(chunk - int(first[number])) if kept else None

        names = dict.fromkeys(name for reader in readers if reader.kept for name in reader.kept.names)
        labels = all(reader._labels for reader in readers)
        kept = (tuple(names), sidecar) if names else None
        far = FarChunks.joined([reader.far for reader in readers], np.diff(first).tolist())
        return cls(lengths, load, any(reader._weighted for reader in readers), all_trained, labels, kept, far)

    def _few_maps(self) -> MappedChunks | None:
        """Return what limits the number of chunks that are mapped at once, or None if all of them can be."""
        chunks, limit = len(self._open), MOST_MAPS // (2 if self.kept else 1)
        return MappedChunks(np.ones(chunks, np.int64), limit) if chunks > limit else None

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def batch(self, rows: Ints, policy: PaddingPolicy) -> Batch:
        """Return a batch of at least one row. A negative row number means a padding row.

        Returns:
            int64 [rows, width] `input_ids`, `attention_mask` and `labels` (not shifted, -100 where not trained). For
            packed sequences also int64 [rows, width] `position_ids`, int32 `cu_seqlens` over the flattened batch
            (each run of padding counts as a document), and int `max_seqlen`. If any chunk has weights, also float32
            [rows, width] `loss_weights`, 0 where `labels` are -100. Pairs have all of these twice, prefixed with
            `chosen_` and `rejected_`, each side with its own width. Labelled rows also have `label`, bool [rows].
            Prompts have no labels. Each kept column is a list of [rows] Python values; for packed sequences, of a list
            per row with one value per document.

        Raises:
            StoreError: bytes of the batch are missing or damaged.
        """
        return next(self.batches([rows], policy))

    def batches(self, rows: Sequence[Ints], policy: PaddingPolicy) -> Iterator[Batch]:
        """Yield one batch for each array of rows.

        Raises:
            StoreError: bytes of a batch are missing or damaged; earlier batches were yielded.
        """
        try:
            batch_of, _in_use = self._prepared(rows, policy)
        except StoreError:
            if len(rows) == 1:
                raise
            for batch_rows in rows:
                yield self.batch(batch_rows, policy)
            return
        yield from map(batch_of, range(len(rows)))

    def _prepared(self, rows: Sequence[Ints], policy: PaddingPolicy) -> tuple[Callable[[int], Batch], Use | None]:
        """Check all bytes that some batches need. Return the function that builds each batch, and what keeps the chunks
        mapped as long as it is called."""
        bounds, joined = offsets_of(np.array([len(batch_rows) for batch_rows in rows])), np.concatenate(rows)
        real = joined >= 0
        real = None if real.all() else real
        chunks, local, use = self._places(joined if real is None else np.where(real, joined, max(int(joined.max()), 0)))
        if self._unchecked:
            self._touch(chunks, local)
        batches_of = {
            f"{side}_" if side else "": SequenceBatches(columns, chunks, local, real, bounds, policy, self._labels)
            for side, columns in self._sides.items()
        }
        label = None
        if self._label is not None:
            label = self._label.at(self._label.places(chunks, local)).view(bool)
            label = label if real is None else label & real

        kept = self.kept.values(chunks, local, real, policy.packed) if self.kept else {}
        if label is None and not kept and "" in batches_of:
            return batches_of[""].batch, use

        def batch(number: int) -> Batch:
            columns: Batch = {
                f"{side}{name}": value
                for side, batches in batches_of.items()
                for name, value in batches.batch(number).items()
            }
            if label is not None:
                columns["label"] = label[bounds[number] : bounds[number + 1]].copy()
            for name, values in kept.items():
                columns[name] = values[bounds[number] : bounds[number + 1]]
            return columns

        return batch, use

    def chunks_of(self, rows: Ints) -> Ints:
        """Return the chunk of each row, int64 [rows]."""
        return self._first_row.searchsorted(rows, "right") - 1

    def _places(self, rows: Ints) -> tuple[Ints, Ints, Use | None]:
        """Open the chunks of rows. Return each row's chunk and its index within the chunk, int64 [rows] each, and what
        keeps the chunks open."""
        chunks, use = self.chunks_of(rows), None
        if self._mapped is not None:
            with self._opening:
                use = self._mapped.use(chunks)
                self._open_missing(use.chunks)
                for chunk in self._mapped.surplus(self._open):
                    self._release(chunk)
        elif not self._open[chunks].all():
            with self._opening:  # threads can share a reader
                self._open_missing(np.unique(np.append(chunks, self._empty)))
        return chunks, rows - self._first_row[chunks], use

    def _open_missing(self, chunks: Ints) -> None:
        missing = chunks[~self._open[chunks]]
        if self.far is not None and len(missing) > 1:
            self.far.download(missing)
        for chunk in missing.tolist():
            self._hold(chunk, self._load(chunk))

    def _touch(self, chunks: Ints, local: Ints) -> None:
        for number in sorted({*chunks.tolist()} & {*self._unchecked}):
            chunk, rows = self._unchecked[number], local[chunks == number]
            for columns in self._sides.values():
                columns.touch(chunk, number, rows)
            if all(columns.checked(chunk, number) for columns in self._sides.values()):
                self._unchecked.pop(number, None)

    def _hold(self, chunk: int, opened: Chunk) -> None:
        table = opened.table
        if table.num_rows != self._first_row[chunk + 1] - self._first_row[chunk]:
            expected = self._first_row[chunk + 1] - self._first_row[chunk]
            raise StoreError(
                f"chunk {chunk} has {table.num_rows} rows, but its manifest lists {expected}; build the dataset again"
            )
        for side, columns in sides(table).items():
            if side not in self._sides:
                dtype = columns[INPUT_IDS].type.value_type.to_pandas_dtype()
                self._sides[side] = SequenceColumns(dtype, self._all_trained, self._weighted and self._labels)
            self._sides[side].hold(chunk, columns)
        if not all(self._sides[side].checked(opened, chunk) for side in sides(table)):
            self._unchecked[chunk] = opened
        if self.kept:
            self.kept.hold(chunk, table[ROWS])
        if LABEL in table.column_names:
            self._label = self._label or FlatValues(np.uint8, len(self._open))
            self._label.hold(chunk, table[LABEL].to_numpy().view(np.uint8))
        self._open[chunk] = True
        if self._mapped is not None:
            self._mapped.add(chunk)

    def _release(self, chunk: int) -> None:
        self._open[chunk] = False
        self._unchecked.pop(chunk, None)
        for held in (*self._sides.values(), self._label, self.kept):
            if held is not None:
                held.release(chunk)
