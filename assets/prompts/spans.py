"""Builds texts and their spans: a role and a weight for each range of bytes; and moves the border of an answer.

A prompt for inference ends at the border, and the trained text begins there. The ids of the prompt are a prefix of the
row's ids if no token of the row straddles the border, and if the end of the prompt is not cut differently when a word
follows. Which white space can end a prompt depends on how the tokenizer cuts texts into words:

- `breaks`: line breaks end it, spaces begin the answer. In `:
` a line break is joined to what comes before it
  (Llama 3, Qwen), and in ` word` a space to what comes after it.
- `last`: as `breaks`, but of several white-space characters with a line break the last one begins the answer: before a
  word they are cut apart, at the end of a text they are not (GPT-2, and tokenizers trained here).
- `none`: all white space begins the answer, as line breaks become spaces (SentencePiece with NFKC).

The spans of a row partition its text: they are in order, have no gaps, and cover it. Weight 0 means not trained.
`assemble` makes texts and spans together from pieces, so that spans never have to be searched for in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    flags_of,
    flat_numbers,
    holds,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    text_parts,
)
from tokenloom.resources.templates.jinja import Slot
from tokenloom.resources.templates.marks import Looks
from tokenloom.resources.tokenizers import TOKENIZER, BorderRule, TokenizerSpec, naming_tokenizer

Rule = BorderRule
RULES: tuple[Rule, ...] = get_args(Rule)

SPACE = np.isin(np.arange(256), list(b" \t\v\f\r\n"))
"""Bool [256]: which bytes are white space."""

_BLANK = np.isin(np.arange(256), list(b" \t\v\f"))

_TRAINED = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
"""The pre-tokenizer of tokenizers that a build trains."""

_PROBES = [*product(("a", "a:"), (" ", "\n", "\n\n", "\n "), ("b", "B", "1", "("))]
"""Ends of prompts, white space after them, and starts of answers: a pair that is cut differently has another rule."""


class _Cutting(msgspec.Struct):
    """What cuts a text into words, in a tokenizer.json."""

    normalizer: Any = None
    pre_tokenizer: Any = None


def border_rule(spec: TokenizerSpec) -> Rule:
    """Return which white space can end a prompt: the first rule with which every probe's prompt is cut as its row is.

    Tokens are within words, so words that are the same alone and in the row have the same ids: only the normalizer and
    the pre-tokenizer are loaded. If they do not cut texts, it is `breaks`: without them, the merges alone decide, which
    no lookahead changes.
    """
    if spec.border is not None:
        return spec.border
    words = _words_of(spec)
    for rule in RULES:
        if all(_keeps_words(rule, words, *probe) for probe in _PROBES):
            return rule
    return "breaks"


Words = Callable[[str], list[tuple[int, int]]]
"""Returns the bounds of a text's words, in characters."""


def _words_of(spec: TokenizerSpec) -> Words:
    from tokenizers import Tokenizer

    cutting = msgspec.json.decode(spec.files[TOKENIZER], type=_Cutting) if spec.files else _Cutting(None, _TRAINED)
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}  # which makes a token of each word
    parts = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None, "decoder": None}
    cut = {"normalizer": cutting.normalizer, "pre_tokenizer": cutting.pre_tokenizer}
    with naming_tokenizer("cannot be loaded"):
        tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", **parts, **cut, "model": model}))
    return lambda text: tokenizer.encode(text).offsets


def _keeps_words(rule: Rule, words: Words, before: str, space: str, answer: str) -> bool:
    """Return whether a prompt that ends where the rule says has the same words alone and in its row."""
    prompt = before + space
    data = np.frombuffer(prompt.encode(), np.uint8)
    size = len(prompt) - int(moved(data, np.array([len(data)]), np.array([0]), rule)[0])
    alone, row = words(prompt[:size]), words(prompt + answer)
    return row[: len(alone)] == alone and all(start >= size for start, _ in row[len(alone) :])


def moved(data: np.ndarray, border: Ints, first: Ints, rule: Rule) -> Ints:
    """Return int64: how many bytes of white space before each border begin the answer.

    Args:
        data: uint8, UTF-8.
        border, first: int64, positions in the data: where the answer starts, and the least that its border can be.
    """
    space, blank = run_before(data, border, first), run_before(data, border, first, _BLANK)
    if rule == "none":
        return space
    return np.where(space > np.maximum(blank, 1), 1, blank) if rule == "last" else blank


def run_before(data: np.ndarray, border: Ints, first: Ints, members: np.ndarray = SPACE) -> Ints:
    """Return int64: how many bytes right before each border, down to `first`, are members, bool [256]."""
    count = np.zeros(len(border), np.int64)
    active = np.flatnonzero(border > first)  # one byte further at a time, for all borders that are not done
    while len(active):
        active = active[members[data[border[active] - count[active] - 1]]]
        count[active] += 1
        active = active[border[active] - count[active] > first[active]]
    return count


