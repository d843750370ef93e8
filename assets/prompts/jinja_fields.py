"""Renders rows of columns through the YAML's Jinja template.

The template gets Python's values. Text is placed: the template is probed with a mark in its stead. So are numbers and
other scalars, as their `str`, while the template only writes them; if it does more with them, and for None, lists and
objects, a shape has the value itself.
Rows that the template does not just place are traced: Jinja renders them with values that know their columns, and each
output node that depends on a trained column is trained, as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, groupby, takewhile
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.outline import ShapeError
from tokenloom.assets.prompts.segments import column_numbers, with_ends
from tokenloom.assets.prompts.spans import SPAN_ROLES, Piece, Rule, moved, span_lists, split_control
from tokenloom.assets.prompts.verify import PRIVATE_USE, CodedReason, Layout, Shape, Variables, render_verified
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.errors import DeadlineError, TemplateError
from tokenloom.resources.tables.json_text import python_values
from tokenloom.resources.tables.ragged import Ints, one_array
from tokenloom.resources.templates.from_yaml import mixes
from tokenloom.resources.templates.jinja import JinjaTemplate, Slot
from tokenloom.resources.templates.marks import GENERATION, MARKS, tracked
from tokenloom.resources.templates.trace import TracedPart

_EMPTY, _FILLED = 0, 1

_NOT_PLACED = ("content_dropped", "not_text", "template_refused", "unverified_spans")
"""Reject codes of rows whose values the template does not just place."""


@dataclass(frozen=True)
class _Constant:
    """A value that is the same in all rows of a shape."""

    value: Any


Objects = Sequence[Mapping[str, Any] | _Constant]
"""For each column of a shape the values by their text if they are placed, else the constant; empty for text."""


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
    objects: Objects = ()


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
        listed: further columns that are trained.
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
    listed: tuple[str, ...] = ()

    @property
    def trained(self) -> tuple[str, ...]:
        """The columns that are trained if the template has no `{% generation %}` blocks."""
        return self.listed if self.label is None else (self.label, *self.listed)

    def render(self, table: pa.Table) -> ChunkOutput:
        """Render a chunk of fields."""
        out = self._rendered(table, placed=True)
        if any(not pa.types.is_string(table[name].type) for name in self.fields):
            out = _again(out, table, None, lambda rows: self._rendered(rows, placed=False))
        return _again(out, table, _NOT_PLACED, self._rendered_traced)

    def _parts(self, values: Mapping[str, Any]) -> tuple[TracedPart, ...] | None:
        trained = frozenset() if self.template.marks_generation else self._answers
        return self.template.parts({**self.tokens, **values}, self.fields, trained)

    @cached_property
    def _answers(self) -> frozenset[str]:
        return frozenset([GENERATION] if self.template.marks_generation else self.trained)

    def _rendered(self, table: pa.Table, placed: bool) -> ChunkOutput:
        return render_verified(self.template, self._shapes(table, placed), table.num_rows)

    @cached_property
    def opacity(self) -> str | None:
        """The reason why the template does more with columns than place them and ask about them, or None."""
        values = {name: tracked(at) for at, name in enumerate(self.fields)}
        return self.template.opacity([{**self.tokens, **values}])

    def _shapes(self, table: pa.Table, placed: bool) -> Iterator[Shape]:
        rows = one_array(table[ROW])
        fields = [_field(one_array(table[name]), placed or name in self.trained) for name in self.fields]
        states = np.stack([field.state for field in fields], axis=1) if fields else np.zeros((len(rows), 0), np.int64)
        patterns, which = np.unique(states, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns.tolist()):
            members = pa.array(np.flatnonzero(which == number))
            states_of = zip(fields, pattern, strict=True)
            objects = [field.objects[state - 2] if state > _FILLED else {} for field, state in states_of]
            empty = [state == _EMPTY or isinstance(of, _Constant) for state, of in zip(pattern, objects, strict=True)]
            texts = [field.texts.take(members) for field in fields]
            # marks in the data would read as the template's own
            first = [re.sub(f"[{''.join(MARKS)}]", "x", text[0].as_py()) for text in texts]
            variables = partial(self._variables, objects=objects)
            layout = partial(self._layout, variables, empty, objects, first)
            yield Shape(rows.take(members), texts, empty, variables, layout)

    def _variables(self, values: Sequence[str], _: int = -1, *, objects: Objects) -> dict[str, Any]:
        pairs = zip(values, objects, strict=True)
        given = [of.value if isinstance(of, _Constant) else of.get(value, value) for value, of in pairs]
        return {**self.tokens, **dict(zip(self.fields, given, strict=True))}

    def _check_value(self, name: str, value: Any) -> None:
        """Raise a ShapeError for a list or object with a control token's text."""
        if any(token in text for text in _strings(value) for token in self.control):
            raise ShapeError("control_token_in_content", f"a value within {name} contains a control token's text")

    def _layout(self, variables: Variables, empty: Sequence[bool], objects: Objects, first: Sequence[str]) -> Layout:
        """Return the layout of a shape; `first` are the values of its first row.

        Raises:
            ShapeError: the rows have to be traced.
        """
        marks = ["" if nothing else tracked(at) for at, nothing in enumerate(empty)]
        slots, looks = self.template.probe(variables(marks))
        for name, of in zip(self.fields, objects, strict=True):
            if isinstance(of, _Constant) and of.value is not None:
                if name in self._answers:
                    raise ShapeError(*_not_text(name))
                self._check_value(name, of.value)
        marks = self.template.marks_generation
        if not (self.train_all or marks):
            self._check_trained(slots, first, variables(first))
        numbers = column_numbers(self.fields)
        pieces: list[Piece] = []
        for slot in slots:
            name = self.fields[slot.value] if slot.value >= 0 else None
            answer = slot.generated > 0 if marks else name in self.trained
            weight = float(answer or self.train_all)
            role = "answer" if answer else "template" if name is None else "input"
            if name is None:
                pieces += split_control(slot.text, self.control, weight=weight, role=role)
            else:
                border = self.border if answer and not marks else None
                pieces.append(Piece(None, slot.column, role, numbers[name], weight, border=border))
        if self.listed and not (marks or any(piece.weight for piece in pieces)):
            raise ShapeError(*_untrained(self.trained))
        # a number is placed as its text, of which the template can ask something else
        placed = any(of for of in objects if not isinstance(of, _Constant))
        return Layout(slots, None if placed and looks.answers else looks, pieces, with_ends(pieces, self.bos, self.eos))

    def _check_trained(self, slots: Sequence[Slot], texts: Sequence[str], values: Mapping[str, Any]) -> None:
        """Check on one row that placed columns train what the template's output nodes train.

        Raises:
            ShapeError: they do not: a node adds text of its own to a trained column.
        """
        placed = [pa.array([texts[slot.value] if slot.value >= 0 else slot.text]) for slot in slots]
        written = [slot.place(text)[0].as_py() for slot, text in zip(slots, placed, strict=True)]
        trained = [slot.value >= 0 and self.fields[slot.value] in self.trained for slot in slots]
        traced = ((part.text, bool(part.columns & self._answers)) for part in self._parts(values) or ())
        if _runs(zip(written, trained, strict=True)) != _runs(traced):
            raise ShapeError("unverified_spans", "an output node writes more than the trained column")

    def _rendered_traced(self, table: pa.Table) -> ChunkOutput:
        """Render rows one by one."""
        numbers, rows, rendered = one_array(table[ROW]).to_pylist(), [], list[int]()
        refused: dict[CodedReason, list[int]] = {}
        columns = [python_values(one_array(table[name])) for name in self.fields]
        for at, row in enumerate(numbers):
            try:
                rows.append(self._row({name: column[at] for name, column in zip(self.fields, columns, strict=True)}))
                rendered.append(at)
            except DeadlineError as error:
                error.row = row
                raise
            except TemplateError as error:
                code = error.code if isinstance(error, ShapeError) else "template_refused"
                refused.setdefault((code, str(error)), []).append(at)
        rejects = []
        for (code, message), places in refused.items():
            shown = ["" if (value := columns[-1][at]) is None else str(value) for at in places]
            rejects.append(reject_rows(np.array([numbers[at] for at in places]), "prompts", code, "", message, shown))
        taken = one_array(table[ROW]).take(pa.array(rendered, pa.int64()))
        return ChunkOutput(_assembled(taken, rows), table.num_rows, join_rejects(rejects))

    def _row(self, values: Mapping[str, Any]) -> list[Piece]:
        """Return the pieces of one row, each with its text.

        Raises:
            ShapeError: what is trained is unknown, or nothing is.
            TemplateError: the template refuses the values.
        """
        for name, value in values.items():
            if isinstance(value, list | dict | bytes):
                self._check_value(name, value)
            if any(mark in text for text in _strings(value) for mark in MARKS):
                raise ShapeError(*PRIVATE_USE)
        parts = self._parts(values)
        if parts is None:
            message = "the template writes another text when its parts are traced; put {% generation %} marks around "
            raise ShapeError("unverified_spans", f"{message}what is trained")
        numbers, marks = column_numbers(self.fields), self.template.marks_generation
        pieces, texts = list[Piece](), list[str]()
        for part in parts:
            columns = part.columns - {GENERATION}
            answer = bool(part.columns & self._answers)
            if answer and not marks and part.text:
                if part.columns - self._answers and not self.train_all:
                    line = f", line {part.line}" * bool(part.line)
                    raise ShapeError("unverified_spans", f"template{line}: {mixes(part.columns)}")
                if not part.is_text:
                    raise ShapeError(*_not_text(" and ".join(sorted(part.columns))))
            weight = float(answer or self.train_all)
            role = "answer" if answer else "input" if part.is_value else "template"
            if not part.is_value:
                pieces += split_control(part.text, self.control, weight=weight, role=role)
            elif part.text:
                pieces.append(Piece(None, len(texts), role, numbers[min(columns & self._answers or columns)], weight))
                texts.append(part.text)
        answered = self._answers & {name for part in parts if part.text or marks for name in part.columns}
        blank = bool(self.label) and not marks and all(not str(values[name]).strip() for name in self.trained)
        if not (answered or blank or self.train_all):
            raise ShapeError(*_untrained(self._answers))
        ended = with_ends(pieces, self.bos, self.eos)
        written = [replace(piece, text=texts[piece.column]) if piece.text is None else piece for piece in ended]
        return written if marks or self.border is None else _with_border(written, self.border)


