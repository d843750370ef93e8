"""Text that knows, part by part, where it comes from, and whether a template looked at it.

`TracedSandbox` runs a template over such values. They behave as the plain values they equal, so the template writes the
same text. What joins, cuts, strips or escapes them keeps their parts; what else is made from them is one part, made
from all of their columns.

A template can also *look* at a value: search it, compare it, ask whether it is empty. Each such question is noted with
its answer. If a template asks nothing else, its text for one value shows its text for every value with the same
answers: the branches that it takes are the same, and each part is the value again, stripped and escaped as the part
says. Whatever else is done to a content (it is sliced, upper-cased, looped over) is noted as the reason why that is not
known; to other values, it is the question which value it is.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from types import BuiltinMethodType, FrameType
from typing import Any, NamedTuple, SupportsIndex

import jinja2.nodes as n
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from tokenloom.resources.templates.sandbox import OPERATORS, MeteredContext, Sandbox, is_iterator

_NONE: frozenset[str] = frozenset()

GENERATION = "{% generation %}"
"""Counts as a column: all that generation blocks write is made from it."""

Op = tuple[str, Any]
"""What is done to a text: ("left", chars) and ("right", chars) strip characters, None for white space, from a side;
("json", ascii) escapes it as JSON does, without the quotes; ("length", None) counts its characters; ("dumps", options)
writes an object as JSON, indented by a number of spaces more."""

Ops = tuple[Op, ...]


class Question(NamedTuple):
    """What a template asks of a value.

    Args:
        source: which value: the number of a content, or the `place` of a field.
        ops: what is done to it before.
        kind: one of `in`, `startswith`, `endswith`, `==`, `filled`, or Python's name of a comparison with a number; of
            fields also `same`, `value` and `structure`.
        argument: what it is compared with, or what is searched for.
    """

    source: Any
    ops: Ops
    kind: str
    argument: Any


Answers = dict[Question, Any]


@dataclass
class Looks:
    """What a template asks of contents while it is rendered.

    Args:
        answers: the questions, in order, with their answers.
        reason: why these do not show what the template does with other contents; None if they do.
        marks_blocks: whether the outline has marks around generation blocks.
    """

    answers: Answers = field(default_factory=dict)
    reason: str | None = None
    marks_blocks: bool = False


class Standing(str):
    """A text that stands for a field: a value of a row that is no content, in a call, a tool or a message.

    An argument of a call stands in the messages of an outline as text, or as an object: `{standing: 0}`.

    Attributes:
        value: what the row that is rendered has there.
        place: the field's number among those of its row, and within an object that it is in, or -1.
        answers: where questions about it are noted.
    """

    value: Any
    place: tuple[int, int]
    answers: Answers

    @classmethod
    def of(cls, value: Any, number: int, answers: Answers, inner: int = -1) -> Standing:
        made = cls(f"{FIELD_OPEN}{number}{f'/{inner}' * (inner >= 0)}{FIELD_CLOSE}")
        made.value, made.place, made.answers = value, (number, inner), answers
        return made


MARK_OPEN, MARK_CLOSE = "\ue0d0", "\ue0d1"
GENERATION_OPEN, GENERATION_CLOSE = "\ue0d2", "\ue0d3"
FIELD_SIGNS = FIELD_OPEN, FIELD_CLOSE, _TRACKS = "\ue0d8", "\ue0d9", "\ue0da"
"""Separates the number of a tracked value from that of what is done to it; no template searches for it."""

MARKS = (MARK_OPEN, MARK_CLOSE, GENERATION_OPEN, GENERATION_CLOSE)
"""Private-use characters that mark contents and generation blocks in outlines."""

_TRACKED = re.compile(f"{MARK_OPEN}([0-9]+){_TRACKS}{MARK_CLOSE}")
OUTLINED = re.compile(f"{MARK_OPEN}([0-9]+)(?:{_TRACKS}([0-9]*))?{MARK_CLOSE}|([{GENERATION_OPEN}{GENERATION_CLOSE}])")
"""The marks of an outline: the number of a content and of what is done to it, or that of a generation block."""
FIELDS = re.compile(f"{FIELD_OPEN}([0-9]+)(?:/([0-9]+))?(?:{_TRACKS}([0-9]+))?{FIELD_CLOSE}")
"""The marks of fields: their number, that within an object, and that of what is done to them."""

_OPS: list[Ops] = [()]
_NUMBER_OF: dict[Ops, int] = {(): 0}


def _number_of(ops: Ops) -> int:
    if ops not in _NUMBER_OF:
        _OPS.append(ops)
        _NUMBER_OF[ops] = len(_OPS) - 1
    return _NUMBER_OF[ops]


def ops_of(number: str | None) -> Ops:
    """Return what is done to the value of a mark."""
    return _OPS[int(number or 0)]


def tracked(value: int) -> str:
    """Return a text that stands for a content in a template's variables, and shows in outlines what is done to it."""
    return f"{MARK_OPEN}{value}{_TRACKS}{MARK_CLOSE}"