REASONING, TOOL_CALL, CONTENT, STOP = PARTS = "reasoning", "tool_call", "content", "stop"
"""Parts of an answer that are counted apart; the last two only if `train_on` has weights by kind."""

IMAGE = "image"
"""The role of the tokens of an image, which are never trained."""

SPAN_ROLES = ("template", "system", "user", "assistant", "tool", "text", "input", "answer", *PARTS, IMAGE)
"""The roles; a span's `role` is an index into this tuple. Four are parts of the trained text of assistants,
which weights by kind can mask."""

KIND_PARTS = {"content": CONTENT, "reasoning": REASONING, "tool_calls": TOOL_CALL, "stop": STOP}
"""The part of an answer that each kind in `train_on` names."""

_SPEAKERS = np.array([SPAN_ROLES.index("assistant" if role in PARTS else role) for role in SPAN_ROLES], np.uint8)
IS_PART = np.array([role in PARTS for role in SPAN_ROLES])

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
"""One span.

- `start`, `end`: bytes of the text; tokens, after tokenization.
- `role`: index into `SPAN_ROLES`.
- `message`: index of the conversation's message, or of the template's column in sorted order; -1 for template text.
  Of adjacent spans with one message, the first is its content, the others are its stop.
- `weight`: training weight; 0 means not trained.
- `control`: whether the span is a control token; its text is the token's name.
"""

SPANS = pa.list_(SPAN)


@dataclass(frozen=True)
class Piece:
    """One part of all texts of a shape: the template's own text, or the rows' values of a column.

    Args:
        text: a literal, or None for the row's value of a column.
        column: index of the column, if `text` is None.
        role, message, weight, control: as in `SPAN`, with the role by name.
        part: one of `PARTS` for parts of an answer that have a role of their own in spans, else "".
        border: for an answer, the rule by which white space before it belongs to it; None: none does.
    """

    text: str | None
    column: int = -1
    role: str = "template"
    message: int = -1
    weight: float = 0.0
    control: bool = False
    part: str = ""
    border: Rule | None = None

    @property
    def is_answer(self) -> bool:
        """Whether it is trained text of the assistant."""
        return self.weight > 0 and self.role == "assistant"


def split_control(text: str, control: tuple[str, ...], **attributes: float | int | str) -> list[Piece]:
    """Split a template's literal into pieces, each control token in its own piece."""
    if not control or not text:
        return [Piece(text, **attributes)] * bool(text)  # pyright: ignore[reportArgumentType]
    parts, names = filter(None, re.split(any_control(control), text)), set(control)
    return [Piece(part, control=part in names, **attributes) for part in parts]  # pyright: ignore[reportArgumentType]


def any_control(control: tuple[str, ...]) -> str:
    """Return a pattern of control tokens, as a group, of which the longest counts."""
    longest_first = sorted(control, key=lambda token: (-len(token), token))
    return f"({'|'.join(map(re.escape, longest_first))})"


@dataclass(frozen=True)
class ShapePieces:
    """The pieces of a shape of conversations, without an added BOS.

    Args:
        slots: the template's slots.
        pieces: the text that the template writes.
        stopped: the same, with an added EOS if the template writes no stop.
        looks: what the template asks of the values.
    """

    slots: Sequence[Slot]
    pieces: list[Piece]
    stopped: list[Piece]
    looks: Looks

    @cached_property
    def parts(self) -> list[str]:
        """The outline of each piece of `stopped`; values are tracked."""
        slots = {slot.column: slot for slot in self.slots if slot.column >= 0}
        return [outline_of(piece, slots) for piece in self.stopped]

    @cached_property
    def text(self) -> str:
        """The outline."""
        return "".join(self.parts)


def outline_of(piece: Piece, slots: Mapping[int, Slot]) -> str:
    """Return the outline of a piece; values are tracked."""
    return slots[piece.column].mark if piece.text is None else piece.text


