"""Renders rows of columns through the YAML's Jinja template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.layout import column_numbers, split_control, with_bos, with_eos
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.verify import Shape, render_verified
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import one_array
from tokenloom.resources.templates.jinja import JinjaTemplate, Slot
from tokenloom.resources.templates.static_analysis import Kind


@dataclass(frozen=True)
class FieldsFormat:
    """A Jinja template over columns, and what of its text is trained.

    Args:
        template: the compiled template.
        fields: names of the columns that it reads.
        label: the column that is trained if the template has no `{% generation %}` blocks, or None.
        train_all: whether every byte is trained.
        tokens, control, bos, eos: as in `ChatFormat`.
    """

    template: JinjaTemplate
    fields: tuple[str, ...]
    label: str | None
    train_all: bool
    tokens: dict[str, str]
    control: tuple[str, ...]
    bos: str | None
    eos: str | None

    def render(self, table: pa.Table) -> ChunkOutput:
        """Render a chunk of fields."""
        return render_verified(self.template, self._shapes(table), table.num_rows, self.opacity is None)

    @cached_property
    def opacity(self) -> str | None:
        """The reason why the template does more than place columns, or None if it only places them."""
        return self.template.opacity(dict.fromkeys(self.fields, Kind.CONTENT))

    def _shapes(self, table: pa.Table) -> Iterator[Shape]:
        rows = one_array(table[ROW])
        values = [one_array(table[name]) for name in self.fields]
        empty = np.empty((table.num_rows, len(values)), bool)
        for index, value in enumerate(values):
            empty[:, index] = pc.equal(value, "").to_numpy(zero_copy_only=False)
        patterns, which = np.unique(empty, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns.tolist()):
            members = pa.array(np.flatnonzero(which == number))
            taken = [value.take(members) for value in values]
            yield Shape(rows.take(members), taken, pattern, self._variables, self._layout)

    def _variables(self, values: Sequence[str]) -> dict[str, str]:
        return {**self.tokens, **dict(zip(self.fields, values, strict=True))}

    def _layout(self, slots: list[Slot]) -> tuple[list[Piece], list[Piece]]:
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
                pieces.append(Piece(None, slot.column, role, numbers[name], weight))
        last = max((index for index, piece in enumerate(pieces) if piece.weight), default=len(pieces) - 1)
        stopped = bool(pieces) and pieces[last].control
        return pieces, with_bos(pieces if stopped else with_eos(pieces, last + 1, self.eos), self.bos)