def mark_of(source: int | Standing, ops: Ops) -> str:
    """Return what an outline has in place of a value to which something is done."""
    if isinstance(source, int):
        return f"{MARK_OPEN}{source}{_TRACKS}{_number_of(ops)}{MARK_CLOSE}"
    return f"{source[:-1]}{_TRACKS}{_number_of(ops)}{FIELD_CLOSE}" if ops else str(source)


def is_tracked(variables: Any) -> bool:
    """Return whether a template's variables have tracked contents or fields."""
    text = json.dumps(variables, ensure_ascii=False, default=str)
    return _TRACKS in text or FIELD_OPEN in text


def with_values(variables: Any) -> Any:
    """Return a template's variables with traced values in place of tracked contents and of what stands for fields."""
    if isinstance(variables, Standing):
        return _traced_field(variables)
    if isinstance(variables, str):
        if _TRACKS not in variables:
            return variables
        parts = [
            TracedPart(tracked(int(text)), source=int(text), ops=()) if at % 2 else TracedPart(text)
            for at, text in enumerate(_TRACKED.split(variables))
        ]
        return Traced([part for part in parts if part.text])
    if isinstance(variables, dict):
        standing = next(iter(variables), None)
        if isinstance(standing, Standing):
            return TracedObject(standing)
        return {name: with_values(inner) for name, inner in variables.items()}
    return [with_values(inner) for inner in variables] if isinstance(variables, list) else variables


def with_marks(text: str, blocks: bool) -> str:
    """Return a text with marks in place of whole values, and around generation blocks if these are asked for."""
    written, block = [], 0
    for part in parts_of(text):
        if blocks and part.block != block and part.text:
            written += [GENERATION_CLOSE] * bool(block) + [GENERATION_OPEN] * bool(part.block)
            block = part.block
        written.append(part.text if part.ops is None else mark_of(part.source, part.ops))
    return "".join(written) + GENERATION_CLOSE * bool(block)


def is_field(value: Any) -> bool:
    """Return whether a value can differ between rows: a text without white space around it, or a number."""
    if isinstance(value, str):
        return bool(value) and value == value.strip()
    return type(value) is int or (type(value) is float and isfinite(value))


def with_fields(value: Any, put: Callable[[Any], Any]) -> Any:
    """Return a value of JSON with others in place of its fields, in order."""
    if isinstance(value, dict):
        return {name: with_fields(inner, put) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_fields(inner, put) for inner in value]
    return put(value) if is_field(value) else value


def kind_of_field(value: Any) -> str:
    """Return a text that rows must share in place of a field."""
    sign = type(value).__name__[0] if not isinstance(value, str) else "q" if QUOTED.search(value) else "s"
    return f"{FIELD_OPEN}{sign}"


def structure(value: Any) -> str:
    """Return the JSON text of a value, with what rows must share in place of its fields."""
    return json.dumps(with_fields(value, kind_of_field), ensure_ascii=False)


QUOTED = re.compile(r'["\\\x00-\x1f]')
"""What JSON escapes."""


def _traced_field(source: Standing) -> Any:
    if isinstance(source.value, int | float):
        number = (_Integer if isinstance(source.value, int) else _Float)(source.value)
        number.source = source
        return number
    text = source.value if isinstance(source.value, str) else json.dumps(source.value, ensure_ascii=False)
    return Traced([TracedPart(text, source=source, ops=())])


class TracedObject(dict[str, Any]):
    """An object of a row. If a template reads its items, the question is how it is structured."""

    def __init__(self, standing: Standing):
        self.source, count = standing, iter(range(sys.maxsize))
        self._whole = as_object(standing.value)

        def inner(value: Any) -> Any:
            return _traced_field(Standing.of(value, standing.place[0], standing.answers, next(count)))

        super().__init__(with_fields(self._whole, inner))

    def opened(self) -> dict[str, Any]:
        """Return the object as one whose items can be read."""
        self.source.answers.setdefault(Question(self.source.place, (), "structure", None), structure(self._whole))
        return dict(dict.items(self))

    def written(self, options: Mapping[str, Any], before: str) -> TracedPart:
        """Return the object as JSON, as it is written after a text."""
        line = before.rpartition("\n")[2]
        indented = len(line) - len(line.lstrip(" ")) if options["indent"] is not None else 0
        given = tuple((name, tuple(of) if isinstance(of, list) else of) for name, of in options.items())
        op = ("dumps", (indented, given))
        return TracedPart(dumped(self._whole, op[1]), source=self.source, ops=(op,))


def _opening(name: str) -> Callable[..., Any]:
    return lambda of, *args: getattr(of.opened(), name)(*args)


