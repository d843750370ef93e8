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
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from types import FrameType
from typing import Any, NamedTuple, SupportsIndex

from markupsafe import Markup

from tokenloom.resources.templates.marks import (
    GENERATION_CLOSE,
    GENERATION_OPEN,
    TRACKED,
    TRACKS,
    Looks,
    Op,
    Ops,
    Question,
    Standing,
    as_object,
    dumped,
    mark_of,
    structure,
    with_fields,
)
from tokenloom.resources.templates.sandbox import is_iterator

_NONE: frozenset[str] = frozenset()

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
        note("a value is compared with text that is not UTF-8", part)
    elif isinstance(source, Standing):
        source.answers.setdefault(Question(source.place, part.ops or (), kind, argument), answer)
    elif state is not None:
        state[0].answers.setdefault(Question(source, part.ops or (), kind, argument), answer)


def note(does: str, *values: Any) -> None:
    """Note that the template does something with the values in others that no question describes.

    The line is that of the template's own code, which is the caller of a caller.
    """
    for part in {id(part): part for value in values for part in wholes(value)}.values():
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
        note("a value is written as Python writes it", self)
        return str.__repr__(self)

    def __add__(self, other: Any) -> Any:
        return Traced(self.parts + parts_of(other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Traced(parts_of(other) + self.parts) if isinstance(other, str) else NotImplemented

    def __bool__(self) -> bool:
        # with text of the template's own in it, the answer is the same for all values
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
        one, what = (self, other) if wholes(self) else (other, self)
        if not isinstance(one, Traced) or not wholes(one):
            return same
        part, sought = one.whole, what.whole if isinstance(what, Traced) else None
        if part is not None and sought is not None and all(isinstance(p.source, Standing) for p in (part, sought)):
            _ask(part, "same", (sought.source.place, sought.ops), bool(same))  # pyright: ignore
        elif wholes(what) or (part is None and str.__len__(what)):
            note("a text with a value is compared", one, what)
        elif part is None or not str.__len__(what):
            bool(one)  # a text equals "" if none of its parts is filled
        else:
            _ask(part, "==", str.__str__(what), bool(same))
        return same

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, str) else str.__ne__(self, other)  # pyright: ignore

    def __hash__(self) -> int:
        note("a value is looked up", self)
        return str.__hash__(self)

    def __contains__(self, text: str) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        if wholes(text):
            note("a value is searched for", self, text)
        elif not any(str.__contains__(part.text, text) for part in self.parts if not part.is_whole):
            self.free_of(text)
        return str.__contains__(self, text)

    def _ordered(self, kind: str, other: Any) -> Any:
        note("values are ordered", self, other)
        return getattr(str, kind)(self, other)

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        note("a part of a value is read", self)
        if isinstance(key, slice) and key.step in (None, 1):
            return self.cut(*key.indices(len(self))[:2])
        return traced(str.__getitem__(self, key), columns_of(self))

    def __iter__(self) -> Iterator[Traced]:
        note("a value is looped over", self)
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
            kept += [part._replace(text=text, ops=part.ops if len(text) == len(part.text) else None)] * bool(text)
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
        if self.whole is not None and not wholes(sought):
            _ask(self.whole, kind, sought, answer)
        elif end is not None and (wholes(sought) or end.is_whole or len(end.text) < len(sought)):
            note("the start or end of a text with a value is compared", self, sought)

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
                note("a text with a value is searched", self)
                return False
        found = False
        for part in wholes(self):  # all are asked
            has = text in part.text
            _ask(part, "in", text, has)
            found |= has
        return not found

    def made_from(self, columns: frozenset[str], line: int = 0, block: int = 0) -> Traced:
        """Return the text with more columns for each part."""

        def more(part: TracedPart) -> TracedPart:
            return part._replace(columns=part.columns | columns, line=line or part.line, block=block or part.block)

        return Traced(map(more, self.parts or [TracedPart("")]))


class Safe(Traced):
    """A text that the filter `safe` has marked. What is joined to it with `+` is escaped."""

    def __add__(self, other: Any) -> Any:
        return self.marked() + other

    def __radd__(self, other: Any) -> Any:
        return other + self.marked()

    def marked(self) -> Markup:
        """Return the text as other filters and methods get it."""
        note("a text that is marked as safe is used", self)
        return Markup(str.__str__(self))


class Number:
    """A number with the columns that it was made from; `measured` is the value whose length it is, or None."""

    columns: frozenset[str] = _NONE
    measured: TracedPart | None = None
    source: Standing | None = None

    def __str__(self) -> str:
        text, ops = _plain(self, "__repr__"), None if self.source is None else ()
        if self.measured is not None:
            note("the length of a value is written", self)
        return Traced([TracedPart(text, self.columns, bool(self.columns), source=self.source, ops=ops)])

    __repr__ = __str__

    def __hash__(self) -> int:
        note("a number is looked up", self)
        return _plain(self, "__hash__")

    def _compared(self, kind: str, other: Any) -> Any:
        answer = _plain(self, kind, other)
        if self.measured is not None and type(other) in (int, float):
            _ask(self.measured._replace(ops=(*(self.measured.ops or ()), ("length", None))), kind, other, bool(answer))
        elif answer is not NotImplemented:
            note("a number is compared", self, other)
        return answer


def _plain(number: Any, method: str, *args: Any) -> Any:
    return getattr(int if isinstance(number, int) else float, method)(number, *args)


for _kind in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Traced, _kind, functools.partialmethod(Traced._ordered, _kind))
for _kind in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Number, _kind, functools.partialmethod(Number._compared, _kind))
Number.__bool__ = lambda self: self._compared("__ne__", 0)  # pyright: ignore[reportAttributeAccessIssue]


