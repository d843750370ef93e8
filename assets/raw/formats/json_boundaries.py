"""Finds where the elements of a JSON array, or the entries of an object, start and end in bytes read in blocks."""

from __future__ import annotations

import numpy as np

from tokenloom.assets.raw.formats.record_boundaries import BACKSLASH, NEWLINE, QUOTE, SPACE, Bytes
from tokenloom.errors import SourceError
from tokenloom.resources.tables.flags import Flags
from tokenloom.resources.tables.json_depth import TOO_DEEP
from tokenloom.resources.tables.ragged import Ints

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
        if not SPACE[window[last:end]].all():
            return np.concatenate([[0], commas + 1, [int(end) + 1]]).astype(np.int64)
        return np.concatenate([[0], commas + 1]).astype(np.int64) if len(commas) else np.array([end + 1], np.int64)

    def _tail(self, window: Bytes, final: bool) -> Ints:
        """Check the text after the container: only braces of objects around it can close, with further members."""
        at, char, self._in_string, self._escaped = structure(window, self._in_string, self._escaped)
        depth = self._depth + np.cumsum(_DEPTH[char], dtype=np.int64)
        ended = [-1] if self._depth == -len(self._keys) else at[depth == -len(self._keys)][:1]
        more = np.flatnonzero(~SPACE[window])
        more = more[more > ended[0]] if len(ended) else more[:0]
        if len(more):
            raise SourceError(
                f"{self._name}: invalid JSON: more text after the end of the value, at byte {self._at + int(more[0])}"
            )
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
        bounds = np.concatenate(
            [[0], ends, [len(window)] if final and (not len(ends) or ends[-1] < len(window)) else []]
        )
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
    escaped = _ends_escaped(at, char, len(data)) or (escaped and not len(data))
    unescaped = unescaped_quotes(at, char)
    inside = (np.cumsum(unescaped) + in_string) % 2 == 1
    outside = ~inside & (char != QUOTE) & (char != BACKSLASH)
    return at[outside], char[outside], bool(inside[-1]) if len(inside) else in_string, escaped


def _ends_escaped(at: Ints, char: Bytes, size: int) -> bool:
    """Return whether the data ends with an odd number of backslashes."""
    run = 0
    while run < len(at) and char[-1 - run] == BACKSLASH and at[-1 - run] == size - 1 - run:
        run += 1
    return run % 2 == 1


def unescaped_quotes(at: Ints, char: Bytes) -> Flags:
    """Return which structural characters are quotes after an even number of backslashes."""
    backslash = char == BACKSLASH
    if not backslash.any():
        return char == QUOTE
    index = np.arange(len(at))
    follows = np.zeros(len(at), bool)
    follows[1:] = (at[1:] == at[:-1] + 1) & backslash[:-1]
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
    start, end = quotes[first], quotes[first + 1]
    colons = np.flatnonzero(data == COLON)
    after = np.searchsorted(colons, end)
    if len(after) and after[-1] >= len(colons):
        raise ValueError("an entry has no value")
    return start, end + 1, colons[after] + 1
