"""Cuts texts at their control tokens: what lies between is tokenized, the control tokens are ids already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import FlatSpans, flat_spans
from tokenloom.resources.tables.ragged import row_of, text_array, text_parts


@dataclass(frozen=True)
class Segments:
    """The segments of a chunk, flat: maximal runs of content, and single control tokens, in text order.

    Args:
        start, end: int64 byte positions in the chunk's text data.
        row: int64, the row that each belongs to.
        control: bool.
        text: string array, one for each segment.
        first: int64, each one's first span.
        spans: the chunk's spans, with start and end moved to the same byte positions.
    """

    start: np.ndarray
    end: np.ndarray
    row: np.ndarray
    control: np.ndarray
    text: pa.StringArray
    first: np.ndarray
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
    return Segments(starts, ends, row[index], spans.control[index], text, index, moved)


def content_segments(table: pa.Table) -> pa.Array:
    """The content segments of a chunk of prompts, as strings."""
    found = segments(table)
    return found.text.filter(pa.array(~found.control))


def swallow(found: Segments, strips: Callable[[str], tuple[bool, bool]]) -> Segments:
    """The segments without the white space that the control tokens beside them swallow.

    Args:
        strips: for a control token, whether it swallows white space on its left, and on its right.
    """
    named = found.text.filter(pa.array(found.control)).dictionary_encode()
    known = np.array([strips(token) for token in named.dictionary.to_pylist()], bool).reshape(-1, 2)
    if not known.any():
        return found
    flags = np.zeros((len(found.row), 2), bool)
    flags[found.control] = known[named.indices.to_numpy()]
    beside = found.row[1:] == found.row[:-1]
    left, right = np.zeros(len(found.row), bool), np.zeros(len(found.row), bool)
    left[1:] = flags[:-1, 1] & beside & ~found.control[1:]
    right[:-1] = flags[1:, 0] & beside & ~found.control[:-1]
    after = pc.if_else(pa.array(left), pc.utf8_ltrim_whitespace(found.text), found.text)
    text = pc.if_else(pa.array(right), pc.utf8_rtrim_whitespace(after), after)
    start = found.end - np.diff(text_parts(after)[0])
    return replace(found, start=start, end=start + np.diff(text_parts(text)[0]), text=text)