def _runs(parts: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Join adjacent texts that are both trained or both masked."""
    grouped = groupby((part for part in parts if part[0]), key=itemgetter(1))
    return [("".join(text for text, _ in run), trained) for trained, run in grouped]


def _not_text(name: str) -> CodedReason:
    return "not_text", f"{name} is what is trained, but it is neither text nor a number"


def _untrained(trained: Iterable[str]) -> CodedReason:
    names = " and ".join(sorted(trained))
    message = f"the template writes nothing of {names} in this row; write it as an output node"
    return "content_dropped", f"{message}, or put {GENERATION} marks around what is trained"


def _again(
    out: ChunkOutput, table: pa.Table, codes: Sequence[str] | None, render: Callable[[pa.Table], ChunkOutput]
) -> ChunkOutput:
    """Render rejected rows in another way: those with one of these reject codes; None for all."""
    given = one_array(out.rejects["code"])
    chosen = pc.is_in(given, given if codes is None else pa.array(codes, given.type))
    left = out.rejects.filter(chosen)
    if not left.num_rows:
        return out
    rest = render(table.filter(pc.is_in(table[ROW], one_array(left[ROW]))).combine_chunks())
    tables = pa.concat_tables([out.table, rest.table])
    # both tables are in the order of rows, which theirs together must be too
    whole = tables.take(pc.sort_indices(tables[ROW])).combine_chunks()
    return ChunkOutput(whole, table.num_rows, join_rejects([out.rejects.filter(pc.invert(chosen)), rest.rejects]))


def _with_border(pieces: Sequence[Piece], rule: Rule) -> list[Piece]:
    """Move white space before an answer into the answer, where the rule says so."""
    out: list[Piece] = []
    for piece in pieces:
        if piece.role == "answer" and not (out and out[-1].role == "answer"):
            prompt = [*takewhile(lambda other: not other.control and other.role != "answer", reversed(out))]
            before = "".join(other.text or "" for other in reversed(prompt))
            data = np.frombuffer(before.encode(), np.uint8)
            left = int(moved(data, np.array([len(data)]), np.array([0]), rule)[0])
            space = before[len(before) - left :]  # white space of one byte each
            while left:
                last = out.pop()
                kept = (last.text or "")[: max(len(last.text or "") - left, 0)]
                left -= len(last.text or "") - len(kept)
                out += [replace(last, text=kept)] * bool(kept)
            out += [replace(piece, text=space)] * bool(space)
        out.append(piece)
    return out


def _assembled(numbers: pa.Array, rows: Sequence[Sequence[Piece]]) -> pa.Table:
    """Return texts and spans of rows whose pieces all have a text; adjacent pieces of one value are one span."""
    spans: list[tuple[int, int, int, int, float, bool]] = []
    counts: list[int] = []
    for pieces in rows:
        before, at = len(spans), 0
        for piece in pieces:
            kind = (SPAN_ROLES.index(piece.role), piece.message, piece.weight, piece.control)
            start, at = at, at + len((piece.text or "").encode())
            if len(spans) > before and spans[-1][2:] == kind and piece.message >= 0:
                spans[-1] = (spans[-1][0], at, *kind)
            elif at > start:
                spans.append((start, at, *kind))
        counts.append(len(spans) - before)
    columns = zip(*spans, strict=True) if spans else ([],) * 6
    lists = span_lists(np.array(counts, np.int64), *(np.array(column) for column in columns))
    texts = pa.array(["".join(piece.text or "" for piece in pieces) for pieces in rows], pa.string())
    return pa.table({ROW: numbers, "text": texts, "spans": lists})


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings within a value, and of other scalars their `str`."""
    if isinstance(value, Mapping | list | tuple):
        for item in chain.from_iterable(value.items()) if isinstance(value, Mapping) else value:
            yield from _strings(item)
    else:
        yield str(value)