for _name in ("__iter__", "__eq__", "__ne__", "__repr__"):
    setattr(TracedObject, _name, _opening(_name))
TracedObject.__bool__ = lambda of: len(of.opened()) > 0  # pyright: ignore[reportAttributeAccessIssue]


def as_object(value: Any) -> Any:
    """Return an object that is given as such, or as its JSON text."""
    return json.loads(value) if isinstance(value, str) else value


def dumped(value: Any, options: Any) -> str:
    """Return an object as JSON, given the argument of an operation `dumps`."""
    indented, given = options
    return json.dumps(value, **dict(given)).replace("\n", "\n" + " " * indented)


_rendering = threading.local()


@contextmanager
def looking(looks: Looks, code: Mapping[str, Any], line_of: Callable[[int], int]) -> Iterator[None]:
    """Collect in `looks` what the template asks that runs in this thread.

    Args:
        code: the globals of the template's code.
        line_of: maps a line of the code to the template's line.
    """
    _rendering.state = looks, code, line_of
    try:
        yield
    finally:
        _rendering.state = None


def _ask(part: TracedPart, kind: str, argument: Any, answer: Any) -> None:
    """Note a question about a whole value."""
    state = getattr(_rendering, "state", None)
    source = part.source
    if isinstance(argument, str) and any("\ud800" <= char <= "\udfff" for char in argument):
        _note("a value is compared with text that is not UTF-8", part)
    elif isinstance(source, Standing):
        source.answers.setdefault(Question(source.place, part.ops or (), kind, argument), answer)
    elif state is not None:
        state[0].answers.setdefault(Question(source, part.ops or (), kind, argument), answer)


def _note(does: str, *values: Any) -> None:
    """Note that the template does something with the values in others that no question describes.

    The line is that of the template's own code, which is the caller of a caller.
    """
    for part in {id(part): part for value in values for part in _wholes(value)}.values():
        if isinstance(part.source, Standing):
            own = json.dumps(part.source.value, ensure_ascii=False)
            part.source.answers.setdefault(Question(part.source.place, (), "value", None), own)
        elif (state := getattr(_rendering, "state", None)) is not None and state[0].reason is None:
            looks, code, line_of = state
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals is not code:
                frame = frame.f_back
            looks.reason = does if frame is None else f"line {line_of(frame.f_lineno)}: {does}"


class TracedPart(NamedTuple):
    """A part of a text.

    Args:
        text: the text.
        columns: the columns that it was made from or chosen by.
        is_value: whether it holds text of these columns; else it is the template's own text.
        line: the template's line that writes it, or 0.
        is_text: whether what the template wrote here was a text, a number or a boolean.
        source: the content or field that it is a whole text of, or None.
        ops: what was done to that value; None if the part is not the whole of one.
        block: number of the generation block that wrote it, or 0.
    """

    text: str
    columns: frozenset[str] = _NONE
    is_value: bool = False
    line: int = 0
    is_text: bool = True
    source: int | Standing | None = None
    ops: Ops | None = None
    block: int = 0

    @property
    def is_whole(self) -> bool:
        return self.ops is not None

    def changed(self, text: str, op: Op) -> TracedPart:
        """Return the part with another text, to which something was done."""
        # fields of one shape have no white space around them, and all or none have what JSON escapes
        same = text == self.text and isinstance(self.source, Standing) and op in _OF_NO_EFFECT
        return self._replace(text=text, ops=self.ops if self.ops is None or same else (*self.ops, op))


_OF_NO_EFFECT = (("left", None), ("right", None), ("left", "\n"), ("right", "\n"), ("json", False))


