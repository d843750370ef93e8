"""The columns of sequences in all chunks, and the batches built from them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.reading.address_space import FlatValues, RaggedLists, flat_values
from tokenloom.loaders.reading.batch import IGNORED, Batch, PaddingPolicy
from tokenloom.loaders.reading.chunk import Chunk
from tokenloom.loaders.reading.documents import Documents
from tokenloom.loaders.reading.rectangles import Flags, Rectangles
from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, INPUT_IDS, TRAINED, WEIGHTS

_IGNORED = np.array(IGNORED)


class SequenceColumns:
    """The sequences of all chunks; for pairs, of one side.

    `ids` are unsigned integers and `trained` is uint8. `documents` are the int32 lengths of the documents in each
    sequence. `weights` is float32, or None if no chunk has weights; in a chunk without weights, `trained` is used.

    Args:
        dtype: dtype of the ids.
        all_trained: bool [chunks], whether `trained` is known to be all 1 and need not be read.
        weighted: whether any chunk has weights.
    """

    def __init__(self, dtype: npt.DTypeLike, all_trained: Flags, weighted: bool):
        chunks = len(all_trained)
        self.ids, self.documents = RaggedLists(dtype, chunks), RaggedLists(np.int32, chunks)
        self.trained, self.all_trained = FlatValues(np.uint8, chunks), all_trained
        self.weights = FlatValues(np.float32, chunks) if weighted else None
        self._read: dict[int, list[npt.NDArray[Any]]] = {}  # the flat values of each chunk that batches read

    def hold(self, chunk: int, table: pa.Table) -> None:
        """Register a chunk's table and keep it alive.

        Raises:
            StoreError: the columns differ in their number of tokens.
        """
        self.ids.hold(chunk, table[INPUT_IDS])
        self.documents.hold(chunk, table[DOCUMENT_LENGTHS])
        self.trained.hold(chunk, flat_values(table[TRAINED]))
        names = [INPUT_IDS, TRAINED]
        if self.weights is not None and WEIGHTS in table.column_names:
            names.append(WEIGHTS)
        if self.weights is not None:
            self.weights.hold(chunk, flat_values(table[names[-1]]))
        elif self.all_trained[chunk]:
            names.remove(TRAINED)
        self._read[chunk] = [flat_values(table[name]) for name in names]
        if len({len(values) for values in (self.trained.held(chunk), *self._read[chunk])}) > 1:
            raise StoreError(
                "rows have different numbers of tokens and flags: an object is damaged; `tokenloom verify` names it"
            )

    def release(self, chunk: int) -> None:
        """Drop a chunk's table, if it is held."""
        for column in (self.ids, self.documents, self.trained, self.weights):
            if column is not None:
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
        self._rows = Rectangles(ids, chunks, begins, lengths, bounds, widths, policy.side == "left")
        self._ids, self._trained = self._rows.places(ids), self._rows.places(columns.trained)
        self._all_trained = np.logical_and.reduceat(columns.all_trained[chunks], firsts).tolist()
        self._weights = None if columns.weights is None else self._rows.places(columns.weights)
        self._documents = Documents(columns.documents, chunks, local, real, self._rows) if policy.packed else None
        self._columns, self._pad, self._labels = columns, np.array(policy.pad_token_id, ids.dtype), labels

    def batch(self, number: int) -> Batch:
        """Return the arrays of a batch, none of which shares memory with another."""
        columns, rows = self._columns, self._rows
        ids, own = rows.take(number, columns.ids.values, self._ids), rows.own(number)
        trained = own
        if not self._all_trained[number]:
            trained = rows.take(number, columns.trained, self._trained).view(bool)
            trained = trained if own is None else np.logical_and(trained, own, out=trained)
        if own is not None:
            np.copyto(ids, self._pad, where=~own)
        input_ids = ids.astype(np.int64)
        attention_mask = _ones(ids.shape).copy() if own is None else own.astype(np.int64)
        labels = input_ids.copy() if trained is None else np.where(trained, input_ids, _IGNORED)
        batch: Batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if self._documents is not None:
            batch["position_ids"] = self._documents.position_ids(number, own, ids.shape)
            labels.reshape(-1)[self._documents.starts(number)] = _IGNORED  # a document's first token is not predicted
            batch["cu_seqlens"] = self._documents.cu_seqlens(number)
            batch["max_seqlen"] = self._documents.max_seqlen(number)
        if columns.weights is not None and self._weights is not None:
            loss_weights = rows.take(number, columns.weights, self._weights)
            loss_weights[labels == IGNORED] = 0.0
            batch["loss_weights"] = loss_weights
        if not self._labels:
            del batch["labels"]
        return batch


@lru_cache(maxsize=4)
def _ones(shape: tuple[int, ...]) -> Ints:
    """Return cached ones, rows of which share memory: a copy is faster than `np.ones`."""
    return np.broadcast_to(np.ones(shape[-1], np.int64), shape)
