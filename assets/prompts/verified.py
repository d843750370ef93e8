"""Renders rows through Jinja and proves where each value went.

Rows of one shape (the same roles, the same values empty) share a layout, found by probing the template. A row goes
on only when its layout, filled with its own values, equals what Jinja makes of them, byte for byte. A template may
trim a value; the value then counts as trimmed. Markers inside the data are never searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.jinja import MARKS, JinjaTemplate, Slot
from tokenloom.assets.prompts.spans import SPANS, Piece, assemble
from tokenloom.assets.rejects import ROW, join_rejects, reject_rows
from tokenloom.assets.stage import ChunkOutput
from tokenloom.errors import TemplateError

Layout = Callable[[list[Slot]], tuple[list[Piece], list[Piece]]]
"""From a template's slots to its pieces, and to the pieces with BOS and EOS added."""

_TRIMS: tuple[Callable[[str], str], ...] = (lambda value: value, str.strip, str.rstrip, str.lstrip)


@dataclass(frozen=True)
class Shape:
    """Rows that share a layout.

    Args:
        rows: int32 row positions.
        values: one string array for each value that the template places.
        probe: the template's variables with `mark(i)` in place of value i.
        variables: the template's variables for one row's values.
        layout: makes pieces of the template's slots.
    """

    rows: pa.Array
    values: Sequence[pa.Array]
    probe: dict[str, Any]
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
        slots = template.probe(shape.probe)
        lost = [
            index
            for index in range(len(shape.values))
            if index not in {slot.value for slot in slots} and _any_text(shape.values[index])
        ]
        pieces, complete = shape.layout(slots)
    except TemplateError as error:
        return _nothing(), [refuse(np.arange(count), "template_refused", str(error))]
    if lost:
        return _nothing(), [refuse(np.arange(count), "content_dropped", f"the template leaves out value {lost[0]}")]
    columns = [value.to_pylist() for value in shape.values]
    expected = assemble(shape.rows, pieces, shape.values)["text"].to_pylist()
    refused: list[pa.Table] = []
    kept = np.ones(count, bool)
    for row, values in enumerate(zip(*columns, strict=True) if columns else [()] * count):
        problem = _verify(template, shape, pieces, values, expected[row], columns, row)
        if problem:
            kept[row] = False
            refused.append(refuse(np.array([row]), *problem))
    rows = shape.rows.filter(pa.array(kept))
    arrays = [pa.array(column, pa.string()).filter(pa.array(kept)) for column in columns]
    return assemble(rows, complete, arrays), refused


def _verify(
    template: JinjaTemplate,
    shape: Shape,
    pieces: list[Piece],
    values: Sequence[str],
    expected: str,
    columns: list[list[str]],
    row: int,
) -> tuple[str, str] | None:
    """Compare one row with Jinja; trimmed values are put into `columns`. Returns a code and message, or None."""
    if any(mark in value for value in values for mark in MARKS):
        return "private_use", "a value holds private-use characters U+E0D0 to U+E0D3"
    try:
        found = template.render(shape.variables(values))
    except TemplateError as error:
        return "template_refused", str(error)
    if found == expected:
        return None
    trimmed = _fit(found, pieces, values)
    if trimmed is None:
        return "unverified_spans", "the template changes a value by more than trimming it"
    for index, value in enumerate(trimmed):
        columns[index][row] = value
    return None


def _fit(found: str, pieces: Sequence[Piece], values: Sequence[str]) -> list[str] | None:
    """The values as the template placed them, whole or trimmed, or None where no trimming explains the text."""
    placed, at = list(values), 0
    fixed: set[int] = set()
    for index, piece in enumerate(pieces):
        if piece.text is not None:
            if not found.startswith(piece.text, at):
                return None
            at += len(piece.text)
            continue
        following = next((later.text for later in pieces[index + 1 :]), "")
        options = (
            (placed[piece.column],) if piece.column in fixed else tuple(trim(values[piece.column]) for trim in _TRIMS)
        )
        for option in options:
            if found.startswith(option, at) and found.startswith(following or "", at + len(option)):
                placed[piece.column] = option
                fixed.add(piece.column)
                at += len(option)
                break
        else:
            return None
    return placed if at == len(found) else None


def _any_text(values: pa.Array) -> bool:
    return bool(pc.any(pc.not_equal(values, "")).as_py())


def _nothing() -> pa.Table:
    return assemble(pa.array([], pa.int32()), [], [])
