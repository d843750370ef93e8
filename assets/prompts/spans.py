"""Spans: whose part of a text each byte is, and how much it is trained.

The spans of a row partition its text: they are in order, touch, and cover it. Weight 0 means: not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import list_array, list_parts, offsets_of, one_array, sum_rows, text_parts

ROLES = ("template", "system", "user", "assistant", "tool", "text", "input", "answer")
"""What the numbers in a span's `role` mean."""

SPAN = pa.struct(
    [
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("role", pa.uint8()),
        ("message", pa.int32()),
        ("weight", pa.float32()),
        ("control", pa.bool_()),
    ]
)
"""start and end in bytes of the text (in tokens, after tokenization); `message` counts a conversation's messages, or
the columns that a template names, in sorted order; -1 outside of them. The first of neighbouring spans of one message
is its content, others its stop. `control` marks a control token, whose text is its name."""

SPANS = pa.list_(SPAN)


@dataclass(frozen=True)
class Piece:
    """A part of every text of one layout: a literal, or (where `text` is None) the row's value of a column."""

    text: str | None
    column: int = -1
    role: str = "template"
    message: int = -1
    weight: float = 0.0
    control: bool = False


def assemble(rows: pa.Array, pieces: Sequence[Piece], columns: Sequence[pa.Array]) -> pa.Table:
    """Texts and spans of rows that share one layout.

    Args:
        rows: int32 row positions.
        pieces: the layout.
        columns: string arrays that the pieces refer to.
    """
    count = len(rows)
    parts = [columns[piece.column] if piece.text is None else pa.scalar(piece.text, pa.string()) for piece in pieces]
    nothing = pa.repeat(pa.scalar("", pa.string()), count)  # so that literals alone also give a text for each row
    text = pc.binary_join_element_wise(nothing, *parts, "")
    lengths = np.empty((count, len(pieces)), np.int64)
    for index, piece in enumerate(pieces):
        if piece.text is None:
            lengths[:, index] = np.diff(text_parts(columns[piece.column])[0])
        else:
            lengths[:, index] = len(piece.text.encode())
    ends = np.cumsum(lengths, axis=1)
    solid = lengths > 0
    which = np.broadcast_to(np.arange(len(pieces)), lengths.shape)[solid]
    spans = span_lists(
        solid.sum(axis=1),
        (ends - lengths)[solid],
        ends[solid],
        np.array([ROLES.index(piece.role) for piece in pieces], np.uint8)[which],
        np.array([piece.message for piece in pieces], np.int32)[which],
        np.array([piece.weight for piece in pieces], np.float32)[which],
        np.array([piece.control for piece in pieces], bool)[which],
    )
    return pa.table({ROW: rows, "text": one_array(text), "spans": spans})


def span_lists(
    counts: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    role: np.ndarray,
    message: np.ndarray,
    weight: np.ndarray,
    control: np.ndarray,
) -> pa.Array:
    """A list array of spans from flat columns; `counts` int [rows] says how many each row has."""
    fields = [start, end, role, message, weight, control]
    arrays = [pa.array(values, SPAN.field(index).type) for index, values in enumerate(fields)]
    return list_array(offsets_of(counts), pa.StructArray.from_arrays(arrays, fields=list(SPAN))).cast(SPANS)


@dataclass(frozen=True)
class FlatSpans:
    """The spans of a chunk as flat columns, with `offsets` int64 [rows + 1]."""

    offsets: np.ndarray
    start: np.ndarray
    end: np.ndarray
    role: np.ndarray
    message: np.ndarray
    weight: np.ndarray
    control: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.offsets)


def flat_spans(spans: pa.Array | pa.ChunkedArray) -> FlatSpans:
    """Take a list array of spans apart."""
    offsets, values = list_parts(spans)
    columns = [field.to_numpy(zero_copy_only=False) for field in values.flatten()]
    start, end = (column.astype(np.int64) for column in columns[:2])
    return FlatSpans(offsets, start, end, *columns[2:])


def partition_text(table: pa.Table) -> bool:
    """Whether every row's spans are in order, touch, and cover its text."""
    return spans_cover(table["spans"], np.diff(text_parts(table["text"])[0]))


def spans_cover(spans: pa.Array | pa.ChunkedArray, lengths: np.ndarray) -> bool:
    """Whether each row's spans partition [0, length)."""
    flat = flat_spans(spans)
    previous = np.zeros_like(flat.start)
    previous[1:] = flat.end[:-1]
    firsts = flat.offsets[:-1][flat.counts > 0]
    previous[firsts] = 0
    return bool(
        (flat.start == previous).all()
        and (flat.end > flat.start).all()
        and (sum_rows(flat.end - flat.start, flat.offsets) == lengths).all()
    )
