"""Stand-ins for what differs between conversations of one shape beside their contents: names, ids and arguments of
calls, other fields, and tools.

Rows with different calls would each be a shape of their own, which takes dozens of renderings to divide into turns.
With stand-ins, all rows with the same calls but for these values are one shape. In slots, outlines and pieces a
stand-in is part of the template's own text; `Filler` puts each row's value there, in the form in which the template
writes it: as it is, or as JSON. Every such row is compared with Jinja's text of it. Rows whose text differs, and values
with what is searched for in outlines, are rendered without stand-ins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import CLOSE, OPEN
from tokenloom.assets.stage.forms import IMAGES, RANGES, REASONING_FIELDS, SPACED
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tables.ragged import Ints

START, END = "\ue0d8", "\ue0d9"
WHOLE = "83719462"
"""Begin of the digits of numbers that stand for numbers, which templates can tell from text."""

_SCHEMA = ("type", "required", "enum")
"""Names whose values in JSON schemas decide how templates write them."""

_KEPT = {"role", "content", "type", IMAGES, RANGES, SPACED, *REASONING_FIELDS}
"""Fields of messages, and of calls, that decide how the template writes a message."""

QUOTED = re.compile(r'["\\\x00-\x1f]')
"""What JSON escapes. A value with such a character has a stand-in that shows whether it is escaped."""

_WRITTEN = re.compile(
    rf'\{{(?P<left>\s*)"{START}(?P<object>[0-9]+)\\"{END}": 0(?P<right>\s*)\}}'
    rf'|\{{{START}(?P<text>[0-9]+)(?P<text_escaped>\\?)"{END}\}}'
    rf'|{START}(?P<string>[0-9]+)(?P<escaped>\\?)"{END}'
    rf"|{START}(?P<plain>[0-9]+){END}|{WHOLE}(?P<integer>[0-9]{{5}})|{WHOLE[:6]}\.{WHOLE[6:]}(?P<decimal>[0-9]{{5}})1"
)
"""How templates write stand-ins: objects, their JSON text, texts with what JSON escapes, numbers, and other texts."""

_STAND_IN = re.compile(rf'\{{{START}[0-9]+"{END}\}}')


class Row(NamedTuple):
    """What a row has in place of stand-ins.

    Args:
        fields: the fields of its messages, for those that have stand-ins.
        tools: its tools, as templates get them.
        values: all values with a stand-in, in the order of their numbers.
        parsed: whether arguments that are text in the row are objects with stand-ins.
    """

    fields: tuple[dict[str, Any] | None, ...]
    tools: Any
    values: list[Any]
    parsed: bool


class Sealed(NamedTuple):
    """A value, its JSON text with stand-ins numbered from 0, and the parts of it that have them.

    Args:
        parsed: whether arguments that are JSON text in the source are objects with stand-ins.
        keys: a key for each value; those with equal keys have the same stand-in.
    """

    source: Any
    text: str
    values: Sequence[Any] = ()
    parsed: bool = False
    keys: Sequence[Any] = ()


def as_object(text: Any) -> dict[str, Any] | None:
    """Return the object with the same stand-in as the JSON text of an object, or None if the text is not a stand-in."""
    return {text[1:-1]: 0} if isinstance(text, str) and _STAND_IN.fullmatch(text) else None


def as_text(value: dict[str, Any]) -> str | None:
    """Return the text with the same stand-in as an object, or None if the object is not a stand-in."""
    text = f"{{{next(iter(value))}}}" if len(value) == 1 else ""
    return text if _STAND_IN.fullmatch(text) else None


@dataclass
class Sealer:
    """Puts stand-ins into the fields of messages and into tools.

    Args:
        control: texts that no value with a stand-in can contain, next to tags of reasoning and private characters.
        known: whether the template compares values with a text, or could do so.
        depth: 0: arguments and tools have a stand-in each; 1: each string and number within arguments, for templates
            that read them; 2: also those within tools.
    """

    control: tuple[str, ...]
    known: Callable[[str], bool]
    depth: int

    def __post_init__(self) -> None:
        self.guard = _any_of((*self.control, OPEN, CLOSE, *map(chr, range(0xE0D0, 0xE0DA)), WHOLE[:6]))

    def of_fields(self, text: str) -> Sealed:
        """Return a message's fields with stand-ins."""
        return self._sealed(json.loads(text), text, text, self._fields)

    def of_tools(self, text: str) -> Sealed:
        """Return tools, given as JSON text, with stand-ins."""
        try:
            source = json.loads(text) if text else None
        except ValueError:
            return Sealed(None, text)
        return self._sealed(source, text, json.dumps(source, ensure_ascii=False), self._tools)

    def _sealed(self, source: Any, text: str, plain: str, put: Callable[[Any, _Marks], Any]) -> Sealed:
        if self.guard.search(plain):
            return Sealed(source, " " + text)  # no text with stand-ins begins so
        marks = _Marks(0)
        changed = put(source, marks)
        if not marks.values:
            return Sealed(source, text)
        sign = " " if marks.parsed else ""  # arguments that are text, and objects, are two shapes
        return Sealed(source, json.dumps(changed, ensure_ascii=False) + sign, marks.values, marks.parsed, marks.keys)

    def numbered(self, sealed: Sealed, start: int, first: dict[Any, int], tools: bool = False) -> str:
        """Return the JSON text of a value with stand-ins that are numbered from `start` on.

        Args:
            first: the number of the first value with each key; is added to.
        """
        put = self._tools if tools else self._fields
        marks = _Marks(start, first=first)
        return json.dumps(put(sealed.source, marks), ensure_ascii=False) if sealed.values else sealed.text

    def _fields(self, fields: dict[str, Any], marks: _Marks) -> dict[str, Any]:
        return {
            name: [self._call(call, marks) for call in value]
            if name == "tool_calls" and isinstance(value, list)
            else value
            if name in _KEPT
            else self._leaves(value, marks)
            for name, value in fields.items()
        }

    def _call(self, call: Any, marks: _Marks) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or QUOTED.search(str(function.get("name"))):
            return call
        return {name: value if name in _KEPT else self._part(value, marks) for name, value in call.items()}

    def _part(self, value: Any, marks: _Marks) -> Any:
        """Return a part of a call: its function, or another field."""
        if not isinstance(value, dict) or "arguments" not in value:
            return self._leaves(value, marks)
        return {
            name: self._arguments(inner, marks) if name == "arguments" else self._leaves(inner, marks)
            for name, inner in value.items()
        }

    def _arguments(self, value: Any, marks: _Marks) -> Any:
        found = value
        if isinstance(value, str):
            if value[:1] != "{" or value[-1:] != "}" or "\\u" in value or "\\/" in value:
                return value
            try:
                found = read_json_value(value)
            except ValueError:
                return value
        if not isinstance(found, dict) or not found:
            return value
        if self.depth > 0:
            marks.parsed |= isinstance(value, str)
            return self._leaves(found, marks)
        mark = marks.put(value, '"')
        return f"{{{mark}}}" if isinstance(value, str) else {mark: 0}

    def _tools(self, tools: Any, marks: _Marks) -> Any:
        if self.depth > 1 or not isinstance(tools, list):
            return self._leaves(tools, marks)
        return [self._tool(tool, marks) for tool in tools]

    def _tool(self, tool: Any, marks: _Marks) -> Any:
        if not isinstance(tool, dict) or not tool:
            return tool
        if tool.keys() == {"type", "function"} and isinstance(inner := tool["function"], dict) and inner:
            return {name: {marks.put(inner, '"'): 0} if name == "function" else of for name, of in tool.items()}
        return {marks.put(tool, '"'): 0}

    def _leaves(self, value: Any, marks: _Marks) -> Any:
        if isinstance(value, dict):
            return {name: inner if name in _SCHEMA else self._leaves(inner, marks) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._leaves(inner, marks) for inner in value]
        if isinstance(value, str) and value and value == value.strip() and not self.known(value):
            return marks.put(value, '"' if QUOTED.search(value) else "")
        return marks.number(value) if type(value) is int or type(value) is float else value