def assemble(
    rows: pa.Array,
    pieces: Sequence[Piece],
    columns: Sequence[pa.Array],
    weights: Mapping[str, float] | None = None,
    fill: Callable[[str], pa.Array | None] | None = None,
) -> pa.Table:
    """Make the texts and spans of rows whose texts have the same pieces.

    Args:
        rows: int32 [rows], row positions.
        pieces: the parts of each text, in order.
        columns: string arrays [rows] that the pieces refer to.
        weights: factors for the weights of each of `PARTS`, if every trained piece of an answer has a part; or None.
        fill: returns what a literal is in each row, as strings, or None if it is the same in all rows.

    Returns:
        a table of row position, `text` and `spans`.
    """
    count = len(rows)
    filled = [None if piece.text is None or fill is None else fill(piece.text) for piece in pieces]
    parts = [
        columns[piece.column] if piece.text is None else pa.scalar(piece.text, pa.string()) if texts is None else texts
        for piece, texts in zip(pieces, filled, strict=True)
    ]
    per_row = pa.repeat(pa.scalar("", pa.string()), count)  # literals alone would give one text, not one per row
    text = one_array(pc.binary_join_element_wise(per_row, *parts, ""))
    pieces, lengths = _with_inline_reasoning(pieces, columns, filled, count, weights is not None)
    weighed = [piece.weight * (weights[piece.part] if weights and piece.part else 1.0) for piece in pieces]
    if any(piece.border for piece in pieces):
        _move_borders(pieces, lengths, text)
    ends = np.cumsum(lengths, axis=1)
    solid = lengths > 0
    which = np.broadcast_to(np.arange(len(pieces)), lengths.shape)[solid]
    roles = np.array([SPAN_ROLES.index(piece.part or piece.role) for piece in pieces], np.uint8)
    messages = np.array([piece.message for piece in pieces], np.int32)
    control = np.array([piece.control for piece in pieces], bool)
    attributes = (column[which] for column in (roles, messages, np.array(weighed, np.float32), control))
    spans = span_lists(solid.sum(axis=1), (ends - lengths)[solid], ends[solid], *attributes)
    return pa.table({ROW: rows, "text": text, "spans": spans})


def _move_borders(pieces: Sequence[Piece], lengths: np.ndarray, text: pa.Array) -> None:
    """Give answers the white space before them; changes `lengths`, int64 [rows, pieces], in bytes."""
    for at, piece in enumerate(pieces):
        if piece.border is None or not at:
            continue
        last = (pieces[at - 1].text or "").encode()
        if last.strip():  # the same in all rows
            end, start = np.array([[len(last)], [0]])
            if not pieces[at - 1].control:
                same = int(moved(np.frombuffer(last, np.uint8), end, start, piece.border)[0])
                lengths[:, at - 1 : at + 1] += (-same, same)
            continue
        # values differ between rows, so the white space can reach over several pieces, down to the last control token
        closed = [number + 1 for number, other in enumerate(pieces[:at]) if other.control or other.role == piece.role]
        bounds, data = text_parts(text)
        first = bounds[:-1] + lengths[:, : max(closed, default=0)].sum(axis=1)
        missing = moved(data, bounds[:-1] + lengths[:, :at].sum(axis=1), first, piece.border)
        lengths[:, at] += missing
        for before in range(at - 1, -1, -1):
            if not missing.any():
                break
            taken = np.minimum(missing, lengths[:, before])
            lengths[:, before] -= taken
            missing = missing - taken


def _with_inline_reasoning(
    pieces: Sequence[Piece], columns: Sequence[pa.Array], filled: Sequence[pa.Array | None], count: int, tags: bool
) -> tuple[list[Piece], np.ndarray]:
    """Return the pieces, with trained contents divided at the bounds of their inline reasoning, and their lengths.

    Args:
        filled: the texts of literals that are not the same in all rows.
        tags: whether the tags around the reasoning belong to it.

    Returns:
        the pieces; and int64 [rows, pieces], in bytes.
    """
    divided: list[Piece] = []
    lengths: list[np.ndarray | int] = []
    for piece, own in zip(pieces, filled, strict=True):
        column = None if piece.text is not None else columns[piece.column]
        texts = own if column is None else column
        size = len((piece.text or "").encode()) if texts is None else np.diff(text_parts(texts)[0])
        answers = piece.is_answer and piece.part in ("", CONTENT)
        find = reasoning_bounds if tags else thought_bounds
        bounds = find(column) if answers and column is not None else None
        if bounds is None:
            divided.append(piece)
            lengths.append(size)
        else:
            bounds = np.maximum(bounds, 0)
            divided += [piece, replace(piece, part=REASONING), piece]
            lengths += [bounds[:, 0], bounds[:, 1] - bounds[:, 0], size - bounds[:, 1]]
    by_piece = np.empty((count, len(divided)), np.int64)
    for index, size in enumerate(lengths):
        by_piece[:, index] = size
    return divided, by_piece


def span_lists(counts: np.ndarray, *columns: np.ndarray) -> pa.Array:
    """Return a list array of spans.

    Args:
        counts: int [rows], the number of spans of each row.
        columns: the fields of `SPAN`, in order: flat, [spans] each.
    """
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SPAN, strict=True)]
    return list_array(offsets_of(counts), pa.StructArray.from_arrays(arrays, fields=list(SPAN))).cast(SPANS)


