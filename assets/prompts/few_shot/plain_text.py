"""Few-shot examples for rows without a chat template: each is rendered like a row, ends with a blank line, and is not
trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.few_shot.examples import draw_for
from tokenloom.assets.prompts.spans import SPAN_ROLES, FlatSpans, flat_spans, span_lists
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.config import FewShotConfig
from tokenloom.resources.tables.hashes import Hashes, hash_records
from tokenloom.resources.tables.ragged import (
    Ints,
    list_array,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sum_rows,
    text_parts,
)

SEPARATOR = "\n\n"
ANSWER, INPUT = SPAN_ROLES.index("answer"), SPAN_ROLES.index("input")


@dataclass(frozen=True)
class PlainTextFewShot:
    """Renders rows with examples before them.

    Args:
        render: renders rows without an added BOS.
        bare: renders examples, without an added BOS or EOS.
        settings: the YAML's few_shot section.
        fixed: the file's examples, rendered by `bare`; None: examples are the chunk's other rows.
        bos: the token to add at the start of the text if the template writes none, or None.
        own_bos: the tokenizer's BOS; if the template starts with it, it is written only once, at the start.
    """

    render: Callable[[pa.Table], ChunkOutput]
    bare: Callable[[pa.Table], ChunkOutput]
    settings: FewShotConfig
    fixed: pa.Table | None
    bos: str | None
    own_bos: str | None

    def __call__(self, table: pa.Table, usable: np.ndarray | None = None) -> ChunkOutput:
        """Render a chunk.

        Args:
            usable: bool [rows], which rows can be examples; default: all.
        """
        bare = self.bare(table)
        place = pa.array(np.searchsorted(table[ROW].to_numpy(), bare.table[ROW].to_numpy()))
        shown = one_array(bare.table["text"])
        offered, offer = bare.table, np.ones(bare.table.num_rows, bool) if usable is None else usable[place]
        offered = self.fixed if self.fixed is not None else offered.filter(pa.array(offer)).combine_chunks()
        kept = table.take(place).combine_chunks()
        lengths = np.diff(text_parts(offered["text"])[0])
        drawn = draw_for(self.settings, kept, asked(bare.table), asked(offered), lengths, shown)
        out = self.render(drawn.table)
        rendered = np.isin(drawn.table[ROW].to_numpy(), out.table[ROW].to_numpy())
        joined = self._joined(out.table, offered, drawn.picks[rendered])
        return ChunkOutput(joined, table.num_rows, join_rejects([bare.rejects, drawn.rejects, out.rejects]))

    def _joined(self, rows: pa.Table, offered: pa.Table, picks: Ints) -> pa.Table:
        """Return each row's text after its examples, and the spans of both."""
        own, examples = _without_bos(rows, self.own_bos), _without_bos(offered, self.own_bos)
        literals = [SEPARATOR, self.bos or self.own_bos or "", ""]
        separator, bos, nothing = len(own.text) + len(examples.text) + np.arange(3)
        texts = pa.concat_arrays([own.text, examples.text, pa.array(literals, pa.string())])
        spans = _joined_spans([own.spans, _as_examples(examples.spans), _literal_spans(literals)])
        count = len(own.text)
        # the parts of a row: BOS or nothing, the examples with a separator after each, and the row's own text
        parts = np.full((count, 2 * picks.shape[1] + 2), separator, np.int64)
        parts[:, 0] = np.where(own.had_bos | (self.bos is not None), bos, nothing)
        parts[:, 1:-1:2] = picks + count
        parts[:, -1] = np.arange(count)
        taken = texts.take(pa.array(parts.ravel()))
        sizes = np.diff(text_parts(taken)[0]).reshape(parts.shape)
        before = np.cumsum(sizes, axis=1) - sizes
        text = pc.binary_join(list_array(np.arange(count + 1) * parts.shape[1], taken), "")
        return pa.table({ROW: one_array(rows[ROW]), "text": one_array(text), "spans": _gathered(spans, parts, before)})