@dataclass
class _Marks:
    """Numbers stand-ins from `start` on, and collects their values."""

    start: int
    values: list[Any] = field(default_factory=list)
    parsed: bool = False
    keys: list[Any] = field(default_factory=list)
    first: dict[Any, int] = field(default_factory=dict)

    def put(self, value: Any, sign: str = "") -> str:
        return f"{START}{self._number(value, sign)}{sign}{END}"

    def number(self, value: float) -> float:
        digits = f"{self._number(value, '#'):05}"
        return int(WHOLE + digits) if isinstance(value, int) else float(f"{WHOLE[:6]}.{WHOLE[6:]}{digits}1")

    def _number(self, value: Any, sign: str) -> int:
        """Add a value; return the number of the first one that is equal."""
        key = type(value), sign, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self.values.append(value)
        self.keys.append(key)
        return self.first.setdefault(key, self.start + len(self.values) - 1)


class Sealing:
    """The fields of messages, and the tools of rows, with stand-ins.

    Args:
        fields: string [messages], JSON text or null.
        tools: string [rows], JSON text, or None.
    """

    def __init__(self, sealer: Sealer, fields: pa.Array, tools: pa.Array | None):
        self._sealer = sealer
        self._fields = _distinct(fields, sealer.of_fields)
        self._tools = None if tools is None else _distinct(tools, sealer.of_tools)

    @property
    def texts(self) -> tuple[pa.Array, pa.Array | None]:
        """The fields and tools as JSON text; equal for those that differ only in values with stand-ins."""
        fields, tools = (
            None if found is None else pa.array([None if one is None else one.text for one in found], pa.string())
            for found in (self._fields, self._tools)
        )
        return fields, tools

    def equal(self, offsets: Ints) -> pa.Array:
        """Return a text for each row that says which of its values are equal: templates can repeat or compare them."""
        found: list[str] = []
        for row, (start, end) in enumerate(pairwise(offsets.tolist())):
            first: dict[Any, int] = {}
            keys = [key for one in self._of(row, start, end) for key in one.keys]
            found.append(",".join(str(first.setdefault(key, number)) for number, key in enumerate(keys)))
        return pa.array(found, pa.string())

    def _of(self, row: int, start: int, end: int) -> list[Sealed]:
        """Return the fields of a row's messages, and its tools."""
        tools = None if self._tools is None else self._tools[row]
        return [one for one in (*self._fields[start:end], tools) if one is not None]

    def numbered(self, places: Sequence[int], row: int) -> tuple[list[str | None], str]:
        """Return the fields of a conversation's messages, and its tools, with all stand-ins numbered."""
        texts: list[str | None] = []
        start, first = 0, dict[Any, int]()
        for sealed in (self._fields[place] for place in places):
            texts.append(None if sealed is None else self._sealer.numbered(sealed, start, first))
            start += 0 if sealed is None else len(sealed.values)
        tools = None if self._tools is None else self._tools[row]
        return texts, "" if tools is None else self._sealer.numbered(tools, start, first, tools=True)

    def rows(self, rows: Ints, offsets: Ints) -> list[Row]:
        """Return what rows have in place of stand-ins; empty if they have none."""
        found = [self._row(row, int(offsets[row]), int(offsets[row + 1])) for row in rows.tolist()]
        return found if found[0].values else []

    def _row(self, row: int, start: int, end: int) -> Row:
        sealed = self._of(row, start, end)
        fields = tuple(one.source if one is not None and one.values else None for one in self._fields[start:end])
        tools = None if self._tools is None or (of := self._tools[row]) is None else of.source
        values = [value for one in sealed for value in one.values]
        return Row(fields, tools, values, any(one.parsed for one in sealed))


