"""Determines where the rows of a JSON file are: on lines, in an array, in an object keyed by id, or in nested lists;
and where the elements of an array, or the entries of an object, start and end in bytes read in blocks.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokenloom.assets.raw.formats.record_boundaries import BACKSLASH, NEWLINE, QUOTE, SPACE, Bytes
from tokenloom.errors import SourceError
from tokenloom.resources.tables.json_text import TOO_DEEP
from tokenloom.resources.tables.nested_paths import quoted
from tokenloom.resources.tables.ragged import Flags, Ints

COMMA, COLON, BRACKET, BRACE = (np.uint8(ord(char)) for char in ",:[{")
_STRUCTURAL = np.zeros(256, bool)
_STRUCTURAL[[ord(char) for char in '"\\[]{},:']] = True
_DEEPEST = 1 << 16
_DEPTH = np.zeros(256, np.int8)
_DEPTH[[ord("["), ord("{")]] = 1
_DEPTH[[ord("]"), ord("}")]] = -1


class JsonElements:
    """A finder with one record per element: the text between the commas of an array or object already opened.

    Commas are replaced by newlines, which leaves a sequence of JSON values.

    Args:
        keys: the object keys around the container; the same number of braces must close after it.
        start: bytes of the file before the container's first element, for messages.
        alone: whether another list of objects after the container is an error.
        name: the file, for messages.
        closing: the bracket that ends the container.

    Raises:
        SourceError: a bracket or quote is not closed, or more text follows the container.
    """

    def __init__(self, keys: tuple[str, ...], start: int, alone: bool, name: str, closing: str = "]"):
        self._closing = ord(closing)
        self._keys, self._at, self._alone, self._name = keys, start, alone, name
        self._closed = False
        self._depth, self._in_string, self._escaped = 0, False, False

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        bounds = self._tail(window, final) if self._closed else self._elements(window, final)
        self._at += int(bounds[-1])
        return bounds

    def shortened(self, window: Bytes) -> tuple[bytes, int]:
        """Return the brackets and the quote that are open; see `Finder`."""
        if self._closed:
            return window.tobytes(), len(window)
        _, char, in_string, escaped = structure(window, False, False)
        depth = int(_DEPTH[char].sum(dtype=np.int64))
        if depth > _DEEPEST:
            raise SourceError(f"{self._name}: {TOO_DEEP}, near byte {self._at + len(window)}")
        short = b"[" * depth + b'"' * in_string + b"\\" * escaped or (b" " if SPACE[window].all() else b"0")
        self._at += len(window) - len(short)
        return short, len(window)

    def _elements(self, window: Bytes, final: bool) -> Ints:
        at, char = outside_strings(window)
        depth = np.cumsum(_DEPTH[char], dtype=np.int64)
        closing = np.flatnonzero(depth < 0)[:1]
        self._closed = bool(len(closing))
        end = at[closing[0]] if self._closed else len(window)
        commas = at[(depth == 0) & (char == COMMA) & (at < end)]
        window[commas] = NEWLINE
        if not self._closed:
            if final:
                raise SourceError(
                    f"{self._name}: invalid JSON: the file ends inside an array, object or string, "
                    f"at byte {self._at + len(window)}"
                )
            return np.concatenate([[0], commas + 1])
        if window[end] != self._closing:
            raise SourceError(
                f"{self._name}: invalid JSON: expected {chr(self._closing)!r} at byte {self._at + int(end)}"
            )
        window[end] = NEWLINE
        last = commas[-1] + 1 if len(commas) else 0
        # a last element ends without a comma, at the bracket; after a trailing comma nothing is left but space
        if not SPACE[window[last:end]].all():
            return np.concatenate([[0], commas + 1, [int(end) + 1]]).astype(np.int64)
        return np.concatenate([[0], commas + 1]).astype(np.int64) if len(commas) else np.array([end + 1], np.int64)

    def _tail(self, window: Bytes, final: bool) -> Ints:
        """Check the text after the container: only braces of objects around it can close, with further members."""
        at, char, self._in_string, self._escaped = structure(window, self._in_string, self._escaped)
        depth = self._depth + np.cumsum(_DEPTH[char], dtype=np.int64)
        # the object around all closes where as many braces have closed as keys were opened; -1: in an earlier window
        ended = [-1] if self._depth == -len(self._keys) else at[depth == -len(self._keys)][:1]
        more = np.flatnonzero(~SPACE[window])
        more = more[more > ended[0]] if len(ended) else more[:0]
        if len(more):
            raise SourceError(
                f"{self._name}: invalid JSON: more text after the end of the value, at byte {self._at + int(more[0])}"
            )
        # another list of objects beside the one found: `[` at depth 1 with `{` right after it
        lists = np.flatnonzero((char[:-1] == BRACKET) & (depth[:-1] == 1) & (char[1:] == BRACE))
        if self._alone and len(lists):
            raise SourceError(
                f"{self._name}: found more than one list of objects, {self._keys[0]} and one at byte "
                f"{self._at + int(at[lists[0]])}; set dataset.reader.root to the list with the rows"
            )
        self._depth = int(depth[-1]) if len(depth) else self._depth
        if final and (self._depth != -len(self._keys) or self._in_string):
            raise SourceError(
                f"{self._name}: invalid JSON: the file ends inside an object or string, "
                f"at byte {self._at + len(window)}"
            )
        return np.array([len(window)], np.int64)


class JsonValues(JsonElements):
    """A finder with one record per object or list of several, one after the other. Commas between them become spaces.

    Args:
        start: bytes of the file before the first value, for messages.
        name: the file, for messages.

    Raises:
        SourceError: a bracket or quote is not closed, or one too many is.
    """

    def __init__(self, start: int, name: str):
        super().__init__((), start, False, name)

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        at, char = outside_strings(window)
        depth = np.cumsum(_DEPTH[char], dtype=np.int64)
        if (depth < 0).any() or (final and len(depth) and depth[-1]):
            where = self._at + int(at[np.argmax(depth < 0)] if (depth < 0).any() else len(window))
            raise SourceError(
                f"{self._name}: invalid JSON: a bracket or quote is not closed, or too many are, at byte {where}"
            )
        window[at[(depth == 0) & (char == COMMA)]] = ord(" ")
        ends = at[(depth == 0) & (_DEPTH[char] < 0)] + 1
        if final and len(ends) and SPACE[window[ends[-1] :]].all():
            ends[-1] = len(window)
        rest = [len(window)] if final and (not len(ends) or ends[-1] < len(window)) else []
        bounds = np.concatenate([[0], ends, rest])
        self._at += int(bounds[-1])
        return bounds.astype(np.int64)


def outside_strings(data: Bytes) -> tuple[Ints, Bytes]:
    """Return the positions and characters of brackets, commas and colons outside of strings."""
    at, char, _, _ = structure(data, False, False)
    return at, char


def structure(data: Bytes, in_string: bool, escaped: bool) -> tuple[Ints, Bytes, bool, bool]:
    """Return the positions and characters of brackets, commas and colons outside of strings, and the final state.

    Args:
        in_string: whether the data starts inside a string.
        escaped: whether it starts after a backslash in a string.

    Returns:
        int64 and uint8 [characters], and `in_string` and `escaped` at the end of the data.
    """
    at = np.flatnonzero(_STRUCTURAL[data])
    if escaped and len(at) and at[0] == 0:
        at = at[1:]
    char = data[at]
    run = 0  # of backslashes at the end
    while run < len(at) and char[-1 - run] == BACKSLASH and at[-1 - run] == len(data) - 1 - run:
        run += 1
    escaped = run % 2 == 1 or (escaped and not len(data))
    unescaped = unescaped_quotes(at, char)
    # an odd number of quotes so far: inside a string
    inside = (np.cumsum(unescaped) + in_string) % 2 == 1
    outside = ~inside & (char != QUOTE) & (char != BACKSLASH)
    return at[outside], char[outside], bool(inside[-1]) if len(inside) else in_string, escaped


def unescaped_quotes(at: Ints, char: Bytes) -> Flags:
    """Return which structural characters are quotes after an even number of backslashes."""
    backslash = char == BACKSLASH
    if not backslash.any():
        return char == QUOTE
    index = np.arange(len(at))
    follows = np.zeros(len(at), bool)
    follows[1:] = (at[1:] == at[:-1] + 1) & backslash[:-1]
    # in a run of backslashes every second one is escaped, and so is what follows an odd run
    run_start = np.maximum.accumulate(np.where(backslash & ~follows, index, 0))
    escaped = follows & ((index - run_start) % 2 == 1)
    return (char == QUOTE) & ~escaped


def split_entries(data: Bytes, bounds: Ints) -> tuple[Ints, Ints, Ints]:
    """Split entries `"key": value`: return where each key's string starts and ends, and where its value starts.

    Args:
        bounds: int64 [records + 1] into `data`.

    Returns:
        Three int64 [records].

    Raises:
        ValueError: an entry has no key or no value.
    """
    all_at = np.flatnonzero(_STRUCTURAL[data])
    quotes = all_at[unescaped_quotes(all_at, data[all_at])]
    first = np.searchsorted(quotes, bounds[:-1])
    if len(first) and (first[-1] + 1 >= len(quotes)):
        raise ValueError("an entry has no key")
    # an entry's first two quotes are those of its key; a colon in the key comes before the second
    start, end = quotes[first], quotes[first + 1]
    colons = np.flatnonzero(data == COLON)
    after = np.searchsorted(colons, end)
    if len(after) and after[-1] >= len(colons):
        raise ValueError("an entry has no value")
    return start, end + 1, colons[after] + 1


Kind = Literal["lines", "values", "elements", "entries", "whole"]
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_STEP = re.compile(r"`([^`]+)`|([^.`\[\]]+)|(\[\])")


@dataclass(frozen=True)
class Root:
    """A path to the rows, such as `data[].paragraphs[].qas[]`.

    Args:
        lists: for each list on the path, the object keys that lead to it.
    """

    lists: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Root:
        """Parse the text of `dataset.reader.root`."""
        lists: list[tuple[str, ...]] = []
        keys: list[str] = []
        for in_backticks, plain, end in _STEP.findall(text):
            if end:
                lists.append(tuple(keys))
                keys = []
            else:
                keys.append(in_backticks or plain)
        return cls(tuple(lists))

    def __str__(self) -> str:
        return ".".join(".".join(map(quoted, keys)) + "[]" for keys in self.lists)


@dataclass(frozen=True)
class JsonLayout:
    """Where the rows of a JSON file are.

    Args:
        kind: what a record is: one of the `lines`, of the `values` one after the other, of the `elements` of an array,
            of the `entries` of an object (`"key": {...}`), or the `whole` file.
        start: characters before the first record.
        keys: the object keys around the records, outermost first.
        inner: the lists within a record that contain the rows, outermost first.
        lists: whether each record is a list instead of an object.
        found: whether `keys` and `inner` were detected rather than declared.
    """

    kind: Kind
    start: int = 0
    keys: tuple[str, ...] = ()
    inner: tuple[tuple[str, ...], ...] = ()
    lists: bool = False
    found: bool = False

    @property
    def root(self) -> str:
        """The path from the file to its rows; "" if the rows are its lines, elements or entries."""
        return str(Root((self.keys, *self.inner))) if self.keys or self.inner else ""


class _MoreNeeded(Exception):
    """The start of the file is too short to determine the layout."""


def json_layout(head: str, final: bool, named_lines: bool, root: Root | None, name: str) -> JsonLayout | None:
    """Return the layout of a JSON file, given its first characters, or None if more of them are needed.

    Args:
        head: the start of the file.
        final: whether `head` is the whole file.
        named_lines: whether the file name declares one value per line (`.jsonl`).
        root: the declared path to the rows.
        name: the file, for messages.

    Raises:
        SourceError: the file is not valid JSON, is nested too deeply, or `root` does not exist in it.
    """
    try:
        return _layout(head, final, named_lines, root, name)
    except RecursionError:
        raise SourceError(f"{name}: {TOO_DEEP}") from None
    except (_MoreNeeded, IndexError, ValueError) as error:
        if not final:
            return None
        at = getattr(error, "pos", len(head))
        raise SourceError(f"{name}: invalid JSON near byte {len(head[:at].encode())}: {error}") from error


def _layout(head: str, final: bool, named_lines: bool, root: Root | None, name: str) -> JsonLayout:
    at = _skip(head, 0)
    if at == len(head):
        return _or_more(final, JsonLayout("lines"))
    opening = head[at]
    first, alone = _first_line(head, at, final or named_lines)
    # one line that holds a list: the rows, in spite of the name, unless the list is one conversation
    if named_lines and root is None and alone and isinstance(first, list) and not _is_conversation(first):
        return _or_more(final, _elements(head, at, root, name))
    # a whole value on the first line and more below: one row per line
    if first is not None and (named_lines or not alone) and (root is None or root.lists[0]):
        lists = isinstance(first, list) and _are_lists(head, at, final)
        return JsonLayout("lines", inner=root.lists if root else (), lists=lists)
    # an object that goes on after the first line: pretty-printed values one after the other, or one object
    if opening == "{" and first is None and _are_values(head, at, final, named_lines):
        return JsonLayout("values", at, inner=root.lists if root else ())
    # the name says lines and the next ones are rows: the first is damaged, and rejected by itself
    if named_lines and (opening != "[" or _are_objects(head, at)):
        return JsonLayout("lines", inner=root.lists if root else ())
    if opening == "[":
        return _elements(head, at, root, name)
    if opening != "{":
        raise SourceError(f"{name}: expected a JSON array of objects, one object per line, or an object of objects")
    if root is not None:
        if not root.lists[0]:
            raise SourceError(f"{name}: the file is an object, but dataset.reader.root {root} expects an array")
        return JsonLayout("elements", _descend(head, at, root.lists[0], name), root.lists[0], root.lists[1:])
    kinds = ""
    for key, value in _members(head, at):
        if head[value] == "[" and head[inside := _skip(head, value + 1)] == "{":
            # an object around messages is one conversation, so the file is one row
            if _is_message(_DECODER.raw_decode(head, inside)[0]):
                return JsonLayout("whole", at)
            return JsonLayout("elements", value + 1, (key,), _inner_lists(head, value + 1), found=True)
        kinds += head[value].replace("n", "")  # a null does not show the kind
        # two objects under two keys are enough to take the keys for ids
        if kinds == "{{":
            return JsonLayout("entries", at + 1)
    if kinds == "{":
        return JsonLayout("entries", at + 1)
    if kinds:
        return JsonLayout("whole", at)
    raise SourceError(f"{name}: expected a JSON array of objects, one object per line, or an object of objects")


def _or_more(enough: bool, layout: JsonLayout) -> JsonLayout:
    """Return the layout, or raise _MoreNeeded if the text read so far is not enough to be sure of it."""
    if not enough:
        raise _MoreNeeded("the file ends too early")
    return layout


def _first_line(head: str, at: int, final: bool) -> tuple[Any, bool]:
    """Return the value on the first line, None if it is not one whole list or object, and whether nothing follows."""
    line, broken, rest = head[at:].partition("\n")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    _or_more(final or bool(broken) or value is None, JsonLayout("lines"))
    alone = not rest.strip()
    if isinstance(value, dict | list):
        _or_more(final or not alone, JsonLayout("lines"))
        return value, alone
    return None, alone


def _is_conversation(items: list[Any]) -> bool:
    """Return whether a list alone in a file is one conversation instead of the rows."""
    return not items or not isinstance(items[0], dict | list) or (isinstance(items[0], dict) and _is_message(items[0]))


def _are_lists(head: str, at: int, final: bool) -> bool:
    """Return whether all records are lists, given that the first is: one of the next two must be, if there are two."""
    lines = [line for line in head[at:].split("\n") if line.strip()]
    _or_more(final or len(lines) > 3, JsonLayout("lines"))
    return len(lines) < 3 or any(line.lstrip().startswith("[") for line in lines[1:3])


def _are_objects(head: str, at: int) -> bool:
    """Return whether the second and third line each hold an object, so that the first is only damaged."""
    lines = [line for line in head[at:].split("\n", 4)[1:3] if line.strip()]
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def _are_values(head: str, at: int, final: bool, named_lines: bool) -> bool:
    """Return whether a file holds objects one after the other that take several lines, or have commas between them."""
    try:
        _, end = _DECODER.raw_decode(head, at)
    except RecursionError:
        return False
    except ValueError as error:
        cut = getattr(error, "pos", len(head)) >= len(head) - 1 or "Unterminated" in str(error)
        line, broken, _ = head[at:].partition("\n")
        if cut and not final and named_lines and broken and line.rstrip().endswith(("{", "[", ",")):
            raise _MoreNeeded("the first object takes several lines") from error
        return False  # the first object is longer than what is looked at, or damaged
    after = _skip(head, end)
    if head[after : after + 1] == ",":
        after = _skip(head, after + 1)
    _or_more(final or (after < len(head) and (not named_lines or "\n" in head[at:])), JsonLayout("values"))
    several = not named_lines or "\n" in head[at:end] or "\n" not in head[at:].rstrip()
    if after == len(head):
        return several and named_lines
    return head[after] == "{" and (several or "," in head[end:after])


def _elements(head: str, at: int, root: Root | None, name: str) -> JsonLayout:
    if root is not None and root.lists[0]:
        raise SourceError(f"{name}: the file is an array, but dataset.reader.root {root} expects an object")
    inside = _skip(head, at + 1)
    inner = root.lists[1:] if root else ()
    lists = head[inside] == "[" and not inner and _hold_lists(head, inside)
    return JsonLayout("elements", at + 1, inner=inner, lists=lists)


def _hold_lists(head: str, at: int) -> bool:
    """Return whether the elements of an array are lists, given that the first is one: unless the next two are not."""
    others = ""
    while len(others) < 2:
        _, at = _DECODER.raw_decode(head, at)
        at = _skip(head, at)
        if head[at] != ",":
            break
        at = _skip(head, at + 1)
        others += head[at]
    return len(others) < 2 or "[" in others


def _is_message(value: Any) -> bool:
    """Return whether the first item of a list is a message. If so, the object around the list is a row."""
    return {"role", "content"} <= value.keys() or {"from", "value"} <= value.keys()


def _descend(head: str, at: int, keys: tuple[str, ...], name: str) -> int:
    """Return where the array below the keys starts, after its bracket."""
    for depth, key in enumerate(keys):
        path = ".".join(keys[: depth + 1])
        value = next((value for member, value in _members(head, at) if member == key), None)
        if value is None:
            raise SourceError(f"{name}: no {path} found, but dataset.reader.root names it")
        at = value
        expected = "[" if depth == len(keys) - 1 else "{"
        if head[at] != expected:
            kind = "a list" if expected == "[" else "an object"
            raise SourceError(f"{name}: {path} in dataset.reader.root is not {kind}")
    return at + 1


def _members(head: str, at: int) -> Any:
    """Yield the keys of the object that opens at `at`, each with the position of its value."""
    at = _skip(head, at + 1)
    while head[at] != "}":
        if head[at] != '"':
            raise json.JSONDecodeError("expected a key", head, at)
        key, at = _DECODER.raw_decode(head, at)
        at = _skip(head, at)
        if head[at] != ":":
            raise json.JSONDecodeError("expected a colon", head, at)
        value = _skip(head, at + 1)
        if value >= len(head):
            raise _MoreNeeded("the file ends inside an object")
        yield key, value
        _, at = _DECODER.raw_decode(head, value)
        at = _skip(head, at)
        if head[at] == ",":
            at = _skip(head, at + 1)


def _inner_lists(head: str, start: int) -> tuple[tuple[str, ...], ...]:
    """Follow the only list of objects of each level to the rows, while the level has at most one other field, such as
    the text of a paragraph."""
    value, _ = _DECODER.raw_decode(head, _skip(head, start))
    inner: list[tuple[str, ...]] = []
    while isinstance(value, dict):
        # several lists, or more fields than a title: the level itself is the row
        lists = [key for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)]
        if len(lists) != 1 or len(value) > 2:
            break
        inner.append((lists[0],))
        value = value[lists[0]][0]
    return tuple(inner)


def _skip(head: str, at: int) -> int:
    match = _SPACE.match(head, at)
    return match.end() if match else at