@dataclass(frozen=True)
class FlatSpans:
    """The spans of a chunk as flat columns; `offsets` is int64 [rows + 1], the first span of each row."""

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

    @property
    def columns(self) -> list[np.ndarray]:
        """The fields of `SPAN`, in order."""
        return [self.start, self.end, self.role, self.message, self.weight, self.control]

    @property
    def speaker(self) -> np.ndarray:
        """The roles, with `assistant` for the parts of its answers; uint8 [spans]."""
        return _SPEAKERS[self.role]


def flat_spans(spans: pa.Array | pa.ChunkedArray) -> FlatSpans:
    """Split a list array of spans into flat columns."""
    offsets, values = list_parts(spans)
    columns = [field.to_numpy(zero_copy_only=False) for field in values.flatten()]
    start, end = (column.astype(np.int64) for column in columns[:2])
    return FlatSpans(offsets, start, end, *columns[2:])


def partition_text(table: pa.Table) -> bool:
    """Return whether every row's spans partition its text."""
    return spans_cover(table["spans"], np.diff(text_parts(table["text"])[0]))


def spans_cover(spans: pa.Array | pa.ChunkedArray, lengths: np.ndarray) -> bool:
    """Return whether each row's spans partition [0, length); `lengths` is int64 [rows]."""
    offsets, values = list_parts(spans)
    start, end = (flat_numbers(field) for field in values.flatten()[:2])
    some = offsets[1:] > offsets[:-1]
    previous = np.zeros_like(start)
    previous[1:] = end[:-1]
    previous[offsets[:-1][some]] = 0
    last = np.zeros(len(some), np.int64)
    last[some] = end[offsets[1:][some] - 1]
    return bool((start == previous).all() and (end > start).all() and (last == lengths).all())


OPEN, CLOSE = "<think>", "</think>"

_PARTS = f"^(?s)(?P<before>(?:{OPEN})?\n*)(?P<thought>.*?)\n*{CLOSE}"


def inline_parts(content: str) -> tuple[str, str, str, str] | None:
    """Return a content with inline reasoning in parts; None if it has none, or several.

    Returns:
        the text before the reasoning, the reasoning, the text between it and the rest, and the rest. Line feeds next to
        `<think>` and `</think>` belong to the first and third part.
    """
    head, close, tail = content.partition(CLOSE)
    opening = OPEN if head.startswith(OPEN) else ""
    if not close or OPEN in head[len(opening) :] or OPEN in tail or CLOSE in tail:
        return None
    thought, rest = head[len(opening) :].strip("\n"), tail.lstrip("\n")
    start = len(head) - len(head[len(opening) :].lstrip("\n"))
    return head[:start], thought, content[start + len(thought) : len(content) - len(rest)], rest


def thought_bounds(contents: pa.Array) -> Ints | None:
    """Return where the inline reasoning of each content is, as `inline_parts` divides it; None if no content has any.

    Args:
        contents: string [rows].

    Returns:
        int64 [rows, 2], start and end in bytes; 0 and 0 for contents without inline reasoning.
    """
    return _inline_bounds(contents, f"^{OPEN}", _PARTS)[0] if holds(contents, CLOSE.encode()) else None


def reasoning_bounds(contents: pa.Array) -> Ints | None:
    """Return where the inline reasoning of each content is, with its tags and the line feeds after them.

    Args:
        contents: string [rows].

    Returns:
        int64 [rows, 2], start (always 0) and end in bytes; 0 and 0 for contents without inline reasoning, -1 and -1 for
        contents with tags in other places. None if no content has tags.
    """
    if not any(holds(contents, tag.encode()) for tag in (OPEN, CLOSE)):
        return None
    bounds, unclear = _inline_bounds(contents, rf"^\s*{OPEN}", rf"^(?s)(?P<before>)(?P<all>.*?{CLOSE}\n*)")
    bounds[unclear] = -1
    return bounds


def _inline_bounds(contents: pa.Array, opening: str, parts: str) -> tuple[Ints, Flags]:
    """Return the bounds of inline reasoning, int64 [rows, 2] in bytes, and which contents have other tags, bool [rows].

    Args:
        opening: a pattern for the opening tag, which some data omit.
        parts: a pattern with two groups: what comes before the reasoning, and the reasoning.
    """
    opens, closes = (pc.count_substring(contents, tag).to_numpy() for tag in (OPEN, CLOSE))
    # several thoughts, or tags within the answer, do not show what is reasoning
    rows = np.flatnonzero((closes == 1) & (opens == flags_of(pc.match_substring_regex(contents, opening))))
    before, thought = pc.extract_regex(contents.take(pa.array(rows)), parts).flatten()
    bounds, unclear = np.zeros((len(contents), 2), np.int64), (opens > 0) | (closes > 0)
    bounds[rows] = np.cumsum(np.column_stack([pc.binary_length(before), pc.binary_length(thought)]), axis=1)
    unclear[rows] = False
    return bounds, unclear