def _distinct(texts: pa.Array, seal: Callable[[str], Sealed]) -> list[Sealed | None]:
    """Return what each text becomes; null for null. Equal texts are sealed once."""
    encoded = texts.dictionary_encode()
    found = [seal(text) for text in encoded.dictionary.to_pylist()]
    return [None if index is None else found[index] for index in encoded.indices.to_pylist()]


class Filler:
    """Puts the values of rows in place of their stand-ins.

    Args:
        rows: the values of each row.
        control: texts that a text with values cannot contain: a token could begin before a value and end in it.
    """

    def __init__(self, rows: Sequence[Row], control: tuple[str, ...]):
        self._rows, self._control = rows, control
        self._columns: dict[tuple[int, str], pa.Array] = {}

    def taken(self, places: Sequence[int]) -> Filler:
        """Return the filler of some of the rows."""
        return Filler([self._rows[place] for place in places], self._control)

    def fill(self, text: str) -> pa.Array | None:
        """Return the text of each row, as strings; None if the text has no stand-in.

        Raises:
            TemplateError: the template writes a value in another form, or a value completes a control token.
        """
        if not _WRITTEN.search(text) and START not in text and END not in text:
            return None
        parts = [
            pa.scalar(part, pa.string()) if isinstance(part, str) else self._column(*part) for part in _parts(text)
        ]
        filled = pc.binary_join_element_wise(*parts, "")
        if _any_of(self._control).search("\n".join(filled.to_pylist())):
            raise TemplateError("a value completes a control token")
        return filled

    def _column(self, number: int, form: str) -> pa.Array:
        if any(number >= len(row.values) for row in self._rows[:1]):
            raise TemplateError("the data have the text of a stand-in")
        if (number, form) not in self._columns:
            write = _FORMS[form] if form in _FORMS else _indented(*map(int, form.split()))
            self._columns[number, form] = pa.array([write(row.values[number]) for row in self._rows], pa.string())
        return self._columns[number, form]


