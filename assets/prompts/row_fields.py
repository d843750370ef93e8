"""What differs between conversations of one shape beside their contents: the fields of messages, and tools.

These are names, ids and arguments of calls, and other fields that the data have.

Rows with different calls would each be a shape of their own, which takes dozens of renderings to divide into turns.
Instead, all rows with the same calls but for these values are one shape, which is rendered with the fields of one of
them. In slots, outlines and pieces a field is a mark in the template's own text; `FieldTexts` puts each row's value
there, as the template writes it. Rows that answer the template's questions about their fields otherwise are another
shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import CLOSE, OPEN
from tokenloom.assets.stage.forms import IMAGES, RANGES, REASONING_FIELDS, SPACED
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tables.ragged import Flags
from tokenloom.resources.templates.marks import (
    FIELD_CLOSE,
    FIELD_OPEN,
    FIELDS,
    QUOTED,
    Answers,
    Standing,
    answered,
    as_object,
    is_field,
    kind_of_field,
    ops_of,
    with_fields,
    written,
)

_SAME = {"role", "content", "type", IMAGES, RANGES, SPACED, *REASONING_FIELDS}
"""Fields of messages, and of calls, that decide how the template writes a message: rows of one shape share them."""

Put = Callable[[Any, bool | None], Any]
"""Returns what is in place of a field; the flag says whether it is an object, or text of one (arguments, a tool). None
is text of one that is not written as JSON usually is."""


class Fielded(NamedTuple):
    """The fields of a message, or tools.

    Args:
        source: the value of JSON; None for tools that are not valid JSON.
        key: its JSON text, in which fields that rows can differ in have their kind only.
        replaced: returns it with others in place of these fields; None if rows must not differ in it.
    """

    source: Any
    key: str
    replaced: Callable[[Any, Put], Any] | None


class RowFields:
    """What a row has in the places of fields.

    Args:
        messages: the fields of its messages, or None for those without.
        tools: its tools, or None.
    """

    def __init__(self, messages: Sequence[Fielded | None], tools: Fielded | None):
        self._messages, self._tools = messages, tools
        self.values: list[Any] = []
        """All fields, in order."""
        self.numbers: list[int] = []
        """The number of each field: the place of the first one that is equal, as outlines can compare them."""
        self._inner: dict[int, list[Any]] = {}
        first: dict[Any, int] = {}

        def put(value: Any, is_object: bool | None) -> None:
            key = type(value), is_object, value if isinstance(value, str) else json.dumps(value)
            self.numbers.append(first.setdefault(key, len(self.values)))
            self.values.append(value)

        self._replaced(put)

    def _replaced(self, put: Put) -> tuple[list[Any], Any]:
        *messages, tools = (
            None if one is None else one.source if one.replaced is None else one.replaced(one.source, put)
            for one in (*self._messages, self._tools)
        )
        return messages, tools

    def standing(self, answers: Answers) -> tuple[list[Any], Any]:
        """Return the fields of the messages, and the tools, with a `Standing` in place of each field.

        Args:
            answers: where the template's questions about the fields are noted.
        """
        numbers = iter(self.numbers)

        def put(value: Any, is_object: bool | None) -> Any:
            standing = Standing.of(value, next(numbers), answers)
            standing.is_object = is_object is not False
            return {standing: 0} if is_object and isinstance(value, dict) else standing

        return self._replaced(put)

    @property
    def messages(self) -> list[Any]:
        return [None if one is None else one.source for one in self._messages]

    @property
    def tools(self) -> Any:
        return None if self._tools is None else self._tools.source

    def value(self, place: tuple[int, int]) -> Any:
        """Return the field with a number, or the field within it that has the second number."""
        number, inner = place
        if inner < 0:
            return self.values[number]
        if number not in self._inner:
            found = self._inner[number] = list[Any]()
            with_fields(as_object(self.values[number]), found.append)
        return self._inner[number][inner]


def alike(rows: Sequence[RowFields], answers: Answers) -> Flags:
    """Return bool [rows], which rows answer all questions so."""
    same = np.ones(len(rows), bool)
    for question, answer in answers.items():
        # what an object has in it is only asked of rows whose objects are structured alike
        places = np.flatnonzero(same).tolist()
        found = answered(question, lambda place, places=places: [rows[at].value(place) for at in places])
        same[places] = [one == answer for one in found]
    return same


class FieldFinder:
    """Finds the fields in which rows of one shape can differ.

    Args:
        control: texts that no value with such fields can contain, next to tags of reasoning and private characters.
    """

    def __init__(self, control: tuple[str, ...]):
        self._guard = any_of((*control, OPEN, CLOSE, *map(chr, range(0xE0D0, 0xE0DB))))

    def in_messages(self, fields: pa.Array) -> list[Fielded | None]:
        """Return the fields of messages, given as string [messages], JSON text or null."""
        return _distinct(fields, lambda text: self._found(json.loads(text), text, _in_message))

    def in_tools(self, tools: pa.Array) -> list[Fielded | None]:
        """Return tools, given as string [rows], JSON text."""

        def found(text: str) -> Fielded:
            try:
                return self._found(json.loads(text) if text else None, text, _in_tools)
            except ValueError:
                return Fielded(None, text, None)

        return _distinct(tools, found)

    def _found(self, source: Any, text: str, replaced: Callable[[Any, Put], Any]) -> Fielded:
        if self._guard.search(json.dumps(source, ensure_ascii=False)):
            return Fielded(source, " " + text, None)  # no key of others begins so

        def kind(value: Any, is_object: bool | None) -> str:
            if is_object is None:
                return f"{FIELD_OPEN}}}}}"
            return f"{FIELD_OPEN}{'{' if isinstance(value, dict) else '}'}" if is_object else kind_of_field(value)

        return Fielded(source, json.dumps(replaced(source, kind), ensure_ascii=False) if source else text, replaced)


def _distinct(texts: pa.Array, find: Callable[[str], Fielded]) -> list[Fielded | None]:
    """Return what is found in each text; null for null. Equal texts are read once."""
    encoded = texts.dictionary_encode()
    found = [find(text) for text in encoded.dictionary.to_pylist()]
    return [None if index is None else found[index] for index in encoded.indices.to_pylist()]


def _in_message(fields: dict[str, Any], put: Put) -> dict[str, Any]:
    return {
        name: [_in_call(call, put) for call in value]
        if name == "tool_calls" and isinstance(value, list)
        else value
        if name in _SAME
        else with_fields(value, lambda inner: put(inner, False))
        for name, value in fields.items()
    }


def _in_call(call: Any, put: Put) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or QUOTED.search(str(function.get("name"))):
        return call  # outlines search for the names of functions as they are

    def part(name: str, value: Any) -> Any:
        if name == "arguments" and (is_object := _is_object(value)) is not False:
            # texts with nothing to escape, or with white space around them, are written otherwise than the others
            return put(value, is_object) if is_object or (is_field(value) and QUOTED.search(value)) else value
        return with_fields(value, lambda inner: put(inner, False))

    inner = {name: part(name, value) for name, value in function.items()}
    return {
        name: value if name in _SAME else inner if name == "function" else part("", value)
        for name, value in call.items()
    }


def _is_object(arguments: Any) -> bool | None:
    """Return whether arguments are an object with items, or the plain JSON text of one; None for other text of one."""
    if not isinstance(arguments, str):
        return isinstance(arguments, dict) and bool(arguments)
    try:
        value = read_json_value(arguments)
    except ValueError:
        return False
    if not isinstance(value, dict):
        return False
    is_plain = arguments[:1] == "{" and arguments[-1:] == "}" and "\\u" not in arguments and "\\/" not in arguments
    return True if is_plain and value else None


def _in_tools(tools: Any, put: Put) -> Any:
    return [_in_tool(tool, put) for tool in tools] if isinstance(tools, list) else tools


def _in_tool(tool: Any, put: Put) -> Any:
    if not isinstance(tool, dict) or not tool:
        return tool
    if tool.keys() == {"type", "function"} and isinstance(inner := tool["function"], dict) and inner:
        return {name: put(inner, True) if name == "function" else of for name, of in tool.items()}
    return put(tool, True)


class FieldTexts:
    """Puts the fields of rows in place of their marks.

    Args:
        rows: the fields of each row.
        control: texts that a text with fields cannot contain: a token could begin before a field and end in it.
    """

    def __init__(self, rows: Sequence[RowFields], control: tuple[str, ...]):
        self._rows, self._control = rows, control
        self._columns: dict[str, pa.Array] = {}

    def taken(self, places: Sequence[int]) -> FieldTexts:
        """Return those of some of the rows."""
        return FieldTexts([self._rows[place] for place in places], self._control)

    def fill(self, text: str) -> pa.Array | None:
        """Return the text of each row, as strings; None if the text has no field.

        Raises:
            TemplateError: the text has a part of a mark, or a field completes a control token.
        """
        if FIELD_OPEN not in text and FIELD_CLOSE not in text:
            return None
        filled = pc.binary_join_element_wise(*self._parts(text), "")
        if any_of(self._control).search("\n".join(filled.to_pylist())):
            raise TemplateError("a value completes a control token")
        return filled

    def _parts(self, text: str) -> Iterator[Any]:
        at = 0
        for match in FIELDS.finditer(text):
            yield pa.scalar(text[at : match.start()], pa.string())
            if match[0] not in self._columns:
                place, ops = (int(match[1]), int(match[2] or -1)), ops_of(match[3])
                self._columns[match[0]] = written([row.value(place) for row in self._rows], ops)
            yield self._columns[match[0]]
            at = match.end()
        if FIELD_OPEN in text[at:] or FIELD_CLOSE in text[at:]:
            raise TemplateError("the template changes a value")
        yield pa.scalar(text[at:], pa.string())


@lru_cache(maxsize=16)
def any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of some texts."""
    return re.compile("|".join(map(re.escape, filter(None, texts))) or "(?!)")
