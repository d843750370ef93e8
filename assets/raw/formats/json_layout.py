"""Determines where the rows of a JSON file are: on lines, in an array, in an object keyed by id, or in nested lists."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from tokenloom.errors import SourceError
from tokenloom.resources.tables.json_depth import TOO_DEEP
from tokenloom.resources.tables.nested_paths import quoted

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
    if named_lines and root is None and alone and isinstance(first, list) and not _is_conversation(first):
        return _or_more(final, _elements(head, at, root, name))
    if first is not None and (named_lines or not alone) and (root is None or root.lists[0]):
        lists = isinstance(first, list) and _are_lists(head, at, final)
        return JsonLayout("lines", inner=root.lists if root else (), lists=lists)
    if opening == "{" and first is None and _are_values(head, at, final, named_lines):
        return JsonLayout("values", at, inner=root.lists if root else ())
    if named_lines and (opening != "[" or _are_objects(head, at)):
        return JsonLayout("lines", inner=root.lists if root else ())
    if opening == "[":
        return _elements(head, at, root, name)
    if opening != "{":
        raise SourceError(f"{name}: expected a JSON array of objects, one object per line, or an object of objects")
    return _within_object(head, at, root, name)


def _or_more(enough: bool, layout: JsonLayout) -> JsonLayout:
    """Return the layout if the text is enough to determine it, else raise _MoreNeeded."""
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
    """Return whether records are lists, given that the first is one: unless the next two are not."""
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
    return JsonLayout(
        "elements", at + 1, inner=inner, lists=head[inside] == "[" and not inner and _hold_lists(head, inside)
    )


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


def _within_object(head: str, at: int, root: Root | None, name: str) -> JsonLayout:
    if root is not None:
        if not root.lists[0]:
            raise SourceError(f"{name}: the file is an object, but dataset.reader.root {root} expects an array")
        start = _descend(head, at, root.lists[0], name)
        return JsonLayout("elements", start, root.lists[0], root.lists[1:])
    kinds = ""
    for key, value in _members(head, at):
        if head[value] == "[" and head[inside := _skip(head, value + 1)] == "{":
            if _is_message(_DECODER.raw_decode(head, inside)[0]):
                return JsonLayout("whole", at)
            return JsonLayout("elements", value + 1, (key,), _inner_lists(head, value + 1), found=True)
        kinds += head[value].replace("n", "")  # a null does not show the kind
        if kinds == "{{":
            return JsonLayout("entries", at + 1)
    if kinds == "{":
        return JsonLayout("entries", at + 1)
    if kinds:
        return JsonLayout("whole", at)
    raise SourceError(f"{name}: expected a JSON array of objects, one object per line, or an object of objects")


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
    """Return the nested lists of objects within the first record that contain its rows.

    Follows the only list of objects of each level while the level has at most one other field, such as a title or the
    text of a paragraph.
    """
    value, _ = _DECODER.raw_decode(head, _skip(head, start))
    inner: list[tuple[str, ...]] = []
    while isinstance(value, dict):
        lists = [key for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)]
        if len(lists) != 1 or len(value) > 2:
            break
        inner.append((lists[0],))
        value = value[lists[0]][0]
    return tuple(inner)


def _skip(head: str, at: int) -> int:
    """Return the position after the white space at `at`."""
    match = _SPACE.match(head, at)
    return match.end() if match else at
