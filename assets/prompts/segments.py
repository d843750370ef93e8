"""Cuts texts at their control tokens: the content between them is tokenized, each control token is one id."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import FlatSpans, flat_spans
from tokenloom.resources.tables.flags import flags_of
from tokenloom.resources.tables.ragged import row_of, text_array, text_parts


@dataclass(frozen=True)
class Segments:
    """The segments of a chunk, flat and in text order: maximal runs of content, and single control tokens.

    Args:
        start, end: int64 [segments], byte positions in the chunk's text data.
        row: int64 [segments], index of the row.
        control: bool [segments], whether the segment is a control token.
        text: string [segments].
        first: int64 [segments], index of the segment's first span.
        spans: the chunk's spans, with start and end as byte positions in the chunk's text data.
    """

    start: np.ndarray
    end: np.ndarray
    row: np.ndarray
    control: np.ndarray
    text: pa.StringArray
    first: np.ndarray
    spans: FlatSpans


def segments(table: pa.Table) -> Segments:
    """Cut the texts of a chunk of prompts into segments."""
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
    """Return the content segments of a chunk of prompts, as strings."""
    cut = segments(table)
    return cut.text.filter(pa.array(~cut.control))


def once_at_control(cut: Segments) -> Segments:
    """Remove control tokens from contents where a template, `add_bos` or `add_eos` writes the same ones next to them.

    A content loses the token that follows it from its end, with white space after that token; the first content of a
    row loses the token before it from its start.
    """
    if not cut.control.any():
        return cut
    same_row, content = cut.row[1:] == cut.row[:-1], ~cut.control
    first = np.append(True, ~same_row)[: len(cut.row)]
    follows, leads = np.zeros((2, len(cut.row)), bool)
    follows[1:] = content[1:] & cut.control[:-1] & same_row & first[:-1]
    leads[:-1] = content[:-1] & cut.control[1:] & same_row
    text, lost = cut.text, np.zeros(len(cut.row), np.int64)
    for flags, step, pattern in ((follows, -1, r"\A(?:\s*{0})+"), (leads, 1, r"(?:{0}\s*)+\z")):
        places = np.flatnonzero(flags)
        tokens = cut.text.take(pa.array(places + step)).dictionary_encode()
        before = np.diff(text_parts(text)[0])
        for index, token in enumerate(tokens.dictionary.to_pylist()):
            at = places[tokens.indices.to_numpy() == index]
            chosen = text.take(pa.array(at))
            at = at[flags_of(pc.match_substring_regex(chosen, pattern.format(re.escape(token))))]
            if len(at):
                stripped = pc.replace_substring_regex(text.take(pa.array(at)), pattern.format(re.escape(token)), "")
                mask = np.zeros(len(text), bool)
                mask[at] = True
                text = pc.replace_with_mask(text, pa.array(mask), stripped)
        if step < 0:
            lost = before - np.diff(text_parts(text)[0])
    if text is cut.text:
        return cut
    start = cut.start + lost
    return replace(cut, start=start, end=start + np.diff(text_parts(text)[0]), text=text)


def strip_at_control(cut: Segments, strips: Callable[[str], tuple[bool, bool]]) -> Segments:
    """Strip the white space that control tokens swallow (`lstrip` and `rstrip` of added tokens) from their neighbors.

    Args:
        strips: for a control token, whether it swallows white space on its left, and on its right.
    """
    tokens = cut.text.filter(pa.array(cut.control)).dictionary_encode()
    sides = np.array([strips(token) for token in tokens.dictionary.to_pylist()], bool).reshape(-1, 2)
    if not sides.any():
        return cut
    flags = np.zeros((len(cut.row), 2), bool)
    flags[cut.control] = sides[tokens.indices.to_numpy()]
    same_row = cut.row[1:] == cut.row[:-1]
    left, right = np.zeros(len(cut.row), bool), np.zeros(len(cut.row), bool)
    left[1:] = flags[:-1, 1] & same_row & ~cut.control[1:]
    right[:-1] = flags[1:, 0] & same_row & ~cut.control[:-1]
    after = pc.if_else(pa.array(left), pc.utf8_ltrim_whitespace(cut.text), cut.text)
    text = pc.if_else(pa.array(right), pc.utf8_rtrim_whitespace(after), after)
    start = cut.end - np.diff(text_parts(after)[0])
    return replace(cut, start=start, end=start + np.diff(text_parts(text)[0]), text=text)
