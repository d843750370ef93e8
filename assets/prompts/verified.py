"""Renders rows through Jinja and proves where each value went.

Rows of one shape (the same roles, the same values empty) share a layout, found by probing the template: where it puts
each value, and whether it trims it. A row goes on only when its layout, filled with its own values, equals what Jinja
makes of them, byte for byte. Markers inside the data are never searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import SPANS, Piece, assemble
from tokenloom.assets.rejects import ROW, join_rejects, reject_rows
from tokenloom.assets.stage import ChunkOutput
from tokenloom.assets.templates.jinja import MARKS, JinjaTemplate, Slot
from tokenloom.errors import SpansError, TemplateError

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
    """

    rows: pa.Array
    values: Sequence[pa.Array]
    empty: Sequence[bool]
    variables: Callable[[Sequence[str]], dict[str, Any]]
    layout: Layout


def render_verified(template: JinjaTemplate, shapes: Iterator[Shape], rows_in: int) -> ChunkOutput:
    """Texts and spans of all rows whose spans could be verified; the others are rejected."""
    tables, rejects = [pa.schema([(ROW, pa.int32()), ("text", pa.string()), ("spans", SPANS)]).empty_table()], []
    for shape in shapes:
        table, refused = _render_shape(template, shape)
        tables.append(table)
        rejects += refused
    table = pa.concat_tables(tables)
    return ChunkOutput(table.take(pc.sort_indices(table[ROW])).combine_chunks(), rows_in, join_rejects(rejects))


def _render_shape(template: JinjaTemplate, shape: Shape) -> tuple[pa.Table, list[pa.Table]]:
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
    lost = [index for index, nothing in enumerate(shape.empty) if not nothing and index not in placed]
    if lost:
        return _nothing(), [refuse(np.arange(count), "content_dropped", f"the template leaves out value {lost[0]}")]
    columns = [_placed(slot, shape.values[slot.value]) for slot in slots if slot.value >= 0]
    expected = assemble(shape.rows, pieces, columns)["text"].to_pylist()
    rows = zip(*(value.to_pylist() for value in shape.values), strict=True) if shape.values else iter([()] * count)
    problems = [_verify(template, shape, values, text) for values, text in zip(rows, expected, strict=True)]
    refused = [refuse(np.array([row]), *problem) for row, problem in enumerate(problems) if problem]
    kept = pa.array([problem is None for problem in problems], pa.bool_())
    return assemble(shape.rows.filter(kept), complete, [column.filter(kept) for column in columns]), refused


def _verify(template: JinjaTemplate, shape: Shape, values: Sequence[str], expected: str) -> tuple[str, str] | None:
    """Compare one row with Jinja; returns the code and message of what is wrong, or None."""
    if any(mark in value for value in values for mark in MARKS):
        return "private_use", "a value holds private-use characters U+E0D0 to U+E0D3"
    try:
        if template.render(shape.variables(values)) == expected:
            return None
    except TemplateError as error:
        return "template_refused", str(error)
    return "unverified_spans", "the template changes a value by more than trimming it"


def _placed(slot: Slot, values: pa.Array) -> pa.Array:
    """The values as the template places them."""
    return values if not slot.trims else pa.array([slot.place(value) for value in values.to_pylist()], pa.string())


def _nothing() -> pa.Table:
    return assemble(pa.array([], pa.int32()), [], [])
