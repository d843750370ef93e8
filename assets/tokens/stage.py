"""tokens: input_ids and the same spans in tokens; nothing cut, nothing padded.

Content is tokenized as one text from control token to control token, never prompt and answer apart; what is trained
follows from the bytes that each token stands for.
"""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.pairs import LABEL, in_pairs
from tokenloom.assets.prompts.segments import Segments, segments, swallow
from tokenloom.assets.prompts.spans import SPANS, flat_spans, span_lists, spans_cover
from tokenloom.assets.rejects import ROW, no_rejects, reject_rows
from tokenloom.assets.stage import ChunkOutput, Context, Stage, Work
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.masks import own_tokens
from tokenloom.config import PipelineConfig
from tokenloom.resources.ragged import list_array, list_parts, offsets_of, one_array, row_of, sum_rows
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tokenizers import TOKENIZER

ControlPolicy = Literal["split", "reject", "keep"]

IDS = (pa.list_(pa.uint16()), pa.list_(pa.uint32()))
"""Types of input_ids: the smallest unsigned one that the vocabulary fits."""


def _spans_cover_ids(table: pa.Table) -> bool:
    return spans_cover(table["spans"], np.diff(list_parts(table["input_ids"])[0]))


class TokensStage(Stage):
    name = "tokens"
    version = 1
    upstream = ("prompts", "tokenizer")
    libraries = ("pyarrow", "tokenizers")
    output_schema: ClassVar = {ROW: (pa.int32(),), "input_ids": IDS, "spans": (SPANS,)}
    optional_columns: ClassVar = {LABEL: (pa.bool_(),)}
    checks: ClassVar = {"spans partition the tokens": _spans_cover_ids}

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        return {"control_tokens_in_content": config.tokenizer.control_tokens_in_content}

    def prepare(self, context: Context) -> Work:
        facts = context.manifest("tokenizer").facts
        policy: ControlPolicy = context.config.tokenizer.control_tokens_in_content
        tokenize = LazyTokenize(context.store, facts["digest"], tuple(facts["control"]), policy)
        return Work(
            context.input_chunks("prompts"), tokenize, {"tokenizer": facts["digest"]}, {"control": facts["control"]}
        )


STAGE = TokensStage()


class LazyTokenize:
    """Loads the tokenizer from the store when the first chunk needs it."""

    def __init__(self, store: ArtifactStore, digest: str, control: tuple[str, ...], policy: ControlPolicy):
        self._store, self._digest, self._control = store, digest, control
        self._policy: ControlPolicy = policy
        self._lock = Lock()

    @cached_property
    def _encoder(self) -> ContentEncoder:
        files = self._store.objects.get(self._digest)
        content = files["content"][files["file"].to_pylist().index(TOKENIZER)].as_py()
        return ContentEncoder(content, self._control, keep_control=self._policy == "keep")

    def __call__(self, table: pa.Table) -> ChunkOutput:
        with self._lock:
            encoder = self._encoder
        return in_pairs(lambda prompts: tokenize(prompts, encoder, self._control, self._policy))(table)


def tokenize(table: pa.Table, encoder: ContentEncoder, control: tuple[str, ...], policy: ControlPolicy) -> ChunkOutput:
    """Tokenize a chunk of prompts.

    Args:
        table: row position, text and spans.
        control: the tokenizer's control tokens.
        policy: what control strings inside content do.
    """
    rows_in, rejects = table.num_rows, no_rejects()
    if policy == "reject" and control:
        table, rejects = _without_control(table, control)
    found = swallow(segments(table), encoder.strips)
    rows = table.num_rows
    leading = np.diff(found.row, prepend=-1) != 0
    encoded = encoder.encode(found.text.filter(pa.array(~found.control)), leading[~found.control])
    counts = np.ones(len(found.row), np.int64)
    counts[~found.control] = encoded.counts
    of_segment = row_of(counts)
    is_control = found.control[of_segment]
    ids = np.empty(len(of_segment), np.int64)
    start, end = np.empty_like(ids), np.empty_like(ids)
    ids[~is_control], ids[is_control] = encoded.ids, _control_ids(found, encoder)
    start[is_control], end[is_control] = found.start[found.control], found.end[found.control]
    lengths = (found.end - found.start)[~found.control]
    shift = np.repeat(found.start[~found.control] - (np.cumsum(lengths) - lengths), encoded.counts)
    start[~is_control], end[~is_control] = encoded.start + shift, encoded.end + shift
    owned = own_tokens(start, end, found.spans)
    totals = sum_rows(counts, offsets_of(np.bincount(found.row, minlength=rows)))
    width = pa.uint16() if encoder.vocab_size <= 1 << 16 else pa.uint32()
    out = pa.table(
        {
            ROW: one_array(table[ROW]),
            "input_ids": list_array(offsets_of(totals), pa.array(ids, width)).cast(pa.list_(width)),
            "spans": _token_spans(found, owned.span, rows),
        }
    )
    return ChunkOutput(out, rows_in, rejects, tokens=len(ids), counters={"straddles": owned.straddles})


def _control_ids(found: Segments, encoder: ContentEncoder) -> np.ndarray:
    named = found.text.filter(pa.array(found.control)).dictionary_encode()
    known = np.array([encoder.id_of(token) for token in named.dictionary.to_pylist()], np.int64)
    return known[named.indices.to_numpy()] if len(named) else np.zeros(0, np.int64)


def _token_spans(found: Segments, owner: np.ndarray, rows: int) -> pa.Array:
    """The spans in tokens; a span that owns no token goes."""
    spans = found.spans
    tokens = np.bincount(owner, minlength=len(spans.end))
    kept = tokens > 0
    row = row_of(spans.counts)
    end = np.cumsum(tokens)
    base = np.concatenate([[0], end])[spans.offsets[:-1]][row]
    counts = np.bincount(row[kept], minlength=rows)
    columns = (
        column[kept]
        for column in (end - tokens - base, end - base, spans.role, spans.message, spans.weight, spans.control)
    )
    return span_lists(counts, *columns)


def _without_control(table: pa.Table, control: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """The rows whose content holds no control string, and rejects for the others."""
    found = segments(table)
    holds = np.zeros(len(found.row), bool)
    for token in control:
        holds |= np.asarray(pc.match_substring(found.text, token).to_numpy(zero_copy_only=False), bool)
    bad = np.zeros(table.num_rows, bool)
    bad[found.row[holds & ~found.control]] = True
    flags = pa.array(bad)
    rejects = reject_rows(
        one_array(table[ROW]).filter(flags),
        "tokens",
        "control_token_in_content",
        "text",
        "the content holds a control token's text",
        one_array(table["text"]).filter(flags),
    )
    return table.filter(pa.array(~bad)).combine_chunks(), rejects


def token_weights(table: pa.Table) -> np.ndarray:
    """float32 [tokens]: how much each token of a chunk is trained, flat; 0: not at all."""
    spans = flat_spans(table["spans"])
    return np.repeat(spans.weight, spans.end - spans.start)
