"""Renders rows of columns through the YAML's Jinja template.

The template gets Python's values. Text is placed: the template is probed with a mark in its stead. So are numbers and
other scalars, as their `str`, while the template only writes them; if it does more with them, and for None, lists and
objects, a shape has the value itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.answer_border import Rule
from tokenloom.assets.prompts.layout import column_numbers, split_control, with_bos, with_eos
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.verify import Shape, ShapeError, render_verified
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.resources.tables.json_text import python_values
from tokenloom.resources.tables.ragged import Ints, one_array
from tokenloom.resources.templates.jinja import JinjaTemplate, Slot
from tokenloom.resources.templates.static_analysis import Kind

_EMPTY, _FILLED = 0, 1


@dataclass(frozen=True)
class _Field:
    """The values of one column.

    Args:
        texts: strings [rows], what the template is assumed to write; "" for constants.
        state: int64 [rows]: `_EMPTY` or `_FILLED` for text, else an index into `objects`, counted from 2.
        objects: for each further state the values by their text if they are placed, else the constant.
    """

    texts: pa.Array
    state: Ints
    objects: Sequence[Mapping[str, Any] | _Constant] = ()

    def object(self, state: int) -> Mapping[str, Any] | _Constant:
        """Return the values of a state by their text, or its constant."""
        return self.objects[state - 2] if state > _FILLED else {}


@dataclass(frozen=True)
class _Constant:
    """A value that is the same in all rows of a shape."""

    value: Any


def _field(column: pa.Array, placed: bool) -> _Field:
    """Return the values of a column.

    Args:
        placed: whether scalars other than text are placed.
    """
    if pa.types.is_string(column.type):
        filled = pc.not_equal(column, "").cast(pa.int64()).fill_null(2)
        return _Field(column.fill_null(""), np.asarray(filled), [_Constant(None)])
    texts, states, known, objects = [], [], {}, []
    for value in python_values(column):
        if isinstance(value, str):
            texts.append(value)
            states.append(_FILLED if value else _EMPTY)
            continue
        is_placed = placed and not isinstance(value, None | list | dict | bytes)
        key = (type(value), bool(value)) if is_placed else repr(value)
        if key not in known:
            known[key] = len(objects) + 2
            objects.append({} if is_placed else _Constant(value))
        texts.append(str(value) if is_placed else "")
        states.append(known[key])
        if is_placed:
            objects[known[key] - 2][texts[-1]] = value
    return _Field(pa.array(texts, pa.string()), np.array(states, np.int64), objects)


@dataclass(frozen=True)
class FieldsFormat:
    """A Jinja template over columns, and what of its text is trained.

    Args:
        template: the compiled template.
        fields: names of the columns that it reads.
        label: the column that is trained if the template has no `{% generation %}` blocks, or None.
        train_all: whether every byte is trained.
        tokens, control, bos, eos: as in `ChatFormat`.
        border: which white space before the label belongs to it; what `{% generation %}` marks stays as marked.
    """

    template: JinjaTemplate
    fields: tuple[str, ...]
    label: str | None
    train_all: bool
    tokens: dict[str, str]
    control: tuple[str, ...]
    bos: str | None
    eos: str | None
    border: Rule | None = None

    def render(self, table: pa.Table) -> ChunkOutput:
        """Render a chunk of fields."""
        out = self._rendered(table, placed=True)
        is_scalar = [not pa.types.is_string(table[name].type) for name in self.fields]
        if not out.rejects.num_rows or not any(is_scalar):
            return out
        again = table.filter(pc.is_in(table[ROW], one_array(out.rejects[ROW]))).combine_chunks()
        rest = self._rendered(again, placed=False)
        tables = pa.concat_tables([out.table, rest.table])
        whole = tables.take(pc.sort_indices(tables[ROW])).combine_chunks()
        return ChunkOutput(whole, table.num_rows, join_rejects([rest.rejects]))

    def _rendered(self, table: pa.Table, placed: bool) -> ChunkOutput:
        shapes = self._shapes(table, placed)
        return render_verified(self.template, shapes, table.num_rows, self.opacity is None)

    @cached_property
    def opacity(self) -> str | None:
        """The reason why the template does more than place columns, or None if it only places them."""
        return self.template.opacity(dict.fromkeys(self.fields, Kind.CONTENT))

    def _shapes(self, table: pa.Table, placed: bool) -> Iterator[Shape]:
        rows = one_array(table[ROW])
        fields = [_field(one_array(table[name]), placed or name == self.label) for name in self.fields]
        states = np.stack([field.state for field in fields], axis=1) if fields else np.zeros((len(rows), 0), np.int64)
        patterns, which = np.unique(states, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns.tolist()):
            members = pa.array(np.flatnonzero(which == number))
            objects = [field.object(state) for field, state in zip(fields, pattern, strict=True)]
            empty = [
                state == _EMPTY or isinstance(object, _Constant) for state, object in zip(pattern, objects, strict=True)
            ]
            yield Shape(
                rows.take(members),
                [field.texts.take(members) for field in fields],
                empty,
                lambda values, objects=objects: self._variables(values, objects),
                lambda slots, objects=objects: self._layout(slots, objects),
            )

    def _variables(self, values: Sequence[str], objects: Sequence[Mapping[str, Any] | _Constant]) -> dict[str, Any]:
        given = [
            found.value if isinstance(found, _Constant) else found.get(value, value)
            for value, found in zip(values, objects, strict=True)
        ]
        return {**self.tokens, **dict(zip(self.fields, given, strict=True))}

    def _check(self, objects: Sequence[Mapping[str, Any] | _Constant]) -> None:
        """Raise a ShapeError for a value that cannot be in the template's own text."""
        for name, found in zip(self.fields, objects, strict=True):
            if not isinstance(found, _Constant) or found.value is None:
                continue
            if name == self.label and not self.template.marks_generation:
                raise ShapeError("not_text", f"{name} is what is trained, but it is neither text nor a number")
            if any(token in text for text in _strings(found.value) for token in self.control):
                message = f"a value within {name} contains a control token's text"
                raise ShapeError("control_token_in_content", message)

    def _layout(
        self, slots: list[Slot], objects: Sequence[Mapping[str, Any] | _Constant]
    ) -> tuple[list[Piece], list[Piece]]:
        self._check(objects)
        numbers = column_numbers(self.fields)
        pieces: list[Piece] = []
        for slot in slots:
            name = self.fields[slot.value] if slot.value >= 0 else None
            answer = slot.generated > 0 if self.template.marks_generation else name is not None and name == self.label
            weight, role = (
                float(answer or self.train_all),
                "answer" if answer else "template" if name is None else "input",
            )
            if name is None:
                pieces += split_control(slot.text, self.control, weight=weight, role=role)
            else:
                border = self.border if answer and not self.template.marks_generation else None
                pieces.append(Piece(None, slot.column, role, numbers[name], weight, border=border))
        last = max((index for index, piece in enumerate(pieces) if piece.weight), default=len(pieces) - 1)
        stopped = bool(pieces) and pieces[last].control
        return pieces, with_bos(pieces if stopped else with_eos(pieces, last + 1, self.eos), self.bos)


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings within a value, and of other scalars their `str`."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    else:
        yield str(value)
