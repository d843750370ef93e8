"""Texts that need no Jinja: in pieces that are cut at control tokens, as labelled segments, and as token ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import (
    SPAN_ROLES,
    SPANS,
    FlatSpans,
    Piece,
    Rule,
    any_control,
    flat_spans,
    span_lists,
    spans_cover,
    split_control,
)
from tokenloom.assets.prompts.truncation_order import check_length_settings
from tokenloom.assets.stage.contract import Contract, column, row_column
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    flags_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    row_of,
    sum_rows,
    text_array,
    text_parts,
)
from tokenloom.resources.tables.sequence_schema import PER_TOKEN
from tokenloom.resources.templates.from_yaml import parse_custom
from tokenloom.resources.tokenizers import TokenizerSpec


def custom_pieces(
    config: PipelineConfig, names: list[str], spec: TokenizerSpec, bos: str | None, eos: str | None, border: Rule | None
) -> list[Piece]:
    """Return the pieces of a custom template: BOS, the template's parts, and a trained EOS after the answer.

    Args:
        names: of the columns, in the order in which `assemble` gets them.
        spec: the tokenizer; its control tokens in the template's own text become control tokens.
        bos, eos: tokens to add, or None.
        border: which white space before the answer belongs to it.
    """
    prompt = config.prompt_template
    everything = 1.0 if prompt.train_on == "all" else 0.0
    numbers = column_numbers(names)
    pieces, ends = list[Piece](), list[int]()
    for part in parse_custom(config):
        if not part.is_field:
            pieces += split_control(part.text, spec.control, weight=everything)
            continue
        answer, number = part.text == prompt.label_column, numbers[part.text]
        role, weight, own = ("answer", 1.0, border) if answer else ("input", everything, None)
        pieces.append(Piece(None, names.index(part.text), role, number, weight, border=own))
        ends += [len(pieces)] * answer
    if prompt.label_column is None and eos:
        pieces.append(Piece(eos, weight=1.0, control=True))
    for end in reversed(ends):
        pieces = with_eos(pieces, end, eos)
    return with_bos(pieces, bos)


def with_eos(pieces: list[Piece], end: int, eos: str | None) -> list[Piece]:
    """Return pieces with a trained EOS after an answer: the template's own if it follows, else an added one.

    Args:
        end: the number of pieces before the end of the answer.
        eos: the token; None leaves the pieces unchanged.
    """
    if eos is None:
        return pieces
    own = next((at for at, piece in enumerate(pieces[end:], end) if (piece.text or "x").strip()), len(pieces))
    if own < len(pieces) and pieces[own].control and pieces[own].text == eos:
        stop = [replace(piece, role="answer", weight=1.0) for piece in pieces[end : own + 1]]
        return [*pieces[:end], *stop, *pieces[own + 1 :]]
    return [*pieces[:end], Piece(eos, role="answer", weight=1.0, control=True), *pieces[end:]]


def with_ends(pieces: list[Piece], bos: str | None, eos: str | None) -> list[Piece]:
    """Return pieces with BOS, and a trained EOS after the last trained one unless that is a control token."""
    last = max((index for index, piece in enumerate(pieces) if piece.weight), default=len(pieces) - 1)
    return with_bos(pieces if bool(pieces) and pieces[last].control else with_eos(pieces, last + 1, eos), bos)


def column_numbers(fields: Iterable[str]) -> dict[str, int]:
    """Number a template's columns, sorted by name: what `message` is in the spans of their values."""
    return {name: number for number, name in enumerate(sorted(fields))}


def with_bos(pieces: list[Piece], bos: str | None) -> list[Piece]:
    """Add BOS before the pieces, unless the template's own text starts with it (white space aside)."""
    solid = (piece for piece in pieces if piece.control or piece.text is None or piece.text.strip())
    first = next(solid, None)
    if bos is None or (first is not None and first.control and first.text == bos):
        return pieces
    return [Piece(bos, control=True), *pieces]


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
        role, weights = np.where(trained > 0, _ANSWER, _INPUT), np.ones_like(trained) if self.all_trained else trained
        columns = (start - base[row], end - base[row], role, message, weights, control)
        spans = span_lists(sum_rows(solid.astype(np.int64), first[offsets]), *(column[solid] for column in columns))
        joined = pc.binary_join(list_array(offsets, text), "")
        made = pa.table({ROW: one_array(table[ROW]), "text": one_array(joined), "spans": spans})
        return ChunkOutput(made, table.num_rows)


