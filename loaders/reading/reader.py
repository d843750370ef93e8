"""Reads batches of sequences from chunks.

Rows are located for many batches at once. Each batch is then one vectorized gather per column, for any mix of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.reading.batch import IGNORED, Batch, Flags, KeptColumns, PaddingPolicy, Rectangles
from tokenloom.loaders.reading.batch import Load as LoadSidecar
from tokenloom.loaders.reading.documents import Documents
from tokenloom.loaders.reading.images import SequenceImages
from tokenloom.loaders.reading.memory import FarChunks, FlatValues, MappedChunks, RaggedLists, Use, flat_values
from tokenloom.resources.tables.ragged import SIDES, Ints, offsets_of, sides, sum_rows
from tokenloom.resources.tables.sequence_schema import (
    DOCUMENT_LENGTHS,
    INPUT_IDS,
    LABEL,
    PADDING,
    PER_TOKEN,
    POSITIONS,
    REACH,
    ROWS,
    TOKEN_COLUMNS,
    TRAINED,
    WEIGHTS,
)

DEFERRED = tuple(f"{side}{name}" for side in ("", *(f"{side}_" for side in SIDES)) for name in TOKEN_COLUMNS)
"""Columns whose values are checked when a batch first reads them: nearly all bytes of a chunk."""


class Chunk(Protocol):
    """A chunk of sequences. Flat values that are not `checked` are passed to `touch` before they are read."""

    @property
    def table(self) -> pa.Table: ...

    def checked(self, values: Sequence[npt.NDArray[Any]]) -> bool: ...

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None: ...


@dataclass(frozen=True)
class InMemory:
    """A chunk in memory, which needs no check."""

    table: pa.Table

    def checked(self, values: Sequence[npt.NDArray[Any]]) -> bool:
        """Return True."""
        return True

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None:
        """Do nothing."""


_IGNORED = np.array(IGNORED)


class SequenceColumns:
    """The sequences of all chunks; for pairs, of one side.

    `ids` are unsigned integers and `trained` is uint8. `documents` are the int32 lengths of the documents in each
    sequence. `weights` is float32, or None if no chunk has weights; in a chunk without weights, `trained` is used.

    Args:
        dtype: dtype of the ids.
        all_trained: bool [chunks], whether `trained` is known to be all 1 and need not be read.
        weighted: whether any chunk has weights.
        of_tokens: names of float32 columns with a number per token; chunks without one have 0.

    Attributes:
        of_documents: int32 columns with a number per document: the position and reach of those of trees, or their
            padding. All chunks have the same ones.
    """

    def __init__(self, dtype: npt.DTypeLike, all_trained: Flags, weighted: bool, of_tokens: Sequence[str] = ()):
        chunks = len(all_trained)
        self.ids, self.documents = RaggedLists(dtype, chunks), RaggedLists(np.int32, chunks)
        self.trained, self.all_trained = FlatValues(np.uint8, chunks), all_trained
        self.weights = FlatValues(np.float32, chunks) if weighted else None
        self.values = {name: FlatValues(np.float32, chunks) for name in of_tokens}
        self.of_documents = dict[str, FlatValues]()
        self._read: dict[int, list[npt.NDArray[Any]]] = {}  # the flat values of each chunk that batches read

    def hold(self, chunk: int, table: pa.Table) -> None:
        """Register a chunk's table and keep it alive.

        Raises:
            StoreError: the columns differ in their number of tokens.
        """
        self.ids.hold(chunk, table[INPUT_IDS])
        self.documents.hold(chunk, table[DOCUMENT_LENGTHS])
        for name in {POSITIONS, REACH, PADDING} & {*table.column_names}:
            values = self.of_documents.setdefault(name, FlatValues(np.int32, len(self.all_trained)))
            values.hold(chunk, flat_values(table[name]))
            if len(values.held(chunk)) != len(self.documents.values.held(chunk)):
                raise StoreError("rows have different numbers of documents: an object is damaged; `tokenloom verify`")
        self.trained.hold(chunk, flat_values(table[TRAINED]))
        names = [INPUT_IDS, TRAINED]
        if self.weights is not None and WEIGHTS in table.column_names:
            names.append(WEIGHTS)
        if self.weights is not None:
            self.weights.hold(chunk, flat_values(table[names[-1]]))
        elif self.all_trained[chunk]:
            names.remove(TRAINED)
        for name, values in self.values.items():
            if (column := f"{PER_TOKEN}{name}") in table.column_names:
                names.append(column)
                values.hold(chunk, flat_values(table[column]))
            else:  # of another dataset of a mixture
                values.hold(chunk, np.zeros(len(self.trained.held(chunk)), np.float32))
        self._read[chunk] = [flat_values(table[name]) for name in names]
        if len({len(values) for values in (self.trained.held(chunk), *self._read[chunk])}) > 1:
            raise StoreError(
                "rows have different numbers of tokens and flags: an object is damaged; `tokenloom verify` names it"
            )

    def release(self, chunk: int) -> None:
        """Drop a chunk's table, if it is held."""
        for column in (self.ids, self.documents, self.trained, self.weights, *self.values.values()):
            if column is not None:
                column.release(chunk)
        for column in self.of_documents.values():
            column.release(chunk)
        self._read.pop(chunk, None)

    def checked(self, chunk: Chunk, number: int) -> bool:
        """Return whether all flat values that batches read from a chunk are checked."""
        return chunk.checked(self._read[number])

    def touch(self, chunk: Chunk, number: int, rows: Ints) -> None:
        """Check the flat values of some rows of a chunk."""
        begins, lengths = self.ids.rows(np.full(len(rows), number), rows)
        chunk.touch(self._read[number], begins, begins + lengths)