class Traced(str):
    """A text with its parts."""

    parts: tuple[TracedPart, ...]

    def __new__(cls, parts: Iterable[TracedPart]) -> Traced:
        parts = tuple(parts)
        made = super().__new__(cls, "".join([part.text for part in parts]))
        made.parts = parts
        return made

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        _note("a value is written as Python writes it", self)
        return str.__repr__(self)

    def __add__(self, other: Any) -> Any:
        return Traced(self.parts + parts_of(other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Traced(parts_of(other) + self.parts) if isinstance(other, str) else NotImplemented

    def __bool__(self) -> bool:
        if not any(part.text and not part.is_whole for part in self.parts):
            for part in self.parts:
                if part.is_whole:
                    _ask(part, "filled", None, bool(part.text))
                    if part.text:
                        break
        return str.__len__(self) > 0

    def __eq__(self, other: object) -> bool:
        same = str.__eq__(self, other)  # pyright: ignore[reportArgumentType]
        if not isinstance(other, str):
            return same
        one, what = (self, other) if _wholes(self) else (other, self)
        if not isinstance(one, Traced) or not _wholes(one):
            return same
        part, sought = one.whole, what.whole if isinstance(what, Traced) else None
        if part is not None and sought is not None and all(isinstance(p.source, Standing) for p in (part, sought)):
            _ask(part, "same", (sought.source.place, sought.ops), bool(same))  # pyright: ignore
        elif _wholes(what) or (part is None and str.__len__(what)):
            _note("a text with a value is compared", one, what)
        elif part is None or not str.__len__(what):
            bool(one)  # a text equals "" if none of its parts is filled
        else:
            _ask(part, "==", str.__str__(what), bool(same))
        return same

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, str) else str.__ne__(self, other)  # pyright: ignore

    def __hash__(self) -> int:
        _note("a value is looked up", self)
        return str.__hash__(self)

    def __contains__(self, text: str) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        if _wholes(text):
            _note("a value is searched for", self, text)
        elif not any(str.__contains__(part.text, text) for part in self.parts if not part.is_whole):
            self.free_of(text)
        return str.__contains__(self, text)

    def _ordered(self, kind: str, other: Any) -> Any:
        _note("values are ordered", self, other)
        return getattr(str, kind)(self, other)

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        _note("a part of a value is read", self)
        if isinstance(key, slice) and key.step in (None, 1):
            return self.cut(*key.indices(len(self))[:2])
        return traced(str.__getitem__(self, key), columns_of(self))

    def __iter__(self) -> Iterator[Traced]:
        _note("a value is looped over", self)
        return (Traced([part._replace(text=char, ops=None)]) for part in self.parts for char in part.text)

    @property
    def whole(self) -> TracedPart | None:
        """The only part, if it is a whole value; empty text of the template around it does not count."""
        parts = self._solid
        return parts[0] if len(parts) == 1 and parts[0].is_whole else None

    @property
    def _solid(self) -> list[TracedPart]:
        """The parts, without empty text of the template."""
        return [part for part in self.parts if part.text or part.is_whole or part.columns]

    def cut(self, start: int, stop: int) -> Traced:
        """Return the characters from `start` to `stop`."""
        kept, at = [], 0
        for part in self.parts:
            text = part.text[max(start - at, 0) : max(stop - at, 0)]
            ops = part.ops if len(text) == len(part.text) else None
            kept += [part._replace(text=text, ops=ops)] * bool(text)
            at += len(part.text)
        return Traced(kept or [TracedPart("", columns_of(self), True)])

    def strip_sides(self, sides: Iterable[str], chars: str | None) -> Traced:
        """Return the text without some characters at its ends.

        Where nothing is left of a value, stripping goes on to what is next to it: that asks whether it is filled.
        """
        parts = self._solid
        for side in sides:
            for done, at in enumerate(range(len(parts)) if side == "left" else range(len(parts) - 1, -1, -1), 1):
                text = parts[at].text
                text = text.lstrip(chars) if side == "left" else text.rstrip(chars)
                parts[at] = parts[at].changed(text, (side, chars))
                if parts[at].is_whole and done < len(parts):
                    _ask(parts[at], "filled", None, bool(text))
                if text:
                    break
            parts = Traced(parts)._solid
        return Traced(parts)

    def asked(self, kind: str, sought: str, answer: bool) -> None:
        """Note that the template asks whether the text starts or ends with another."""
        parts = self._solid
        end = parts[0 if kind == "startswith" else -1] if parts else None
        if self.whole is not None and not _wholes(sought):
            _ask(self.whole, kind, sought, answer)
        elif end is not None and (_wholes(sought) or end.is_whole or len(end.text) < len(sought)):
            _note("the start or end of a text with a value is compared", self, sought)

    def free_of(self, text: str) -> bool:
        """Return whether no value has a text in it, and none can be part of one together with what is next to it."""
        runs = [(whole, list(run)) for whole, run in groupby(self._solid, key=lambda part: part.is_whole)]
        cuts = range(1, len(text))
        for at, (is_value, run) in enumerate(runs):
            # a text can begin in a value and end in what is next to it, or the other way around
            own = "".join(part.text for part in run)
            before = at > 0 and any(own.startswith(text[cut:]) for cut in cuts)
            after = at < len(runs) - 1 and any(own.endswith(text[:cut]) for cut in cuts)
            if not text or (is_value and len(run) > 1 and cuts) or (not is_value and (before or after)):
                _note("a text with a value is searched", self)
                return False
        found = False
        for part in _wholes(self):  # all are asked
            has = text in part.text
            _ask(part, "in", text, has)
            found |= has
        return not found

    def made_from(self, columns: frozenset[str], line: int = 0, block: int = 0) -> Traced:
        """Return the text with more columns for each part."""
        parts = self.parts or (TracedPart(""),)
        return Traced(
            [
                part._replace(columns=part.columns | columns, line=line or part.line, block=block or part.block)
                for part in parts
            ]
        )


class _Safe(Traced):
    """A text that the filter `safe` has marked. What is joined to it with `+` is escaped."""

    def __add__(self, other: Any) -> Any:
        return self.marked() + other

    def __radd__(self, other: Any) -> Any:
        return other + self.marked()

    def marked(self) -> Markup:
        """Return the text as other filters and methods get it."""
        _note("a text that is marked as safe is used", self)
        return Markup(str.__str__(self))


class _Number:
    """A number with the columns that it was made from; `measured` is the value whose length it is, or None."""

    columns: frozenset[str] = _NONE
    measured: TracedPart | None = None
    source: Standing | None = None

    def __str__(self) -> str:
        text, ops = _plain(self, "__repr__"), None if self.source is None else ()
        if self.measured is not None:
            _note("the length of a value is written", self)
        return Traced([TracedPart(text, self.columns, bool(self.columns), source=self.source, ops=ops)])

    __repr__ = __str__

    def __hash__(self) -> int:
        _note("a number is looked up", self)
        return _plain(self, "__hash__")

    def _compared(self, kind: str, other: Any) -> Any:
        answer = _plain(self, kind, other)
        if self.measured is not None and type(other) in (int, float):
            part = self.measured._replace(ops=(*(self.measured.ops or ()), ("length", None)))
            _ask(part, kind, other, bool(answer))
        elif answer is not NotImplemented:
            _note("a number is compared", self, other)
        return answer


def _plain(number: Any, method: str, *args: Any) -> Any:
    return getattr(int if isinstance(number, int) else float, method)(number, *args)


for _kind in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Traced, _kind, functools.partialmethod(Traced._ordered, _kind))
for _kind in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(_Number, _kind, functools.partialmethod(_Number._compared, _kind))
_Number.__bool__ = lambda self: self._compared("__ne__", 0)  # pyright: ignore[reportAttributeAccessIssue]


