"""Renders rows exactly as Jinja does, and verifies where each value is in the text.

Rows of one shape (the same roles, the same values empty) have the same pieces. One rendering with traced values finds
them: where each value is placed, whether it is trimmed, and what the template asks of it. Arrow's kernels then fill
them for all rows of the shape, and the texts are compared with Jinja's, byte for byte: of the rows whose values answer
all questions as the traced ones did, a sample; else every row. Answers are never found by searching for markers in the
text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.images import PartTexts, trimmed, with_texts
from tokenloom.assets.prompts.outline import ShapeError
from tokenloom.assets.prompts.row_fields import FieldTexts
from tokenloom.assets.prompts.spans import CLOSE, CONTENT, OPEN, REASONING, SPANS, Piece, assemble, reasoning_bounds
from tokenloom.assets.prompts.text_ranges import CutsOfRows, placed, with_ranges
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.errors import DeadlineError, TemplateError
from tokenloom.resources.tables.ragged import flags_of, holds, text_parts
from tokenloom.resources.templates.jinja import JinjaTemplate, Slot
from tokenloom.resources.templates.marks import MARKS, WHITE_SPACE, Looks, answers_alike

SAMPLED = 8
"""Smallest number of rows of each shape of a chunk that are compared with Jinja."""

_MARKS_PREFIX = MARKS[0].encode()[:2]
_MAY_BE_SPACE = np.zeros(256, bool)
_MAY_BE_SPACE[[char.encode()[0] for char in WHITE_SPACE]] = True

CodedReason = tuple[str, str]
"""Reject code and message of a row."""
CHANGED: CodedReason = (
    "unverified_spans",
    "the template changes a value by more than trimming it; put reasoning in its own field, or use a chat template "
    "with {% generation %} marks",
)
_UNDIVIDED: CodedReason = (
    "kind_unknown",
    f"a trained content has {OPEN} or {CLOSE} other than around its start, so that it is not clear what of it is "
    "reasoning, whose weight differs; put the reasoning in its own field, or give both the same weight in "
    "prompt_template.train_on",
)

UNVERIFIED_RANGES = "parts of a text have weights of their own, but the template does not write the text unchanged"
PRIVATE_USE: CodedReason = "private_use", "a value contains private-use characters U+E0D0 to U+E0D3"


class Layout(NamedTuple):
    """What the texts of a shape consist of.

    Args:
        slots: the template's slots.
        looks: what the template asks of values; None if that is unknown, so that every row has to be compared.
        pieces: the text that the template writes.
        complete: the same pieces with BOS and EOS added.
    """

    slots: Sequence[Slot]
    looks: Looks | None
    pieces: list[Piece]
    complete: list[Piece]


Variables = Callable[..., dict[str, Any]]
"""Returns the template's variables for the values of the row at a place of its shape; can raise a `ShapeError`."""


@dataclass(frozen=True)
class Shape:
    """Rows whose texts have the same pieces.

    Args:
        rows: int32 [rows], row positions.
        values: one string array [rows] for each value that the template places.
        empty: for each value, whether it is empty (in all rows).
        variables: the template's variables for the values of the row at a place, and for marks without a place.
        layout: returns what the texts consist of; can raise a `TemplateError`.
        optional: indices of values that the template can omit.
        readings: for rows whose values the template does not place whole, given as int64 [rows], their positions:
            yields the positions of some of them, and these rows with other values.
        template: renders these rows in place of the template of all rows, or None.
        cuts: for values with weighted ranges, the ranges in bytes by row position.
        weights: factors for the weights of the parts of answers, or None; see `assemble`.
        filler: for rows that also differ in fields: these; or None.
        remedy: returns what else than another template helps if the template omits a value, or "".
    """

    rows: pa.Array
    values: Sequence[pa.Array]
    empty: Sequence[bool]
    variables: Variables
    layout: Callable[[], Layout]
    optional: Sequence[int] = ()
    readings: Callable[[np.ndarray], Iterator[tuple[np.ndarray, Shape]]] | None = None
    template: JinjaTemplate | None = None
    cuts: Mapping[int, CutsOfRows] = field(default_factory=dict)
    weights: Mapping[str, float] | None = None
    filler: FieldTexts | None = None
    remedy: Callable[[], str] | None = None


def render_verified(
    template: JinjaTemplate, shapes: Iterator[Shape], rows_in: int, texts: PartTexts | None = None
) -> ChunkOutput:
    """Render all rows and verify their spans; reject rows whose spans cannot be verified.

    Args:
        texts: the texts of content parts, whose placeholders are in the values of shapes.
    """
    texts = texts or PartTexts()
    tables, rejects = [pa.schema([(ROW, pa.int32()), ("text", pa.string()), ("spans", SPANS)]).empty_table()], []
    for shape in shapes:
        table, refused = _render_shape(shape.template or template, shape, texts)
        tables.append(table)
        rejects += refused
    table = pa.concat_tables(tables)
    return ChunkOutput(table.take(pc.sort_indices(table[ROW])).combine_chunks(), rows_in, join_rejects(rejects))