class SequenceBatches:
    """Several batches of one side.

    Args:
        columns: the columns of that side.
        chunks, local: int64 [rows], the chunk of each row of all batches, and its index within the chunk.
        real: bool [rows], False for padding rows; None: all rows are real.
        bounds: int64 [batches + 1], where each batch begins and ends; no batch is empty.
        policy: how the rows are padded.
        labels: whether the batches have labels.
    """

    def __init__(
        self,
        columns: SequenceColumns,
        chunks: Ints,
        local: Ints,
        real: Flags | None,
        bounds: Ints,
        policy: PaddingPolicy,
        labels: bool = True,
    ):
        begins, lengths = columns.ids.rows(chunks, local)
        if real is not None:
            lengths *= real
        firsts, ids = bounds[:-1], columns.ids.values
        widths = policy.width(np.maximum.reduceat(lengths, firsts))
        padding = columns.of_documents.get(PADDING)
        if padding is not None and not policy.packed:  # of the one document of each row: the row is padded instead
            first, counts = columns.documents.rows(chunks, local)
            counts = counts if real is None else counts * real
            blank = padding.lists(padding.places(chunks, first), counts)
            lengths = np.maximum(lengths - sum_rows(blank, offsets_of(counts)), 0)
        self._rows = Rectangles(ids, chunks, begins, lengths, bounds, widths, policy.side == "left")
        self._ids, self._trained = self._rows.places(ids), self._rows.places(columns.trained)
        self._all_trained = np.logical_and.reduceat(columns.all_trained[chunks], firsts).tolist()
        self._weights = None if columns.weights is None else self._rows.places(columns.weights)
        self._values = {name: self._rows.places(values) for name, values in columns.values.items()}
        self._documents = None
        if policy.packed:
            self._documents = Documents(columns.documents, chunks, local, real, self._rows, columns.of_documents)
        self._columns, self._pad, self._labels = columns, np.array(policy.pad_token_id, ids.dtype), labels

    def batch(self, number: int) -> Batch:
        """Return the arrays of a batch, none of which shares memory with another."""
        columns, rows = self._columns, self._rows
        ids, in_row = rows.take(number, columns.ids.values, self._ids), rows.own(number)
        own = in_row if self._documents is None else self._documents.without_padding(number, in_row, ids.shape)
        trained = own
        if not self._all_trained[number]:
            trained = rows.take(number, columns.trained, self._trained).view(bool)
            trained = trained if own is None else np.logical_and(trained, own, out=trained)
        blank = None if own is None else ~own
        if blank is not None:
            np.copyto(ids, self._pad, where=blank)
        input_ids = ids.astype(np.int64)
        attention_mask = _ones(ids.shape).copy() if own is None else own.astype(np.int64)
        labels = input_ids.copy() if trained is None else np.where(trained, input_ids, _IGNORED)
        batch: Batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if self._documents is not None:
            batch["position_ids"] = self._documents.position_ids(number, in_row, ids.shape)
            labels.reshape(-1)[self._documents.starts(number)] = _IGNORED  # a document's first token is not predicted
            if REACH in columns.of_documents:
                batch["attention_ends"] = self._documents.attention_ends(number, blank, ids.shape)
            else:
                batch["cu_seqlens"] = self._documents.cu_seqlens(number)
                batch["max_seqlen"] = self._documents.max_seqlen(number)
            if (unpadded := self._documents.cu_seqlens_unpadded(number)) is not None:
                batch["cu_seqlens_unpadded"] = unpadded
        if columns.weights is not None and self._weights is not None:
            loss_weights = batch["loss_weights"] = rows.take(number, columns.weights, self._weights)
            if trained is not None:
                bits = loss_weights.view(np.uint32)
                np.multiply(bits, trained, out=bits)  # without a branch per token, also where a weight is NaN
            if self._documents is not None:
                loss_weights.reshape(-1)[self._documents.starts(number)] = 0.0
        for name, places in self._values.items():
            values = batch[name] = rows.take(number, columns.values[name], places)
            if blank is not None:
                np.copyto(values, np.float32(0), where=blank)
        if not self._labels:
            del batch["labels"]
        return batch