class _Integer(_Number, int):
    pass


class _Float(_Number, float):
    pass


def _wholes(value: Any) -> list[TracedPart]:
    """Return the whole contents and fields in a value."""
    if isinstance(value, Traced):
        return [part for part in value.parts if part.is_whole]
    if isinstance(value, _Number):
        part = TracedPart("", source=value.source, ops=()) if value.source is not None else value.measured
        return [part] * (part is not None)
    if isinstance(value, TracedObject):
        return [TracedPart("", source=value.source, ops=())]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [part for item in items for part in _wholes(item)]


def parts_of(text: str) -> tuple[TracedPart, ...]:
    """Return the parts of a text; one without any is the template's own."""
    return text.parts if isinstance(text, Traced) else (TracedPart(text),)


def columns_of(value: Any) -> frozenset[str]:
    """Return the columns that a value was made from, as far as it is text, a number, or a list or object of them."""
    if isinstance(value, Traced):
        return frozenset().union(*(part.columns for part in value.parts))
    if isinstance(value, _Number):
        return value.columns
    if isinstance(value, dict):
        return frozenset().union(*map(columns_of, value), *map(columns_of, value.values()))
    return frozenset().union(*map(columns_of, value)) if isinstance(value, list | tuple) else _NONE


def traced(value: Any, columns: frozenset[str]) -> Any:
    """Return an equal value whose texts and numbers come from these columns, unless they are traced already.

    Args:
        columns: none for the template's own text.
    """
    kind = type(value)
    if isinstance(value, Traced):
        return value
    if isinstance(value, str):
        return Traced([TracedPart(str.__str__(value), columns, bool(columns))])
    if kind is int or kind is float:
        number = (_Integer if kind is int else _Float)(value)
        number.columns = columns
        return number
    if kind is list or kind is tuple:
        return kind([traced(item, columns) for item in value])
    if kind is dict:
        return {traced(name, columns): traced(item, columns) for name, item in value.items()}
    return (traced(item, columns) for item in value) if is_iterator(value) else value


def join_traced(texts: Iterable[str]) -> str:
    """Join texts, as `"".join` does, and keep their parts."""
    texts = list(texts)
    if any(isinstance(text, Traced) for text in texts):
        return Traced([part for text in texts for part in parts_of(text)])
    return "".join(texts)