def _render_shape(template: JinjaTemplate, shape: Shape, texts: PartTexts) -> tuple[pa.Table, list[pa.Table]]:
    count = len(shape.rows)

    def refuse(rows: np.ndarray, code: str, message: str) -> pa.Table:
        shown = shape.values[-1].take(pa.array(rows)) if shape.values else [""] * len(rows)
        return reject_rows(shape.rows.take(pa.array(rows)), "prompts", code, "", message, shown)

    try:
        slots, looks, pieces, complete = shape.layout()
        if any(slot.escaped and slot.value in shape.cuts for slot in slots):
            raise ShapeError("unverified_ranges", UNVERIFIED_RANGES)
        check_marks(slots, len(shape.values))
        columns = [slot.place(shape.values[slot.value]) for slot in slots if slot.value >= 0]
        fill = None if shape.filler is None else shape.filler.fill
        bare = assemble(shape.rows, pieces, columns, shape.weights, fill)
    except DeadlineError as error:
        error.row = shape.rows[0].as_py()
        raise
    except TemplateError as error:
        code = error.code if isinstance(error, ShapeError) else "template_refused"
        return _no_rows(), [refuse(np.arange(count), code, str(error))]
    written = {slot.value for slot in slots}
    written.update(shape.optional)
    omitted = [index for index, empty in enumerate(shape.empty) if not empty and index not in written]
    if omitted:
        remedy = shape.remedy() if shape.remedy else ""
        message = f"the template omits value {omitted[0]}{remedy and f'; {remedy}'}"
        return _no_rows(), [refuse(np.arange(count), "content_dropped", message)]
    marked = _marked_rows(shape)
    doubtful = marked | _doubtful_rows(shape, looks)
    if texts.texts:
        doubtful |= np.isin(shape.rows.to_numpy(), list(texts.texts))
    compared = np.flatnonzero(doubtful | _evenly_spaced(count))
    text = bare["text"]
    problems = _compare(template, shape, compared, text, marked, texts)
    if any(problem and not doubtful[row] for row, problem in zip(compared, problems, strict=True)):
        compared = np.arange(count)  # the template does more than its looks show
        problems = _compare(template, shape, compared, text, marked, texts)
    refused_rows: dict[CodedReason, list[int]] = {}
    for row, problem in zip(compared.tolist(), problems, strict=True):
        if problem:
            refused_rows.setdefault(problem, []).append(row)
    tables, refused = [], []
    if CHANGED in refused_rows and shape.readings is not None:
        tables, refused, rest = _read_otherwise(template, shape, np.array(refused_rows.pop(CHANGED)), texts)
        refused_rows |= {CHANGED: rest} if rest else {}
    kept = np.ones(count, bool)
    kept[compared[[problem is not None for problem in problems]]] = False
    if undivided := np.flatnonzero(kept & _undivided(shape, pieces, columns)).tolist():
        refused_rows[_UNDIVIDED] = undivided
        kept[undivided] = False
    refused += [refuse(np.array(rows), *problem) for problem, rows in refused_rows.items()]
    cuts = _cuts_of_columns(shape, slots)
    if not refused and not tables and complete == pieces:
        return with_ranges(bare, pieces, columns, cuts, shape.weights), []
    keep = pa.array(kept)
    columns = [column.filter(keep) for column in columns]
    filler = shape.filler if shape.filler is None or kept.all() else shape.filler.taken(np.flatnonzero(kept).tolist())
    own = assemble(shape.rows.filter(keep), complete, columns, shape.weights, filler and filler.fill)
    own = with_ranges(own, complete, columns, cuts, shape.weights)
    return pa.concat_tables([own, *tables]), refused


def check_marks(slots: Sequence[Slot], count: int) -> None:
    """Check that slots have no other values than the first `count`.

    Raises:
        ShapeError: the data have marks outside of values, such as in the arguments of a call.
    """
    if any(slot.value >= count for slot in slots):
        raise ShapeError(*PRIVATE_USE)


def _cuts_of_columns(shape: Shape, slots: Sequence[Slot]) -> dict[int, CutsOfRows]:
    """Return the ranges of the text in each column of the pieces, by row position."""
    places = {row: place for place, row in enumerate(shape.rows.to_pylist())} if shape.cuts else {}
    return {
        slot.column: {
            row: placed(ranges, slot, shape.values[slot.value][places[row]].as_py())
            for row, ranges in shape.cuts[slot.value].items()
        }
        for slot in slots
        if slot.value in shape.cuts
    }