@lru_cache(maxsize=4)
def _ones(shape: tuple[int, ...]) -> Ints:
    """Return cached ones, rows of which share memory: a copy is faster than `np.ones`."""
    return np.broadcast_to(np.ones(shape[-1], np.int64), shape)


def per_token(tables: Sequence[pa.Table]) -> tuple[str, ...]:
    """Return the names of the columns with a number per token that any table has."""
    names = dict.fromkeys(name for table in tables for name in table.column_names if name.startswith(PER_TOKEN))
    return tuple(name.removeprefix(PER_TOKEN) for name in names)


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
        images: the images of rows, if they can have any.
        of_tokens: names of columns with a number per token.
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
        images: SequenceImages | None = None,
        of_tokens: Sequence[str] = (),
    ):
        self._first_row = offsets_of(np.asarray(lengths, np.int64))
        self._load, self._weighted = load, weighted
        self._open = np.zeros(len(self._first_row) - 1, bool)
        self._all_trained = np.broadcast_to(all_trained, self._open.shape)
        self._opening = Lock()
        self._unchecked: dict[int, Chunk] = {}
        self._sides: dict[str, SequenceColumns] = {}
        self._label: FlatValues | None = None
        self._labels, self.of_tokens = labels, tuple(of_tokens)
        self.kept = KeptColumns(*kept, len(self._open)) if kept else None
        self.far, self.images = far, images
        self._mapped = MappedChunks(far.sizes, far.limit // 2) if far else None
        most = MOST_MAPS // (2 if kept else 1)  # a sidecar is another file
        if not far and len(self._open) > most:
            self._mapped = MappedChunks(np.ones(len(self._open), np.int64), most)
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
        of_tokens = per_token(tables)
        return cls(rows, load, weighted, labels=labels, kept=kept if keep_columns else None, of_tokens=of_tokens)

    @classmethod
    def joined(cls, readers: Sequence[SequenceReader]) -> SequenceReader:
        """Return one reader over the chunks of several readers, in their order."""
        first = offsets_of(np.array([len(reader._open) for reader in readers]))
        lengths = np.concatenate([np.diff(reader._first_row) for reader in readers])
        all_trained = np.concatenate([reader._all_trained for reader in readers])

        def place(chunk: int) -> tuple[SequenceReader, int]:
            number = int(np.searchsorted(first, chunk, side="right")) - 1
            return readers[number], chunk - int(first[number])

        def load(chunk: int) -> Chunk:
            reader, local = place(chunk)
            return reader._load(local)

        def sidecar(chunk: int) -> pa.Table | None:
            reader, local = place(chunk)
            return reader.kept.sidecar(local) if reader.kept else None

        names = dict.fromkeys(name for reader in readers if reader.kept for name in reader.kept.names)
        labels = all(reader._labels for reader in readers)
        kept = (tuple(names), sidecar) if names else None
        far = FarChunks.joined([reader.far for reader in readers], np.diff(first).tolist())
        shown = next((reader.images for reader in readers if reader.images), None)
        images = None
        if shown is not None:

            def read(chunk: int, digest: str) -> bytes:
                reader, local = place(chunk)
                return (reader.images or shown).read(local, digest)

            images = SequenceImages(shown.source, read, shown.cache)
        weighted = any(reader._weighted for reader in readers)
        of_tokens = tuple(dict.fromkeys(name for reader in readers for name in reader.of_tokens))
        return cls(lengths, load, weighted, all_trained, labels, kept, far, images, of_tokens)

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def batch(self, rows: Ints, policy: PaddingPolicy, images: bool = True) -> Batch:
        """Return a batch of at least one row. A negative row number means a padding row.

        Args:
            images: whether to add what is made of images.

        Returns:
            int64 [rows, width] `input_ids`, `attention_mask` and `labels` (not shifted, -100 where not trained). For
            packed sequences also int64 [rows, width] `position_ids`, int32 `cu_seqlens` over the flattened batch (each
            run of padding counts as a document), and int `max_seqlen`; with `length.document_multiple` also int32
            `cu_seqlens_unpadded`, the cumulated lengths without padding; for trees, instead of the last two, int32
            [rows, width] `attention_ends`: the place in its row of the first token after each that does not see it. If
            any chunk has weights, also float32 [rows, width] `loss_weights`, 0 where `labels` are -100. Columns of
            `dataset.token_columns` are float32 [rows, width], 0 in padding. Pairs have all of these twice, prefixed
            with `chosen_` and `rejected_`, each side with its own width. Labelled rows also have `label`, bool [rows].
            Prompts have no labels. Each kept column is a list of [rows] Python values; for packed sequences, of a list
            per row with one value per document. Rows that can have images add what their model takes, such as
            `pixel_values` (if the batch has an image) and `mm_token_type_ids`; if the model's positions have three
            dimensions, `position_ids` of packed rows are [4, rows, width].

        Raises:
            StoreError: bytes of the batch are missing or damaged.
        """
        return next(self.batches([rows], policy, images))

    def batches(self, rows: Sequence[Ints], policy: PaddingPolicy, images: bool = True) -> Iterator[Batch]:
        """Yield one batch for each array of rows.

        Raises:
            StoreError: bytes of a batch are missing or damaged; earlier batches were yielded.
        """
        try:
            batch_of, _in_use = self._prepared(rows, policy, images)
        except StoreError:
            # one by one: batches before the damaged one are still given
            if len(rows) == 1:
                raise
            for batch_rows in rows:
                yield self.batch(batch_rows, policy, images)
            return
        yield from map(batch_of, range(len(rows)))

    def _prepared(
        self, rows: Sequence[Ints], policy: PaddingPolicy, images: bool
    ) -> tuple[Callable[[int], Batch], Use | None]:
        """Check all bytes that some batches need. Return a function that builds each, and what keeps their chunks
        mapped; hold it as long as the function is called."""
        bounds, all_rows = offsets_of(np.array([len(batch_rows) for batch_rows in rows])), np.concatenate(rows)
        real = all_rows >= 0
        real = None if real.all() else real
        # a padding row takes the place of a real one, so that it opens no chunk, and has length 0
        readable = all_rows if real is None else np.where(real, all_rows, max(int(all_rows.max()), 0))
        chunks, local, use = self._places(readable)
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
        shown = self.images if images else None
        if label is None and not kept and shown is None and "" in batches_of:
            return batches_of[""].batch, use

        def batch(number: int) -> Batch:
            columns: Batch = {
                f"{side}{name}": value
                for side, batches in batches_of.items()
                for name, value in batches.batch(number).items()
            }
            if label is not None:
                columns["label"] = label[bounds[number] : bounds[number + 1]].copy()
            rows_of = slice(bounds[number], bounds[number + 1])
            for name, values in kept.items():
                columns[name] = values[rows_of]
            if shown is not None:
                shown.add_to(columns, chunks[rows_of], local[rows_of], None if real is None else real[rows_of])
            return columns

        return batch, use

    def image_files(self, rows: Ints) -> list[list[bytes]]:
        """Return the image files of each row."""
        chunks, local, _in_use = self._places(rows)
        images, places = self.images, zip(chunks.tolist(), local.tolist(), strict=True)
        if images is None:
            return [[] for _ in places]
        return [[images.read(chunk, digest) for digest in images.digests(chunk, index)] for chunk, index in places]

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
                weighted = self._weighted and self._labels
                self._sides[side] = SequenceColumns(dtype, self._all_trained, weighted, self.of_tokens)
            self._sides[side].hold(chunk, columns)
        # once all of a chunk's bytes are checked, batches skip the search for what to check
        if not all(self._sides[side].checked(opened, chunk) for side in sides(table)):
            self._unchecked[chunk] = opened
        if self.kept:
            self.kept.hold(chunk, table[ROWS])
        if self.images:
            self.images.hold(chunk, table)
        if LABEL in table.column_names:
            self._label = self._label or FlatValues(np.uint8, len(self._open))
            self._label.hold(chunk, table[LABEL].to_numpy().view(np.uint8))
        self._open[chunk] = True
        if self._mapped is not None:
            self._mapped.add(chunk)

    def _release(self, chunk: int) -> None:
        self._open[chunk] = False
        self._unchecked.pop(chunk, None)
        for held in (*self._sides.values(), self._label, self.kept, self.images):
            if held is not None:
                held.release(chunk)