class TracedSandbox(Sandbox):
    """The sandbox for templates over traced values."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    concat = staticmethod(join_traced)  # pyright: ignore[reportAssignmentType]

    def meter(self) -> None:
        self.filters["tojson"] = tojson
        super().meter()
        self.filters |= {
            name: pass_context(functools.partial(_filtered, name, run))
            for name, run in self.filters.items()
            if name not in OPERATORS
        }
        self.tests |= {
            name: pass_context(functools.partial(_tested, name, self.tests[name])) for name in _LOOKING_TESTS
        }

    def getattr(self, obj: Any, attribute: str) -> Any:
        return super().getattr(_opened(obj), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        by = (argument.start, argument.stop, argument.step) if isinstance(argument, slice) else argument
        _note("a value chooses a part of another one", by)
        return _chosen(super().getitem(_opened(obj), argument), argument)

    def call(self, context: MeteredContext, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore
        kwargs.pop("_loop_vars", None)  # Jinja hands what a loop has set to all calls in it
        of = function.__self__ if type(function) is BuiltinMethodType else None
        if isinstance(of, dict):
            return _chosen(super().call(context, function, *args, **kwargs), *args[:1])
        if not isinstance(of, str):
            if any(function is self.globals[name] for name in ("range", "strftime_now")):
                _note("a function is called with a value", *args, *kwargs.values())
            return super().call(context, function, *args, **kwargs)
        name = function.__name__
        of = of.marked() if isinstance(of, _Safe) else of
        if name == "join" and args:
            args = (list(args[0]) if is_iterator(args[0]) else args[0], *args[1:])
        result = super().call(context, getattr(of if type(of) is Markup else str.__str__(of), name), *args, **kwargs)
        given = (args[0], of) if name == "join" and args else (of, *args)
        return _made("" if name == "format" else name, result, given, kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        result = super().call_binop(context, operator, left, right)
        if operator == "%" and isinstance(left, str):
            return _made("format", result, (left, *right) if isinstance(right, tuple) else (left, right), {})
        return result if isinstance(result, list | tuple) else _made("", result, (left, right), {})


_LOOKING_TESTS = ("divisibleby", "even", "in", "lower", "odd", "upper")
"""Tests that look at values other than by comparing them."""

_OF_LISTS = frozenset(
    "attr batch count dictsort first items last length list map reject rejectattr reverse select selectattr "  # noqa: SIM905
    "slice".split()
)
"""Filters that look at the items of a list or object only by comparing them; `dictsort` looks at keys."""

_PLAIN = ("format", "join", "replace", "trim")
"""Filters that call methods of the texts that they get; what they do is known."""


def _opened(value: Any) -> Any:
    """Return a value as a template that reads it gets it."""
    return value.opened() if isinstance(value, TracedObject) else value.marked() if isinstance(value, _Safe) else value


def _tested(name: str, run: Callable[..., Any], context: MeteredContext, /, *args: Any, **kwargs: Any) -> Any:
    if name == "in" and not isinstance(args[1], str):
        return run(context, args[0], _opened(args[1]))
    _note(f"a value is tested: {name}", *args)
    return run(context, *args, **kwargs)


def _filtered(name: str, run: Callable[..., Any], context: MeteredContext, /, *args: Any, **kwargs: Any) -> Any:
    if name == "join" and args and is_iterator(args[0]):
        args = (list(args[0]), *args[1:])
    if name == "safe" and isinstance(args[0], Traced):
        return _Safe(args[0].parts)
    if name not in ("tojson", "default", "d"):
        args = tuple(map(_opened, args))
    plain = args
    if name in _PLAIN:
        plain = tuple(str.__str__(value) if isinstance(value, Traced) else value for value in args)
    return _made(name, run(context, *plain, **kwargs), args, kwargs)


def _chosen(value: Any, *by: Any) -> Any:
    """Return an item of a list or object. It counts as made from the columns of the key that chose it, too."""
    columns = columns_of(by)
    if columns and isinstance(value, str):
        return Traced(parts_of(value)).made_from(columns)
    return value


def _made(name: str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a filter, method or operator with the parts or the columns of its arguments."""
    if isinstance(result, Traced) or name in ("default", "d"):
        return result
    if isinstance(result, str):
        kept = _with_parts(name, result, args, kwargs)
        if kept is not None and str.__eq__(kept, result):
            return kept
    given = (*args, *kwargs.values())
    if _wholes(given):
        return _looked_at(name, result, given)
    columns = columns_of(given)
    is_traced = bool(columns) or any(isinstance(value, Traced | _Number) for value in given)
    return traced(result, columns) if is_traced else result


def _looked_at(name: str, result: Any, given: tuple[Any, ...]) -> Any:
    """Note what a filter, method or operator asks of values, and return its result, with their parts if it has any."""
    text, *others = given
    does = f"{name or 'an operator'} is applied to a value"
    if not any(isinstance(value, Traced | _Number) and _wholes(value) for value in given):
        if name not in _OF_LISTS or (name == "dictsort" and "value" in others):
            _note(does, *given)
        return result
    sought = others[0] if others else None
    if not isinstance(text, Traced) or _wholes(others):
        _note(does, *given)
        return result
    if name in ("startswith", "endswith") and len(others) == 1:
        for one in sought if isinstance(sought, tuple) else (str(sought),):
            text.asked(name, one, getattr(str, name)(text, one))
        return result
    if name in ("length", "count") and not others and text.whole is not None:
        number = _Integer(result)
        number.measured = text.whole
        return number
    if name not in _SEARCHES or not isinstance(sought, str) or not text.free_of(sought):
        _note(does, text)
    return _located(result, text)