class Integer(Number, int):
    pass


class _Float(Number, float):
    pass


def number(value: float, **attributes: Any) -> Number:
    """Return an equal number with attributes of `Number`."""
    made = (Integer if isinstance(value, int) else _Float)(value)
    vars(made).update(attributes)
    return made


def wholes(value: Any) -> list[TracedPart]:
    """Return the whole contents and fields in a value."""
    if isinstance(value, Traced):
        return [part for part in value.parts if part.is_whole]
    if isinstance(value, Number):
        own = [] if value.source is None else [TracedPart("", source=value.source, ops=())]
        return own if value.measured is None else [value.measured]
    if isinstance(value, TracedObject):
        return [TracedPart("", source=value.source, ops=())]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [part for item in items for part in wholes(item)]


def has_whole(value: Any) -> bool:
    """Return whether `wholes` has any; most values of a conversation show it early."""
    if isinstance(value, dict) and not isinstance(value, TracedObject):
        return any(map(has_whole, value.values()))
    return any(map(has_whole, value)) if isinstance(value, list | tuple) else bool(wholes(value))


def parts_of(text: str) -> tuple[TracedPart, ...]:
    """Return the parts of a text; one without any is the template's own."""
    return text.parts if isinstance(text, Traced) else (TracedPart(text),)


def columns_of(value: Any) -> frozenset[str]:
    """Return the columns that a value was made from, as far as it is text, a number, or a list or object of them."""
    if isinstance(value, Traced):
        return frozenset().union(*(part.columns for part in value.parts))
    if isinstance(value, Number):
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
        return number(value, columns=columns)
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


def with_values(variables: Any) -> Any:
    """Return a template's variables with traced values in place of tracked contents and of what stands for fields."""
    if isinstance(variables, Standing):
        return _traced_field(variables)
    if isinstance(variables, str):
        if TRACKS not in variables:
            return variables
        parts, at = list[TracedPart](), 0
        for match in TRACKED.finditer(variables):
            value = TracedPart(match[2] or match[0], source=int(match[1]), ops=())
            parts += [TracedPart(variables[at : match.start()]), value]
            at = match.end()
        return Traced([part for part in (*parts, TracedPart(variables[at:])) if part.text])
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
        written.append(part.text if part.ops is None or part.source is None else mark_of(part.source, part.ops))
    return "".join(written) + GENERATION_CLOSE * bool(block)


def _traced_field(source: Standing) -> Any:
    if isinstance(source.value, int | float):
        return number(source.value, source=source)
    text = source.value if isinstance(source.value, str) else json.dumps(source.value, ensure_ascii=False)
    return Traced([TracedPart(text, source=source, ops=())])


class TracedObject(dict[str, Any]):
    """An object of a row. If a template reads its items, the question is how it is structured."""

    def __init__(self, standing: Standing):
        self.source, self._whole = standing, as_object(standing.value)
        super().__init__(self._whole)

    @functools.cached_property
    def opened(self) -> dict[str, Any]:
        """The object as one whose items can be read; asks how it is structured."""
        (number, _), answers, count = self.source.place, self.source.answers, iter(range(sys.maxsize))
        answers.setdefault(Question(self.source.place, (), "structure", None), structure(self._whole))
        return with_fields(self._whole, lambda of: _traced_field(Standing.of(of, number, answers, next(count))))

    def written(self, options: Mapping[str, Any], before: str) -> TracedPart:
        """Return the object as JSON, as it is written after a text."""
        line = before.rpartition("\n")[2]
        indented = len(line) - len(line.lstrip(" ")) if options["indent"] is not None else 0
        given = tuple((name, tuple(of) if isinstance(of, list) else of) for name, of in options.items())
        op = ("dumps", (indented, given))
        return TracedPart(dumped(self._whole, op[1]), source=self.source, ops=(op,))


def _opening(name: str) -> Callable[..., Any]:
    return lambda of, *args: getattr(of.opened, name)(*args)


for _kind in ("__iter__", "__eq__", "__ne__", "__repr__"):
    setattr(TracedObject, _kind, _opening(_kind))
TracedObject.__bool__ = lambda of: len(of.opened) > 0  # pyright: ignore[reportAttributeAccessIssue]
