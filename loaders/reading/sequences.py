"""The columns of sequences in all chunks, and the arrays that batches of them are."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.collation.batch import IGNORED, Batch, PaddingPolicy
from tokenloom.loaders.reading.address_space import FlatValues, RaggedLists, flat_values
from tokenloom.loaders.reading.chunk import Chunk
from tokenloom.loaders.reading.documents import Documents
from tokenloom.loaders.reading.rectangles import Flags, Rectangles
from tokenloom.resources.tables.ragged import Ints

_IGNORED = np.array(IGNORED)


class SequenceColumns:
    """The sequences of all chunks; of one side, where rows are pairs.

    `ids` are unsigned, `trained` uint8, `documents` int32, the lengths of the documents in each sequence. `weights` is
    float32, or None where no chunk has any; a chunk without weights has `trained` in their place.

    Args:
        dtype: of the ids.
        all_trained: bool [chunks], where `trained` is known to be 1 throughout, and not read.
        weighted: whether any chunk has weights.
    """

    def __init__(self, dtype: npt.DTypeLike, all_trained: Flags, weighted: bool):
        chunks = len(all_trained)
        self.ids, self.documents = RaggedLists(dtype, chunks), RaggedLists(np.int32, chunks)
        self.trained, self.all_trained = FlatValues(np.uint8, chunks), all_trained
        self.weights = FlatValues(np.float32, chunks) if weighted else None

    def hold(self, chunk: int, table: pa.Table) -> None:
        """Take a chunk's table.

        Raises:
            StoreError: its columns do not fit together.
        """
        self.ids.hold(chunk, table["input_ids"])
        self.documents.hold(chunk, table["document_lengths"])
        self.trained.hold(chunk, flat_values(table["trained"]))
        flat = [self.ids.values, self.trained]
        if self.weights is not None:
            self.weights.hold(chunk, flat_values(table["weights" if "weights" in table.column_names else "trained"]))
            flat.append(self.weights)
        if len({len(column.held(chunk)) for column in flat}) > 1:
            raise StoreError(
                "rows have not as many flags as tokens: the object is damaged; `tokenloom verify` names it"
            )

    def touch(self, chunk: Chunk, number: int, rows: Ints) -> None:
        """Have the flat values of some rows checked."""
        begins, lengths = self.ids.rows(np.full(len(rows), number), rows)
        flat = [self.ids.values]
        if self.weights is not None or not self.all_trained[number]:
            flat.append(self.trained)
        if self.weights is not None and "weights" in chunk.table.column_names:
            flat.append(self.weights)
        chunk.touch([column.held(number) for column in flat], begins, begins + lengths)


class SequenceBatches:
    """Some batches of one side.

    Args:
        columns: of that side.
        chunks, local: int64 [rows], where the rows of all batches stand.
        real: bool [rows], which rows are not of padding; None: all.
        bounds: int64 [batches + 1]; rows between two of them make a batch, and none is without rows.
    """

    def __init__(
        self,
        columns: SequenceColumns,
        chunks: Ints,
        local: Ints,
        real: Flags | None,
        bounds: Ints,
        policy: PaddingPolicy,
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
        self._columns, self._pad = columns, np.array(policy.pad_token_id, ids.dtype)

    def batch(self, number: int) -> Batch:
        """The arrays of a batch; none shares memory with another."""
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
            position_ids = self._documents.position_ids(number, *ids.shape)
            if own is not None:
                position_ids *= own
            labels.reshape(-1)[self._documents.starts(number)] = IGNORED  # no document's first token is predicted
            batch["position_ids"] = position_ids
            batch["cu_seqlens"] = self._documents.cu_seqlens(number, ids.size)
            batch["max_seqlen"] = self._documents.max_seqlen(number)
        if columns.weights is not None and self._weights is not None:
            loss_weights = rows.take(number, columns.weights, self._weights)
            loss_weights[labels == IGNORED] = 0.0
            batch["loss_weights"] = loss_weights
        return batch


@lru_cache(maxsize=4)
def _ones(shape: tuple[int, ...]) -> Ints:
    """Kept, for a copy takes less time than to write a number anew."""
    return np.ones(shape, np.int64)