def cut_at_control(texts: pa.Array, control: tuple[str, ...]) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Cut texts at control tokens, of which the longest counts.

    Returns:
        int64 [texts], the number of parts of each text, which can be empty; the flat parts; and bool [parts], which of
        them are control tokens.
    """
    if not control:
        return np.ones(len(texts), np.int64), texts, np.zeros(len(texts), bool)
    # RE2 replaces in all texts at once, but does not split: tokens get a character around them that no text has
    mark = next(char for char in map(chr, range(0xE000, 0xF8FF)) if not pc.any(pc.match_substring(texts, char)).as_py())
    marked = pc.replace_substring_regex(texts, any_control(control), f"{mark}\\1{mark}")
    offsets, parts = list_parts(pc.split_pattern(marked, mark))
    counts = np.diff(offsets).astype(np.int64)
    # a text is cut twice at each token, so that every second part is one
    within = np.arange(len(parts)) - offsets_of(counts)[row_of(counts)]
    return counts, parts, within % 2 == 1


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

    @cached_property
    def tokens(self) -> pa.DictionaryArray:
        """The control tokens, in order."""
        return self.text.filter(pa.array(self.control)).dictionary_encode()


def segments(table: pa.Table) -> Segments:
    """Cut the texts of a chunk of prompts into segments."""
    bounds, data = text_parts(table["text"])
    spans = flat_spans(table["spans"])
    row = row_of(spans.counts)
    start, end = spans.start + bounds[row], spans.end + bounds[row]
    moved = replace(spans, start=start, end=end)
    # a segment starts with a row, and where a control token is or was
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
        # one pattern per token, not per content: Arrow's kernels take a single one
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
    sides = np.array([strips(token) for token in cut.tokens.dictionary.to_pylist()], bool).reshape(-1, 2)
    if not sides.any():
        return cut
    flags = np.zeros((len(cut.row), 2), bool)
    flags[cut.control] = sides[cut.tokens.indices.to_numpy()]
    same_row = cut.row[1:] == cut.row[:-1]
    left, right = np.zeros(len(cut.row), bool), np.zeros(len(cut.row), bool)
    left[1:] = flags[:-1, 1] & same_row & ~cut.control[1:]
    right[:-1] = flags[1:, 0] & same_row & ~cut.control[:-1]
    after = pc.if_else(pa.array(left), pc.utf8_ltrim_whitespace(cut.text), cut.text)
    text = pc.if_else(pa.array(right), pc.utf8_rtrim_whitespace(after), after)
    start = cut.end - np.diff(text_parts(after)[0])
    return replace(cut, start=start, end=start + np.diff(text_parts(text)[0]), text=text)


_TEXT, _INPUT, _ANSWER = (SPAN_ROLES.index(role) for role in ("text", "input", "answer"))


def spans_cover_ids(table: pa.Table) -> bool:
    """Return whether the spans of each document partition its tokens."""
    return spans_cover(table["spans"], np.diff(list_parts(table["input_ids"])[0]))


CONTRACT = Contract(
    "One document of a pre-tokenized row. Further columns hold a number per token.",
    {
        ROW: row_column(),
        "input_ids": column("The token ids, as the data has them.", pa.list_(pa.uint32())),
        "spans": column("Spans in tokens that partition the document: runs of one loss weight.", SPANS),
    },
    {"spans partition the tokens": spans_cover_ids},
    open=True,
)


def check_token_settings(config: PipelineConfig, mapping: Mapping[str, Any]) -> None:
    """Check that no setting is for texts.

    Raises:
        ConfigError: one has no effect on pre-tokenized rows.
    """
    prompt, fields = config.prompt_template, type(config.prompt_template).model_fields
    for name in sorted(prompt.model_fields_set - {"format_type"}):
        if getattr(prompt, name) != fields[name].default or name in ("add_bos", "add_eos"):
            message = "has no effect: the rows are token ids already, which nothing is added to; omit it"
            raise config.fault(f"prompt_template.{name}", message)
    if config.tokenizer.train is not None:
        message = "the rows are token ids already; set name_or_path to the tokenizer that they come from"
        raise config.fault("tokenizer.train", message)
    for section in ("dedup", "decontaminate"):
        if getattr(config, section) is not None:
            raise config.fault(section, "compares texts, but the rows are token ids; omit it")
    check_length_settings(config, mapping)


def token_documents(table: pa.Table) -> ChunkOutput:
    """Return the documents of pre-tokenized rows; a packed row has several.

    Args:
        table: rows in the form `tokens`.
    """
    counts, lengths = list_parts(table["lengths"])
    offsets = np.append(0, np.cumsum(lengths.to_numpy().astype(np.int64)))
    weights = list_parts(table["weights"])[1].to_numpy()
    columns = {
        ROW: one_array(table[ROW]).take(pa.array(row_of(np.diff(counts)))),
        "input_ids": list_array(offsets, list_parts(table["input_ids"])[1]),
        "spans": token_spans(offsets, weights, np.zeros(len(weights), bool)),
    }
    of_tokens = [name for name in table.column_names if name.startswith(PER_TOKEN)]
    columns |= {name: list_array(offsets, list_parts(table[name])[1]) for name in of_tokens}
    return ChunkOutput(pa.table(columns), table.num_rows, rows_out=table.num_rows)


def token_spans(offsets: Ints, weights: np.ndarray, control: Flags) -> pa.Array:
    """Return the spans of documents: runs of tokens of one weight and one kind.

    The role of trained tokens is `answer`, that of masked ones `input`; in documents without masked tokens all are
    `text`. Each run of trained, or of masked, tokens has its number as its message; control tokens have none.

    Args:
        offsets: int64 [documents + 1], at least one token each.
        weights: float32 [tokens].
        control: bool [tokens], which are control tokens.
    """
    trained, document = weights > 0, row_of(np.diff(offsets))
    firsts = np.zeros(len(weights), bool)
    firsts[offsets[:-1]] = True
    changes = _changes(trained) | firsts
    start = np.flatnonzero(changes | _changes(weights) | _changes(control))
    end = np.append(start[1:], len(weights))[: len(start)]
    number = np.cumsum(changes)
    masked = np.bincount(document, ~trained, len(offsets) - 1) > 0
    role = np.where(trained[start], np.where(masked[document[start]], _ANSWER, _TEXT), _INPUT)
    first = offsets[document[start]]
    message = np.where(control[start], -1, number[start] - number[first])
    counts = np.bincount(document[start], minlength=len(offsets) - 1)
    return span_lists(counts, start - first, end - first, role, message, weights[start], control[start])


def _changes(values: np.ndarray) -> Flags:
    """Return which values differ from the one before."""
    return np.append(False, values[1:] != values[:-1])[: len(values)]
