"""Cuts texts at their control tokens: what lies between is tokenized, the control tokens are ids already."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import FlatSpans, flat_spans
from tokenloom.resources.ragged import offsets_of, row_of, text_array, text_parts


@dataclass(frozen=True)
class Segments:
    """The segments of a chunk, flat: maximal runs of content, and single control tokens, in text order.

    Args:
        start, end: int64 byte positions in the chunk's text data.
        row: int64, the row that each belongs to.
        control: bool.
        text: string array, one for each segment.
        spans: the chunk's spans, with start and end moved to the same byte positions.
    """

    start: np.ndarray
    end: np.ndarray
    row: np.ndarray
    control: np.ndarray
    text: pa.StringArray
    spans: FlatSpans


def segments(table: pa.Table) -> Segments:
    """Take the texts of a chunk of prompts apart."""
    bounds, data = text_parts(table["text"])
    spans = flat_spans(table["spans"])
    row = row_of(spans.counts)
    start, end = spans.start + bounds[row], spans.end + bounds[row]
    moved = FlatSpans(spans.offsets, start, end, spans.role, spans.message, spans.weight, spans.control)
    first = np.ones(len(row), bool)
    first[1:] = (row[1:] != row[:-1]) | spans.control[1:] | spans.control[:-1]
    index = np.flatnonzero(first)
    starts = start[index]
    ends = np.append(starts[1:], end[-1:])
    text = text_array(np.append(starts, ends[-1:]), data) if len(index) else pa.array([], pa.string())
    return Segments(starts, ends, row[index], spans.control[index], text, moved)


def content_segments(table: pa.Table) -> pa.Array:
    """The content segments of a chunk of prompts, as strings."""
    found = segments(table)
    return found.text.filter(pa.array(~found.control))


def segment_counts(found: Segments, rows: int) -> np.ndarray:
    """Offsets [rows + 1] of each row's segments."""
    return offsets_of(np.bincount(found.row, minlength=rows))