def _read_otherwise(
    template: JinjaTemplate, shape: Shape, rows: np.ndarray, texts: PartTexts
) -> tuple[list[pa.Table], list[pa.Table], list[int]]:
    """Render rows with other values, in each way that `readings` offers.

    Returns:
        the texts of the rows that a reading renders; the rejects of the others, by their first reading; and the rows
        without a reading.
    """
    tables: list[pa.Table] = []
    rejects: list[pa.Table] = []
    left = set(rows.tolist())
    refused: set[int] = set()
    for index, reading in shape.readings(rows) if shape.readings else ():
        table, reasons = _render_shape(reading.template or template, reading, texts)
        places = dict(zip(reading.rows.to_pylist(), index.tolist(), strict=True))
        fresh = pa.array([places[row] in left for row in table[ROW].to_pylist()], pa.bool_())
        tables.append(table.filter(fresh))
        left -= {places[row] for row in table[ROW].to_pylist()}
        for reason in reasons:
            first = pa.array([places[row] not in refused for row in reason[ROW].to_pylist()], pa.bool_())
            rejects.append(reason.filter(first))
            refused |= {places[row] for row in reason[ROW].to_pylist()}
    rendered = shape.rows.take(pa.array(sorted(set(rows.tolist()) - left), pa.int64()))
    rejects = [reason.filter(pc.invert(pc.is_in(reason[ROW], rendered))) for reason in rejects]
    return tables, rejects, sorted(left - refused)


def _undivided(shape: Shape, pieces: Sequence[Piece], columns: Sequence[pa.Array]) -> np.ndarray:
    """Return bool [rows]: whether it is unknown what of a trained content is reasoning, and the weights differ."""
    found = np.zeros(len(shape.rows), bool)
    if shape.weights and shape.weights[REASONING] != shape.weights[CONTENT]:
        contents = (columns[piece.column] for piece in pieces if piece.text is None and piece.part == CONTENT)
        for bounds in map(reasoning_bounds, contents):
            found |= False if bounds is None else bounds[:, 1] < 0
    return found


def _evenly_spaced(count: int) -> np.ndarray:
    """Return bool [count]: `SAMPLED` rows of a shape, evenly spaced."""
    chosen = np.zeros(count, bool)
    chosen[np.linspace(0, count - 1, min(count, SAMPLED)).astype(np.int64)] = True
    return chosen


def _doubtful_rows(shape: Shape, looks: Looks | None) -> np.ndarray:
    """Return bool [rows]: whether the template can do something else with a row's values than with those that it got.

    That is so if they answer one of its questions otherwise, and of all rows if it does more than ask.
    """
    if looks is None or looks.reason is not None:
        return np.ones(len(shape.rows), bool)
    alike = answers_alike(looks.answers, shape.values)
    return _blank_rows(shape) | (False if alike is None else ~flags_of(alike))


def _blank_rows(shape: Shape) -> np.ndarray:
    """Return bool [rows]: whether a value is white space only, so that the template can treat it as empty."""
    blank = np.zeros(len(shape.rows), bool)
    for value, empty in zip(shape.values, shape.empty, strict=True):
        if empty:
            continue
        offsets, data = text_parts(value)
        spaced = np.flatnonzero(_MAY_BE_SPACE[data[offsets[:-1]]])
        trimmed = pc.utf8_trim(value.take(pa.array(spaced)), characters=WHITE_SPACE)
        blank[spaced[np.asarray(pc.equal(trimmed, "").to_numpy(zero_copy_only=False), bool)]] = True
    return blank


def _marked_rows(shape: Shape) -> np.ndarray:
    """Return bool [rows]: whether a value contains a character of `MARKS`."""
    marked = np.zeros(len(shape.rows), bool)
    for value in shape.values:
        if holds(value, _MARKS_PREFIX):
            matches = pc.match_substring_regex(value, f"[{''.join(MARKS)}]")
            marked |= np.asarray(matches.to_numpy(zero_copy_only=False), bool)
    return marked


def _compare(
    template: JinjaTemplate,
    shape: Shape,
    rows: np.ndarray,
    texts: pa.ChunkedArray,
    marked: np.ndarray,
    parts: PartTexts,
) -> list[CodedReason | None]:
    """Render some rows with Jinja, and return for each why its text differs, or None.

    Args:
        rows: int64, indices into the shape's rows.
    """
    index = pa.array(rows)
    taken = [value.take(index).to_pylist() for value in shape.values]
    values = zip(*taken, strict=True) if taken else iter([()] * len(rows))
    expected = texts.take(index).to_pylist()
    numbers = shape.rows.take(index).to_pylist()
    problems: list[CodedReason | None] = []
    try:
        for at, row, row_values, text in zip(rows.tolist(), numbers, values, expected, strict=True):
            problems.append(PRIVATE_USE if marked[at] else _verify(template, shape, at, row_values, text, parts, row))
    except DeadlineError as error:
        error.row = shape.rows[int(rows[len(problems)])].as_py()
        raise
    return problems


def _verify(
    template: JinjaTemplate, shape: Shape, at: int, values: Sequence[str], expected: str, parts: PartTexts, row: int
) -> CodedReason | None:
    """Compare one row's text with Jinja's, also with its own texts in content parts; return the problem, or None."""
    try:
        variables = shape.variables(values, at)
        if template.render(variables) != expected:
            return CHANGED
        if row not in parts.texts:
            return None
        texts = parts.texts[row]
        written = template.render({**variables, "messages": with_texts(variables["messages"], texts)})
    except TemplateError as error:
        return "template_refused", str(error)
    if written == with_texts(expected, texts):
        return None
    if written == with_texts(expected, trimmed(texts)):
        parts.trim(row)
        return None
    return CHANGED


def _no_rows() -> pa.Table:
    return assemble(pa.array([], pa.int32()), [], [])
