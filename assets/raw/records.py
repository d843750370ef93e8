"""Finds where records begin and end in the bytes of a file, before anything is parsed.

Each function returns `bounds`, int64 of shape [records + 1]: record i is data[bounds[i]:bounds[i + 1]], its
separator included.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenloom.errors import SourceError
from tokenloom.resources.ragged import Ints

Bytes = npt.NDArray[np.uint8]

NEWLINE, RETURN, QUOTE, BACKSLASH, COMMA = (np.uint8(ord(char)) for char in '\n\r"\\,')
_STRUCTURAL = np.zeros(256, bool)
_STRUCTURAL[[ord(char) for char in '"\\[]{},']] = True
_DEPTH = np.zeros(256, np.int8)
_DEPTH[[ord("["), ord("{")]] = 1
_DEPTH[[ord("]"), ord("}")]] = -1
_SPACE = np.zeros(256, bool)
_SPACE[[ord(char) for char in " \t\r\n"]] = True


def line_bounds(data: Bytes) -> Ints:
    """One record a line."""
    return _closed(np.flatnonzero(data == NEWLINE) + 1, len(data))


def quoted_line_bounds(data: Bytes, delimiter: str, name: str) -> Ints:
    """One record a line, line breaks inside quoted fields apart.

    A quote opens a field only at the field's begin, and a doubled one inside stands for itself (RFC 4180); anywhere
    else quotes are text.

    Raises:
        SourceError: a quoted field never closes; `name` names the file.
    """
    returns = data == RETURN
    returns[:-1] &= data[1:] != NEWLINE
    ends = np.flatnonzero((data == NEWLINE) | returns) + 1
    quotes = np.flatnonzero(data == QUOTE)
    before = np.append(data, NEWLINE)[quotes - 1]
    begins_field = (before == NEWLINE) | (before == RETURN) | (before == ord(delimiter)) | (quotes == 0)
    regular = begins_field[::2] | ((before[::2] == QUOTE) & (quotes[::2] > 0))
    edges = quotes if regular.all() else _quoted_fields(quotes, begins_field)
    if len(edges) % 2:
        line = int(np.searchsorted(ends, edges[-1], side="right")) + 1
        raise SourceError(f"{name}: the quote that opens a field on line {line} never closes")
    return _closed(ends[np.searchsorted(edges, ends) % 2 == 0], len(data))


def _quoted_fields(quotes: Ints, begins_field: npt.NDArray[np.bool_]) -> Ints:
    """Where quoted fields open and close, one after the other, in text that holds other quotes too."""
    edges: list[int] = []
    positions, opens = quotes.tolist(), begins_field.tolist()
    index = 0
    while index < len(positions):
        if len(edges) % 2 == 0:
            edges += [positions[index]] * opens[index]
        elif index + 1 < len(positions) and positions[index + 1] == positions[index] + 1:
            index += 1
        else:
            edges.append(positions[index])
        index += 1
    return np.array(edges, np.int64)


def paragraph_bounds(data: Bytes) -> Ints:
    """One record a run of lines that are not blank, with the blank lines after it."""
    bounds = line_bounds(data)
    if len(bounds) < 3:
        return bounds
    solid = is_solid(data, bounds)
    begins = np.flatnonzero(solid[1:] & ~solid[:-1]) + 1
    first = int(np.argmax(solid))
    return _closed(bounds[begins[begins > first]], len(data))


def is_solid(data: Bytes, bounds: Ints) -> npt.NDArray[np.bool_]:
    """bool [records]: which records hold more than white space."""
    return np.add.reduceat(~_SPACE[data], bounds[:-1], dtype=np.int64) > 0


def trimmed(data: Bytes, bounds: Ints) -> tuple[Ints, Ints]:
    """Where the content of each record begins and ends, without the white space (separators too) around it."""
    starts, ends = bounds[:-1].copy(), bounds[1:].copy()
    left = right = np.arange(len(starts))
    while len(left := left[(starts[left] < ends[left])]) and len(left := left[_SPACE[data[starts[left]]]]):
        starts[left] += 1
    while len(right := right[(starts[right] < ends[right])]) and len(right := right[_SPACE[data[ends[right] - 1]]]):
        ends[right] -= 1
    return starts, ends


def json_array_bounds(data: Bytes, name: str) -> tuple[Ints, Bytes]:
    """Elements of one JSON array.

    Returns:
        bounds, and a copy of the data in which the brackets are spaces and the commas between elements newlines:
        what is left is a sequence of JSON values.

    Raises:
        SourceError: brackets or quotes do not close; `name` names the file.
    """
    at = np.flatnonzero(_STRUCTURAL[data])
    char = data[at]
    unescaped = _unescaped_quotes(at, char)
    outside = (np.cumsum(unescaped) % 2 == 0) & (char != QUOTE)
    at, char = at[outside], char[outside]
    depth = np.cumsum(_DEPTH[char], dtype=np.int64)
    closed = np.flatnonzero(depth == 0)
    if not len(closed) or unescaped.sum() % 2:
        raise SourceError(f"{name}: invalid JSON: it ends inside an array or a string")
    end = at[closed[0]]
    if not _SPACE[data[end + 1 :]].all():
        raise SourceError(f"{name}: invalid JSON: more text follows the array, at byte {end + 1}")
    begin = at[0]
    commas = at[(depth == 1) & (char == COMMA) & (at < end)]
    values = data.copy()
    values[commas] = NEWLINE
    values[[begin, end]] = ord(" ")
    if _SPACE[values[begin:end]].all():
        return np.zeros(1, np.int64), values
    return np.concatenate([[begin], commas + 1, [len(data)]]), values


def _unescaped_quotes(at: Ints, char: Bytes) -> npt.NDArray[np.bool_]:
    """Which structural characters are quotes behind an even number of backslashes."""
    backslash = char == BACKSLASH
    index = np.arange(len(at))
    follows = np.zeros(len(at), bool)
    follows[1:] = (at[1:] == at[:-1] + 1) & backslash[:-1]
    run_start = np.maximum.accumulate(np.where(backslash & ~follows, index, 0))
    escaped = follows & ((index - run_start) % 2 == 1)
    return (char == QUOTE) & ~escaped


def _closed(ends: Ints, size: int) -> Ints:
    """Bounds from the ends of records; a last record without a separator counts too."""
    inner = ends[ends < size]
    return np.concatenate([[0], inner, [size]]) if size else np.zeros(1, np.int64)