_SEARCHES = ("split", "rsplit", "partition", "rpartition", "replace", "count")
"""Methods that only ask whether a text has another one, if no value has it."""


def _located(result: Any, source: Traced) -> Any:
    """Return texts that were cut from another one with their parts of it; what is not found in it is returned as is."""
    if isinstance(result, str):
        at = str.find(source, result) if result else -1
        return source.cut(at, at + len(result)) if at >= 0 else result
    if not isinstance(result, list | tuple):
        return result
    found, at = [], 0
    for piece in result:
        place = str.find(source, piece, at) if isinstance(piece, str) and piece else -1
        found.append(source.cut(place, place + len(piece)) if place >= 0 else piece)
        at = place + len(piece) if place >= 0 else at
    return type(result)(found)


def _with_parts(name: str, result: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Return the result of trimming, joining or formatting, with the parts kept apart; None for other functions."""
    value, *others = args
    if name in _STRIPPED and isinstance(value, Traced):
        chars = (*others, *kwargs.values(), None)[0]
        if _wholes(chars):
            return None
        return value.strip_sides(_STRIPPED[name], None if chars is None else str.__str__(chars))
    if name == "join" and len(others) < 2 and "attribute" not in kwargs:
        separator = parts_of(str(others[0] if others else kwargs.get("d", "")))
        texts = [parts_of(str(item)) for item in value]
        return Traced([part for text in texts for part in (*separator, *text)][len(separator) :])
    if name == "format" and not kwargs and re.fullmatch(r"(?:[^%]|%s|%%)*", str.__str__(value)):
        given, parts = iter(others), []
        for text in re.split("(%s|%%)", str.__str__(value)):
            parts += parts_of(str(next(given))) if text == "%s" else [TracedPart("%" if text == "%%" else text)]
        return Traced(parts) if not columns_of(value) and not _wholes(value) else None
    return None


_STRIPPED = {"trim": ("left", "right"), "strip": ("left", "right"), "lstrip": ("left",), "rstrip": ("right",)}
"""The sides that a filter or method strips."""


def tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write a value as JSON as `transformers` does; whole values in it keep their parts, escaped."""
    options: dict[str, Any] = {"ensure_ascii": ensure_ascii, "indent": indent}
    options |= {"separators": separators, "sort_keys": sort_keys}
    text = json.dumps(value, **options)
    if not _wholes(value):
        return text
    sign, found = "tokenloom:", list[Any]()
    while sign in text:
        sign += ":"

    def swapped(inner: Any) -> Any:
        if isinstance(inner, Traced | TracedObject | _Number) and _wholes(inner):
            found.append(inner)
            return f"{sign}{len(found) - 1};"
        if isinstance(inner, dict):
            return {name: swapped(item) for name, item in inner.items()}
        return [swapped(item) for item in inner] if isinstance(inner, list | tuple) else inner

    parts: list[TracedPart] = []
    for at, own in enumerate(re.split(f'"{sign}([0-9]+);"', json.dumps(swapped(value), **options))):
        if at % 2 == 0:
            parts.append(TracedPart(own))
        elif isinstance(of := found[int(own)], TracedObject):
            parts.append(of.written(options, parts[-1].text))
        elif isinstance(of, str):
            escaped = (
                part.changed(json.dumps(part.text, ensure_ascii=ensure_ascii)[1:-1], ("json", ensure_ascii))
                for part in parts_of(of)
            )
            parts += [TracedPart('"'), *escaped, TracedPart('"')]
        else:
            parts += parts_of(str(of))
    made = Traced(parts)
    if not str.__eq__(made, text):
        _note("tojson is applied to a value", value)
        return text
    return made


Read = Iterable[tuple[str, Any]]
"""The variables that an expression reads, with their values."""


def trace_looks(tree: n.Template, environment: Any) -> None:
    """Make a parsed template, in place, keep the parts of what it joins, and look at what it searches with `in`."""
    environment.filters |= {f"work of {known.__name__}": pass_context(known) for known in (_joined, _searched)}
    _Joins().visit(tree)


class _Joins(NodeTransformer):
    def visit_Concat(self, node: n.Concat) -> n.Node:
        self.generic_visit(node)
        return _operator("_joined", node.nodes[0], node.nodes[1:])

    def visit_Compare(self, node: n.Compare) -> n.Node:
        self.generic_visit(node)
        for operand in node.ops:
            if operand.op in ("in", "notin"):
                operand.expr = _operator("_searched", operand.expr, [])
        return node


def _joined(context: Any, *values: Any) -> str:
    return join_traced(str(context.weighed(value)) for value in values)


def _searched(_: Any, value: Any) -> Any:
    """Return a text so that it notes whether a value is searched for in it: Python asks only the text."""
    return Traced([TracedPart(value)]) if type(value) is str else _opened(value)


def trace(tree: n.Template, columns: Iterable[str], trained: frozenset[str], environment: Any) -> None:
    """Make a parsed template, in place, write traced texts.

    Args:
        columns: all columns.
        trained: those that are trained.
    """
    kept = set(columns) - {name.name for name in tree.find_all(n.Name) if name.ctx != "load"}

    def columns_read(read: Read) -> frozenset[str]:
        """Return the columns of variables: of a truth value, which cannot know them, by its name."""
        known = (
            columns_of(value) or frozenset([name] if name in kept and isinstance(value, bool | None) else [])
            for name, value in read
        )
        return frozenset().union(*known)

    def written(_: Any, value: Any, line: int, read: Read) -> Traced:
        """Return what an output node writes; `read` are the variables that its expression reads."""
        text = str(value)
        if not isinstance(text, Traced):  # a constant, or a truth value that an expression has computed
            columns = columns_of(value) or columns_read(read)
            text = Traced([TracedPart(text, columns, bool(columns))])
        columns = columns_of(text)
        if columns & trained and not any(part.line for part in text.parts):
            text = text.made_from(columns)
        is_text = not isinstance(value, list | tuple | dict | bytes)
        return Traced([part._replace(line=part.line or line, is_text=part.is_text and is_text) for part in text.parts])

    def chosen(_: Any, value: Any, *read: Read) -> Any:
        """Return a value that depends, if it is a constant, on the first variables that depend on columns."""
        found = [columns for variables in read if (columns := columns_read(variables))]
        if not found or columns_of(value):
            return value
        return Traced(parts_of(value)).made_from(found[0]) if isinstance(value, str) else traced(value, found[0])

    def own(_: Any, text: str) -> Traced:
        return Traced(parts_of(text))

    operators = (written, chosen, _joined, own)
    environment.filters |= {f"work of {known.__name__}": pass_context(known) for known in operators}
    _Tracer(tree).visit(tree)


class _Tracer(NodeTransformer):
    def __init__(self, tree: n.Template):
        self._macros = {"caller", *(macro.name for macro in tree.find_all(n.Macro))}
        self._tests: list[n.Node] = []
        """The conditions of the branches around a node."""

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, n.If):
            self._tests.append(node.test)
        read = [self._read([part]) for part in node.nodes] if isinstance(node, n.Output) else []
        choice = (node.expr2, node.expr1, node.test) if isinstance(node, n.CondExpr) else ()
        branches = [self._read([part]) for part in choice]
        self.generic_visit(node)
        match node:
            case n.If():
                self._tests.pop()
            case n.Output():
                node.nodes = [
                    part if isinstance(part, n.TemplateData) else self._written(part, reads)
                    for part, reads in zip(node.nodes, read, strict=True)
                ]
            case n.FilterBlock():
                node.filter = self._written(node.filter, n.List([]))
            case n.Assign() if self._tests and not isinstance(node.node, n.Call):
                node.node = _operator("chosen", node.node, [self._read(self._tests)])
            case n.CondExpr():
                other, one, test = branches
                node.expr1 = _operator("chosen", node.expr1, [other, test])
                node.expr2 = node.expr2 and _operator("chosen", node.expr2, [one, test])
            case n.Concat():
                return _operator("_joined", node.nodes[0], node.nodes[1:])
            case n.List() | n.Tuple(ctx="load"):
                node.items = [_owned(item) for item in node.items]
            case n.Pair():
                node.key, node.value = _owned(node.key), _owned(node.value)
            case n.Call():
                node.args = [_owned(item) for item in node.args]
            case n.Keyword():
                node.value = _owned(node.value)
        return node

    def _written(self, node: n.Node, read: n.List) -> n.Filter:
        return _operator("written", node, [n.Const(node.lineno), read])

    def _read(self, nodes: Iterable[n.Node | None]) -> n.List:
        """Return the variables that expressions read, as an expression; none for what a macro writes."""
        names: dict[str, n.Node] = {}
        for node in nodes:
            inner = node
            while isinstance(inner, n.Filter) and inner.name == "trim":
                inner = inner.node
            if inner is None or (isinstance(inner, n.Call) and _name(inner.node) in self._macros):
                continue
            found = [inner, *inner.find_all(n.Name)]
            names |= {part.name: n.Name(part.name, "load") for part in found if isinstance(part, n.Name)}
        pairs = (n.Tuple([n.Const(key), name], "load") for key, name in names.items() if key not in self._macros)
        return n.List(list(pairs))


def _name(node: n.Node) -> str | None:
    return node.name if isinstance(node, n.Name) else None


def _operator(name: str, node: Any, args: list[Any]) -> Any:
    return n.Filter(node, f"work of {name}", args, [], None, None, lineno=node.lineno)


def _owned(node: Any) -> Any:
    """Mark a literal text that is stored next to values as the template's own."""
    return _operator("own", node, []) if isinstance(node, n.Const) and isinstance(node.value, str) else node
