"""Renders texts in segments: nothing is added, and control tokens are found in the segments' own text."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import ROLES, span_lists
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import (
    list_array,
    list_parts,
    offsets_of,
    one_array,
    row_of,
    sum_rows,
    text_parts,
)


@dataclass(frozen=True)
class SegmentedTexts:
    """Joins the segments of each row; segments with a weight are answers, the others input.

    Each text between control tokens is a separate message, with the control tokens after it in its segment.

    Args:
        control: the tokenizer's control tokens.
        all_trained: whether to train all segments.
    """

    control: tuple[str, ...]
    all_trained: bool

    def __call__(self, table: pa.Table) -> ChunkOutput:
        offsets, segments = list_parts(table["segments"])
        text, weight = segments.flatten()
        counts, parts, control = cut_at_control(text, self.control)
        segment = row_of(counts)
        size = np.diff(text_parts(parts)[0]).astype(np.int64)
        row = row_of(np.diff(offsets))[segment]
        end = np.cumsum(size)
        start = end - size
        solid, first = size > 0, offsets_of(counts)
        base = np.append(0, end)[first[offsets[:-1]]]
        trained = weight.to_numpy()[segment]
        seen = np.append(0, np.cumsum(solid & ~control))  # content parts before each part
        own = seen[1:] > seen[first[segment]]  # control tokens before the content of a segment belong to no message
        message = np.where(own, seen[1:] - 1 - seen[first[offsets[:-1]]][row], -1)
        spans = span_lists(
            sum_rows(solid.astype(np.int64), first[offsets]),
            (start - base[row])[solid],
            (end - base[row])[solid],
            np.where(trained > 0, ROLES.index("answer"), ROLES.index("input")).astype(np.uint8)[solid],
            message[solid].astype(np.int32),
            (np.ones_like(trained) if self.all_trained else trained)[solid],
            control[solid],
        )
        joined = pc.binary_join(list_array(offsets, text), "")
        columns = {ROW: one_array(table[ROW]), "text": one_array(joined), "spans": spans}
        return ChunkOutput(pa.table(columns), table.num_rows)


def cut_at_control(texts: pa.Array, control: tuple[str, ...]) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Cut texts at control tokens, of which the longest counts.

    Returns:
        int64 [texts], the number of parts of each text, which can be empty; the flat parts; and bool [parts], which of
        them are control tokens.
    """
    if not control:
        return np.ones(len(texts), np.int64), texts, np.zeros(len(texts), bool)
    mark = next(char for char in map(chr, range(0xE000, 0xF8FF)) if not pc.any(pc.match_substring(texts, char)).as_py())
    longest_first = "|".join(re.escape(token) for token in sorted(control, key=lambda token: (-len(token), token)))
    marked = pc.replace_substring_regex(texts, f"({longest_first})", f"{mark}\\1{mark}")
    offsets, parts = list_parts(pc.split_pattern(marked, mark))
    counts = np.diff(offsets).astype(np.int64)
    within = np.arange(len(parts)) - offsets_of(counts)[row_of(counts)]
    return counts, parts, within % 2 == 1
