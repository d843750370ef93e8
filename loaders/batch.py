"""Makes padded batches of sequences: one vectorized gather a column, whatever chunks the rows come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.memory import Flags, FlatValues, RaggedLists, Rectangle, flat_values
from tokenloom.resources.ragged import Ints, offsets_of, ranges
from tokenloom.resources.sides import SIDES, sides

IGNORED = -100
"""The label of what is not trained."""

Padding = Literal["max_length", "longest"] | int
Batch = dict[str, npt.NDArray[np.generic] | int]


@dataclass(frozen=True)
class PaddingPolicy:
    """How rows of a batch come to one length.

    Args:
        pad_token_id: fills input_ids where attention_mask is 0.
        padding: `max_length`, `longest` (of the batch), or a multiple.
        side: which side is filled.
        max_length: the longest sequence.
        packed: whether sequences hold several documents, kept apart by position_ids and cu_seqlens.
    """

    pad_token_id: int
    padding: Padding
    side: Literal["left", "right"]
    max_length: int
    packed: bool

    def __post_init__(self) -> None:
        whole = isinstance(self.padding, int) and not isinstance(self.padding, bool) and self.padding > 0
        if not whole and self.padding not in ("max_length", "longest"):
            raise ValueError(f"padding {self.padding!r} is not 'max_length', 'longest' or a multiple of at least 1")
        if self.side not in ("left", "right"):
            raise ValueError(f"padding side {self.side!r} is not 'left' or 'right'")

    def width(self, longest: int) -> int:
        """The length that rows are padded to whose longest has so many tokens."""
        if self.padding == "max_length":
            return self.max_length
        longest = max(longest, 1)
        return longest if self.padding == "longest" else -(-longest // int(self.padding)) * int(self.padding)


DEFERRED = tuple(
    f"{side}{name}" for side in ("", *(f"{side}_" for side in SIDES)) for name in ("input_ids", "trained", "weights")
)
"""Columns whose values are checked when a batch touches them: nearly all bytes of a chunk."""


class Chunk(Protocol):
    """A chunk of sequences. Until `unchecked` is 0, what is read of its flat values is handed to `touch` before."""

    @property
    def table(self) -> pa.Table: ...

    @property
    def unchecked(self) -> int: ...

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None: ...


@dataclass(frozen=True)
class InMemory:
    """A chunk that needs no check."""

    table: pa.Table
    unchecked: int = 0

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None:
        """Nothing is to be checked."""


class SequenceColumns:
    """The sequences of all chunks; of one side, where rows are pairs.

    `ids` are unsigned, `trained` uint8, `documents` int32, the lengths of the documents in each sequence. `weights` is
    float32, or None where no chunk has any; a chunk without weights has `trained` in their place.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int, weighted: bool):
        self.ids, self.documents = RaggedLists(dtype, chunks), RaggedLists(np.int32, chunks)
        self.trained = FlatValues(np.uint8, chunks)
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
        flat = [self.ids.values, self.trained, *([self.weights] if "weights" in chunk.table.column_names else [])]
        chunk.touch([column.held(number) for column in flat if column], begins, begins + lengths)


class SequenceReader:
    """Reads batches from chunks; row numbers count through all chunks. A chunk is opened when first read.

    Args:
        lengths: rows of each chunk.
        load: opens a chunk.
        weighted: whether any chunk has weights.
    """

    def __init__(self, lengths: npt.ArrayLike, load: Callable[[int], Chunk], weighted: bool):
        self._first_row = offsets_of(np.asarray(lengths, np.int64))
        self._load, self._weighted = load, weighted
        self._open = np.zeros(len(self._first_row) - 1, bool)
        self._all_open = False
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

        def load(chunk: int) -> Chunk:
            number = int(np.searchsorted(first, chunk, side="right")) - 1
            return readers[number]._load(chunk - int(first[number]))

        return cls(lengths, load, any(reader._weighted for reader in readers))

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def lengths(self, rows: Ints) -> Ints:
        """int64 [rows]: tokens of each row; of the longer side, where rows are pairs."""
        chunks, local = self._places(rows)
        return np.max([side.ids.rows(chunks, local)[1] for side in self._sides.values()], axis=0)

    def batch(self, rows: Ints, policy: PaddingPolicy) -> Batch:
        """A batch of rows; a negative row number stands for a row of padding.

        Returns:
            int64 [rows, width] `input_ids`, `attention_mask` and `labels` (not shifted, -100 where not trained); for
            packed sequences also int64 [rows, width] `position_ids`, int32 `cu_seqlens` over the flattened batch
            (runs of padding count as documents), and the int `max_seqlen`. Where any chunk has weights, float32
            [rows, width] `loss_weights`, 0 where `labels` are -100. Pairs have all that under `chosen_` and
            `rejected_`, each with a width of its own; labelled rows also have `label`, bool [rows].

        Raises:
            StoreError: bytes that are read are missing or damaged.
        """
        real = rows >= 0 if min(rows.tolist(), default=0) < 0 else None
        chunks, local = self._places(rows if real is None else np.where(real, rows, 0))
        if self._unchecked:
            self._touch(chunks, local)
        batch: Batch = {}
        for side, columns in self._sides.items():
            made = _padded(columns, chunks, local, real, policy)
            batch |= {f"{side}_{name}": value for name, value in made.items()} if side else made
        if self._label is not None:
            label = self._label.at(chunks, local).view(bool)
            batch["label"] = label if real is None else label & real
        return batch

    def _places(self, rows: Ints) -> tuple[Ints, Ints]:
        """int64 [rows]: the chunk of each row, and the row within it; opens chunks."""
        chunks = self._first_row.searchsorted(rows, "right") - 1
        if not self._all_open and not self._open[chunks].all():
            with self._opening:  # threads may share a reader
                empty = np.flatnonzero((np.diff(self._first_row) == 0) & ~self._open)  # never read, but to be whole
                for chunk in np.unique(np.append(chunks[~self._open[chunks]], empty)).tolist():
                    self._hold(chunk, self._load(chunk))
        return chunks, rows - self._first_row[chunks]

    def _touch(self, chunks: Ints, local: Ints) -> None:
        for number, chunk in list(self._unchecked.items()):
            rows = local[chunks == number]
            if len(rows):
                for columns in self._sides.values():
                    columns.touch(chunk, number, rows)
                if not chunk.unchecked:
                    self._unchecked.pop(number, None)

    def _hold(self, chunk: int, opened: Chunk) -> None:
        count, table = len(self._open), opened.table
        if table.num_rows != self._first_row[chunk + 1] - self._first_row[chunk]:
            raise StoreError(f"chunk {chunk} has {table.num_rows} rows, not as many as its manifest says; build again")
        if opened.unchecked:
            self._unchecked[chunk] = opened
        for side, columns in sides(table).items():
            if side not in self._sides:
                dtype = columns["input_ids"].type.value_type.to_pandas_dtype()
                self._sides[side] = SequenceColumns(dtype, count, self._weighted)
            self._sides[side].hold(chunk, columns)
        if "label" in table.column_names:
            self._label = self._label or FlatValues(np.uint8, count)
            self._label.hold(chunk, table["label"].to_numpy().view(np.uint8))
        self._open[chunk] = True
        self._all_open = bool(self._open.all())