@lru_cache(maxsize=16)
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, filter(None, texts))) or "(?!)")


def _parts(text: str) -> Iterator[str | tuple[int, str]]:
    """Yield what a text consists of: texts, and numbers of values with their form.

    Raises:
        TemplateError: the template writes a value in an unknown form.
    """
    at = 0
    for match in _WRITTEN.finditer(text):
        found = match.groupdict()
        yield from filter(None, [text[at : match.start()]])
        at = match.end()
        if found["object"]:
            sides = found["left"], found["right"]
            if any(sides) and not all(re.fullmatch("\n *", side) for side in sides):
                raise TemplateError("the template writes an object in an unknown form")
            yield int(found["object"]), " ".join(str(len(side) - 1) for side in sides) if any(sides) else "object"
        elif found["text"]:
            yield int(found["text"]), "text escaped" if found["text_escaped"] else "text"
        elif number := found["integer"] or found["decimal"]:
            yield int(number), "number"
        else:
            yield int(found["string"] or found["plain"]), "escaped" if found["escaped"] else "string"
    yield from filter(None, [text[at:]])
    if START in text[at:] or END in text[at:]:
        raise TemplateError("the template changes a value")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_object(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _indented(left: int, right: int) -> Callable[[Any], str]:
    """Return how an object is written in several lines, by the spaces before its fields and before its end."""

    def write(value: Any) -> str:
        return json.dumps(_as_object(value), ensure_ascii=False, indent=left - right).replace("\n", "\n" + " " * right)

    return write


_FORMS: dict[str, Callable[[Any], str]] = {
    "object": lambda value: json.dumps(_as_object(value), ensure_ascii=False),
    "text": _as_text,
    "text escaped": lambda value: _escaped(_as_text(value)),
    "string": str,
    "escaped": _escaped,
    "number": lambda value: json.dumps(value),
}