def asked(table: pa.Table) -> Hashes:
    """Return uint64 [rows]: a hash of each text without its answer."""
    bounds, data = text_parts(table["text"])
    spans = flat_spans(table["spans"])
    kept = np.flatnonzero(spans.role != ANSWER)
    lengths = np.where(spans.role != ANSWER, spans.end - spans.start, 0)
    starts = (spans.start + bounds[row_of(spans.counts)])[kept]
    offsets = offsets_of(sum_rows(lengths, spans.offsets))
    return hash_records(data[ranges(starts, lengths[kept])], offsets[:-1], offsets[1:])


@dataclass(frozen=True)
class _Texts:
    """Texts and their spans; `had_bos` is bool [rows]."""

    text: pa.Array
    spans: FlatSpans
    had_bos: np.ndarray


def _without_bos(table: pa.Table, bos: str | None) -> _Texts:
    """Return the texts without a leading BOS and the white space before it."""
    text, spans = one_array(table["text"]), flat_spans(table["spans"])
    had = np.zeros(len(text), bool)
    if bos is None or not len(text):
        return _Texts(text, spans, had)
    trimmed = pc.utf8_ltrim_whitespace(text)
    lengths, size = np.diff(text_parts(text)[0]), len(bos.encode())
    blank = lengths - np.diff(text_parts(trimmed)[0])
    row = row_of(spans.counts)
    marks = spans.control & (spans.start == blank[row]) & (spans.end == blank[row] + size)
    begins = np.asarray(pc.starts_with(trimmed, bos).to_numpy(zero_copy_only=False), bool)
    had[row[marks & begins[row]]] = True
    cut = np.where(had, blank + size, 0)
    kept = spans.end > cut[row]
    start, end, *others = (column[kept] for column in spans.columns)
    offsets, before = offsets_of(np.bincount(row[kept], minlength=len(text))), cut[row[kept]]
    moved = FlatSpans(offsets, start - before, end - before, *others)
    return _Texts(pc.if_else(pa.array(had), pc.utf8_slice_codeunits(trimmed, len(bos)), text), moved, had)


def _as_examples(spans: FlatSpans) -> FlatSpans:
    """Return the spans of examples: weight 0, and answers become input."""
    role = np.where(spans.role == ANSWER, INPUT, spans.role).astype(np.uint8)
    return replace(spans, role=role, weight=np.zeros_like(spans.weight))


def _literal_spans(texts: list[str]) -> FlatSpans:
    """Return one span for each non-empty text; the second one is a control token."""
    lengths = np.array([len(text.encode()) for text in texts], np.int64)
    solid = lengths > 0
    zeros = np.zeros(int(solid.sum()), np.int64)
    control = np.array([False, True, False])[solid]
    role, message, weight = zeros.astype(np.uint8), zeros.astype(np.int32) - 1, zeros.astype(np.float32)
    return FlatSpans(offsets_of(solid.astype(np.int64)), zeros, lengths[solid], role, message, weight, control)


def _joined_spans(parts: list[FlatSpans]) -> FlatSpans:
    """Concatenate the spans of several lists of texts."""
    counts = np.concatenate([part.counts for part in parts])
    return FlatSpans(offsets_of(counts), *map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))


def _gathered(spans: FlatSpans, parts: Ints, before: Ints) -> pa.Array:
    """Return the spans of rows that are joined from parts.

    Args:
        spans: the spans of all parts.
        parts: int64 [rows, parts], the index of each part.
        before: int64 [rows, parts], the bytes of the row before each part.
    """
    counts = spans.counts[parts]
    taken = ranges(spans.offsets[:-1][parts].ravel(), counts.ravel())
    shift = np.repeat(before.ravel(), counts.ravel())
    start, end, *others = (column[taken] for column in spans.columns)
    return span_lists(counts.sum(axis=1), start + shift, end + shift, *others)
