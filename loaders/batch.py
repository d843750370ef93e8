"""Makes padded batches of sequences with one vectorized gather a chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.resources.ragged import Ints, list_parts, offsets_of, ranges
from tokenloom.resources.sides import sides

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

    def width(self, lengths: Ints) -> int:
        """The length that rows of these lengths are padded to."""
        if self.padding == "max_length":
            return self.max_length
        longest = int(lengths.max(initial=1))
        return longest if self.padding == "longest" else -(-longest // int(self.padding)) * int(self.padding)


class SequenceColumns:
    """One sequence a row, as NumPy views of a memory map.

    `offsets` int64 [rows + 1] into `ids` (unsigned), `trained` (uint8) and `weights` (float32, or None where they equal
    `trained`); `document_offsets` int64 [rows + 1] into `documents` int32, the lengths of each row's documents.
    """

    def __init__(self, table: pa.Table):
        self.offsets, ids = list_parts(table["input_ids"])
        self.ids = ids.to_numpy()
        self.trained = list_parts(table["trained"])[1].to_numpy()
        self.weights = list_parts(table["weights"])[1].to_numpy() if "weights" in table.column_names else None
        self.document_offsets, documents = list_parts(table["document_lengths"])
        self.documents = documents.to_numpy()


class Chunk(Protocol):
    """One chunk of sequences.

    `sides` holds its columns under "", those of pairs under "chosen" and "rejected"; `label` is bool [rows] or None.
    While `unchecked` is true, rows are handed to `touch` before they are read.
    """

    rows: int
    unchecked: bool

    @property
    def sides(self) -> Mapping[str, SequenceColumns]: ...

    @property
    def label(self) -> npt.NDArray[np.bool_] | None: ...

    def touch(self, rows: Ints) -> None: ...


class SequenceChunk:
    """A chunk of sequences in memory."""

    unchecked = False

    def __init__(self, table: pa.Table):
        self.rows = table.num_rows
        self.sides: Mapping[str, SequenceColumns] = {
            side: SequenceColumns(columns) for side, columns in sides(table).items()
        }
        self.label = table["label"].to_numpy() if "label" in table.column_names else None

    def touch(self, rows: Ints) -> None:
        """Nothing: what is in memory is whole."""


class SequenceReader:
    """Reads batches from chunks; row numbers count through all chunks.

    Args:
        weighted: whether any chunk has weights; None: all chunks are looked at.
    """

    def __init__(self, chunks: Sequence[Chunk], weighted: bool | None = None):
        self._chunks = list(chunks)
        self._first_row = offsets_of(np.array([chunk.rows for chunk in self._chunks], np.int64))
        self._unchecked = {chunk for chunk in self._chunks if chunk.unchecked}
        if weighted is None:
            weighted = any(side.weights is not None for chunk in self._chunks for side in chunk.sides.values())
        self._weighted = weighted

    @cached_property
    def _sides(self) -> tuple[str, ...]:
        return tuple(self._chunks[0].sides) if self._chunks else ("",)

    @cached_property
    def _labelled(self) -> bool:
        return bool(self._chunks) and self._chunks[0].label is not None

    def __len__(self) -> int:
        return int(self._first_row[-1])

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
        places = self._places(rows)
        if self._unchecked:
            self._touch(places)
        batch: Batch = {}
        for side in self._sides:
            found = [(chunk.sides[side], members, local) for chunk, members, local in places]
            made = self._padded(found, len(rows), policy)
            batch |= {f"{side}_{name}": value for name, value in made.items()} if side else made
        if self._labelled:
            label = batch["label"] = np.zeros(len(rows), bool)
            for chunk, members, local in places:
                label[members] = False if chunk.label is None else chunk.label[local]
        return batch

    def _padded(self, places: Sequence[tuple[SequenceColumns, Ints, Ints]], rows: int, policy: PaddingPolicy) -> Batch:
        lengths = np.zeros(rows, np.int64)
        for columns, members, local in places:
            lengths[members] = columns.offsets[local + 1] - columns.offsets[local]
        width = policy.width(lengths)
        begins = np.arange(rows) * width + (width - lengths if policy.side == "left" else 0)
        input_ids = np.full((rows, width), policy.pad_token_id, np.int64)
        labels = np.full((rows, width), IGNORED, np.int64)
        attention_mask = np.zeros((rows, width), np.int64)
        loss_weights = np.zeros((rows, width) if self._weighted else 0, np.float32)
        documents: list[tuple[Ints, Ints]] = []
        for columns, members, local in places:
            source = ranges(columns.offsets[local], lengths[members])
            target = ranges(begins[members], lengths[members])
            ids = columns.ids[source].astype(np.int64)
            input_ids.reshape(-1)[target] = ids
            attention_mask.reshape(-1)[target] = 1
            labels.reshape(-1)[target] = np.where(columns.trained[source] != 0, ids, IGNORED)
            if self._weighted:
                weights = columns.trained if columns.weights is None else columns.weights
                loss_weights.reshape(-1)[target] = weights[source]
            if policy.packed:
                documents.append(_document_starts(columns, local, begins[members]))
        batch: Batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if policy.packed:
            batch |= _keep_apart(labels, documents, begins, lengths, width)
        if self._weighted:
            loss_weights[labels == IGNORED] = 0.0
            batch["loss_weights"] = loss_weights
        return batch

    def _touch(self, places: Sequence[tuple[Chunk, Ints, Ints]]) -> None:
        for chunk, _, local in places:
            if chunk.unchecked:
                chunk.touch(local)
            if not chunk.unchecked:
                self._unchecked.discard(chunk)

    def _places(self, rows: Ints) -> list[tuple[Chunk, Ints, Ints]]:
        """Each chunk met, which of `rows` it holds, and their places in it."""
        number = np.searchsorted(self._first_row, rows, side="right") - 1
        number[rows < 0] = -1
        places = []
        for found in np.unique(number[number >= 0]):
            members = np.flatnonzero(number == found)
            places.append((self._chunks[found], members, rows[members] - self._first_row[found]))
        return places


def _document_starts(columns: SequenceColumns, local: Ints, begins: Ints) -> tuple[Ints, Ints]:
    """Where in the flattened batch the documents of some rows begin, and their lengths."""
    counts = columns.document_offsets[local + 1] - columns.document_offsets[local]
    lengths = columns.documents[ranges(columns.document_offsets[local], counts)].astype(np.int64)
    offsets = offsets_of(counts)
    within = np.cumsum(lengths) - lengths
    of_row = np.repeat(begins - within[np.minimum(offsets[:-1], max(len(within) - 1, 0))], counts)
    return within + of_row, lengths


def _keep_apart(
    labels: npt.NDArray[np.int64], documents: Sequence[tuple[Ints, Ints]], begins: Ints, lengths: Ints, width: int
) -> Batch:
    """Positions that start anew in each document, and its bounds; no document's first token is predicted."""
    starts = np.concatenate([found[0] for found in documents]) if documents else np.zeros(0, np.int64)
    sizes = np.concatenate([found[1] for found in documents]) if documents else np.zeros(0, np.int64)
    labels.reshape(-1)[starts] = IGNORED
    position_ids = np.zeros_like(labels)
    position_ids.reshape(-1)[ranges(starts, sizes)] = ranges(np.zeros(len(sizes), np.int64), sizes)
    row_begins = np.arange(len(lengths)) * width
    bounds = np.unique(np.concatenate([starts, starts + sizes, row_begins, begins, begins + lengths, [labels.size]]))
    return {
        "position_ids": position_ids,
        "cu_seqlens": bounds.astype(np.int32),
        "max_seqlen": int(np.diff(bounds).max(initial=0)),
    }