def _padded(columns: SequenceColumns, chunks: Ints, local: Ints, real: Flags | None, policy: PaddingPolicy) -> Batch:
    """The batch of one side.

    Args:
        chunks, local: int64 [rows], where each row stands.
        real: bool [rows], which rows are not of padding; None: all.
    """
    begins, lengths = columns.ids.rows(chunks, local)
    if real is not None:
        lengths *= real
    left, rows = policy.side == "left", len(lengths)
    found = Rectangle(columns.ids.values, chunks, begins, lengths, left)
    width = policy.width(found.width)
    part = np.s_[:, width - found.width :] if left else np.s_[:, : found.width]
    whole = found.own is None and width == found.width
    made = np.empty((4 if policy.packed else 3, rows, width), np.int64)
    input_ids, attention_mask, labels = made[:3]
    ids, trained = found.take(columns.ids.values), found.take(columns.trained).view(bool)
    attention_mask.fill(whole)
    if whole:
        input_ids[:] = ids
        labels[:] = input_ids if trained.all() else np.where(trained, input_ids, IGNORED)
    else:
        own = np.True_ if found.own is None else found.own
        input_ids.fill(policy.pad_token_id)
        labels.fill(IGNORED)
        np.copyto(input_ids[part], ids, where=own)
        np.copyto(attention_mask[part], own)
        np.copyto(labels[part], ids, where=trained & own)
    batch: Batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
    if policy.packed:
        counts, sizes = _documents(columns.documents, chunks, local, real)
        starts = sizes.cumsum() - sizes
        blank_starts = blank = np.zeros(0, np.int64)
        if not whole:
            blank, rows_begin = width - lengths, np.arange(0, made[0].size, width)
            starts += np.repeat(rows_begin + blank * left - np.append(starts, 0)[counts.cumsum() - counts], counts)
            blank_starts = rows_begin + lengths * (not left)
        labels.reshape(-1)[starts] = IGNORED  # no document's first token is predicted
        batch |= _bounds(starts, sizes, blank_starts, blank, made[3])
    if columns.weights is not None:
        loss_weights = np.zeros((rows, width), np.float32)
        loss_weights[part] = found.take(columns.weights)
        loss_weights[labels == IGNORED] = 0.0
        batch["loss_weights"] = loss_weights
    return batch


def _documents(documents: RaggedLists, chunks: Ints, local: Ints, real: Flags | None) -> tuple[Ints, Ints]:
    """How many documents each row holds, and the lengths of all of them."""
    first, counts = documents.rows(chunks, local)
    if real is not None:
        counts *= real
    return counts, Rectangle(documents.values, chunks, first, counts, left=False).flat(documents.values)


def _bounds(starts: Ints, sizes: Ints, blank_starts: Ints, blank: Ints, position_ids: Ints) -> Batch:
    """Positions that begin anew in each document, 0 in padding, and the bounds of documents and runs of padding.

    Args:
        starts, sizes: of the documents in the flattened batch.
        blank_starts, blank: int64 [rows], of the runs of padding.
        position_ids: int64 [rows, width], to be filled.
    """
    padded = blank.nonzero()[0]
    begins, lengths, flat = starts, sizes, position_ids.reshape(-1)
    if len(padded):
        begins = np.concatenate([starts, blank_starts[padded]])
        order = np.argsort(begins, kind="stable")
        begins, lengths = begins[order], np.concatenate([sizes, blank[padded]])[order]
    within = np.repeat(begins.astype(np.int32), lengths)
    flat[:] = np.subtract(_counting(flat.size), within, out=within)
    if len(padded):
        flat[ranges(blank_starts[padded], blank[padded])] = 0
    bounds = np.empty(len(begins) + 1, np.int32)
    bounds[:-1], bounds[-1] = begins, flat.size
    return {"position_ids": position_ids, "cu_seqlens": bounds, "max_seqlen": int(lengths.max(initial=0))}


@lru_cache(maxsize=4)
def _counting(size: int) -> npt.NDArray[np.int32]:
    return np.arange(size, dtype=np.int32)
