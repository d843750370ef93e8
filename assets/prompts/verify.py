"""Renders rows as Jinja would and proves where each value went.

Rows of one shape (the same roles, the same values empty) share a layout, found by probing the template: where it puts
each value, and whether it trims it. Of a template whose syntax shows that it does no more than that, the layout of
every row is filled by Arrow's kernels, and a sample of each shape is compared with what Jinja makes of it, byte for
byte; of any other template every row is. Markers inside the data are never searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import SPANS, Piece, assemble
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.errors import SpansError, TemplateError
from tokenloom.resources.tables.ragged import text_parts
from tokenloom.resources.templates.jinja import MARKS, WHITE_SPACE, JinjaTemplate, Slot

SAMPLED = 16
"""Rows of each shape of a chunk that are compared with Jinja at least."""

_MARKS_BEGIN = MARKS[0].encode()[:2]
_MAY_BE_SPACE = np.zeros(256, bool)
_MAY_BE_SPACE[[char.encode()[0] for char in WHITE_SPACE]] = True

Problem = tuple[str, str]
"""Code and message of what is wrong with a row."""
_PRIVATE_USE: Problem = "private_use", "a value holds private-use characters U+E0D0 to U+E0D3"

Layout = Callable[[list[Slot]], tuple[list[Piece], list[Piece]]]
"""From a template's slots to its pieces, and to the pieces with BOS and EOS added."""


class ShapeError(TemplateError):
    """The rows of a shape cannot be used; `code` says why."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Shape:
    """Rows that share a layout.

    Args:
        rows: int32 row positions.
        values: one string array for each value that the template places.
        empty: which of the values are empty, in all rows.
        variables: the template's variables for one row's values; may raise a `ShapeError`.
        layout: makes pieces of the template's slots; a piece's column is its slot's. May raise a `ShapeError`.
        optional: values that the template may leave out.
    """

    rows: pa.Array
    values: Sequence[pa.Array]
    empty: Sequence[bool]
    variables: Callable[[Sequence[str]], dict[str, Any]]
    layout: Layout
    optional: Sequence[int] = ()


def render_verified(template: JinjaTemplate, shapes: Iterator[Shape], rows_in: int, places_only: bool) -> ChunkOutput:
    """Texts and spans of all rows whose spans could be verified; the others are rejected.

    Args:
        places_only: whether the template's syntax shows that it only places values: a sample is compared then.
    """
    tables, rejects = [pa.schema([(ROW, pa.int32()), ("text", pa.string()), ("spans", SPANS)]).empty_table()], []
    for shape in shapes:
        table, refused = _render_shape(template, shape, places_only)
        tables.append(table)
        rejects += refused
    table = pa.concat_tables(tables)
    return ChunkOutput(table.take(pc.sort_indices(table[ROW])).combine_chunks(), rows_in, join_rejects(rejects))


def _render_shape(template: JinjaTemplate, shape: Shape, places_only: bool) -> tuple[pa.Table, list[pa.Table]]:
    count = len(shape.rows)

    def refuse(rows: np.ndarray, code: str, message: str) -> pa.Table:
        shown = shape.values[-1].take(pa.array(rows)) if shape.values else [""] * len(rows)
        return reject_rows(shape.rows.take(pa.array(rows)), "prompts", code, "", message, shown)

    try:
        slots = template.probe(shape.variables, shape.empty)
        pieces, complete = shape.layout(slots)
    except TemplateError as error:
        code = "unverified_spans" if isinstance(error, SpansError) else "template_refused"
        code = error.code if isinstance(error, ShapeError) else code
        return _nothing(), [refuse(np.arange(count), code, str(error))]
    placed = {slot.value for slot in slots}
    placed.update(shape.optional)
    lost = [index for index, nothing in enumerate(shape.empty) if not nothing and index not in placed]
    if lost:
        return _nothing(), [refuse(np.arange(count), "content_dropped", f"the template leaves out value {lost[0]}")]
    columns = [slot.place(shape.values[slot.value]) for slot in slots if slot.value >= 0]
    marked = _marked_rows(shape)
    odd = marked | _blank_rows(shape) if places_only else np.ones(count, bool)
    compared = np.flatnonzero(odd | _evenly_spaced(count))
    bare = assemble(shape.rows, pieces, columns)
    text = bare["text"]
    problems = _compare(template, shape, compared, text, marked)
    if any(problem and not odd[row] for row, problem in zip(compared, problems, strict=True)):
        compared = np.arange(count)  # the template does more than its syntax showed
        problems = _compare(template, shape, compared, text, marked)
    refused_rows: dict[Problem, list[int]] = {}
    for row, problem in zip(compared.tolist(), problems, strict=True):
        if problem:
            refused_rows.setdefault(problem, []).append(row)
    refused = [refuse(np.array(rows), *problem) for problem, rows in refused_rows.items()]
    if not refused and complete == pieces:
        return bare, []
    kept = np.ones(count, bool)
    kept[compared[[problem is not None for problem in problems]]] = False
    keep = pa.array(kept)
    return assemble(shape.rows.filter(keep), complete, [column.filter(keep) for column in columns]), refused


def _evenly_spaced(count: int) -> np.ndarray:
    """bool [count]: some rows of a shape."""
    chosen = np.zeros(count, bool)
    chosen[np.linspace(0, count - 1, min(count, SAMPLED)).astype(np.int64)] = True
    return chosen


def _blank_rows(shape: Shape) -> np.ndarray:
    """bool [rows]: those with a value of white space only: its place does not tell all."""
    blank = np.zeros(len(shape.rows), bool)
    for value, nothing in zip(shape.values, shape.empty, strict=True):
        if nothing:
            continue
        offsets, data = text_parts(value)
        spaced = np.flatnonzero(_MAY_BE_SPACE[data[offsets[:-1]]])
        trimmed = pc.utf8_trim(value.take(pa.array(spaced)), characters=WHITE_SPACE)
        blank[spaced[np.asarray(pc.equal(trimmed, "").to_numpy(zero_copy_only=False), bool)]] = True
    return blank


def _marked_rows(shape: Shape) -> np.ndarray:
    """bool [rows]: those with a mark in a value."""
    marked = np.zeros(len(shape.rows), bool)
    for value in shape.values:
        if _MARKS_BEGIN in text_parts(value)[1].tobytes():
            found = pc.match_substring_regex(value, f"[{''.join(MARKS)}]")
            marked |= np.asarray(found.to_numpy(zero_copy_only=False), bool)
    return marked


def _compare(
    template: JinjaTemplate, shape: Shape, rows: np.ndarray, texts: pa.ChunkedArray, marked: np.ndarray
) -> list[Problem | None]:
    """For each of some rows what is wrong with it, or None."""
    index = pa.array(rows)
    taken = [value.take(index).to_pylist() for value in shape.values]
    values = zip(*taken, strict=True) if taken else iter([()] * len(rows))
    expected = texts.take(index).to_pylist()
    return [
        _PRIVATE_USE if private else _verify(template, shape, found, text)
        for found, text, private in zip(values, expected, marked[rows].tolist(), strict=True)
    ]


def _verify(template: JinjaTemplate, shape: Shape, values: Sequence[str], expected: str) -> Problem | None:
    """Compare one row with Jinja."""
    try:
        if template.render(shape.variables(values)) == expected:
            return None
    except TemplateError as error:
        return "template_refused", str(error)
    return "unverified_spans", "the template changes a value by more than trimming it"


def _nothing() -> pa.Table:
    return assemble(pa.array([], pa.int32()), [], [])
