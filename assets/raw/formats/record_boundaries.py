"""Finds where records start and end in a file's bytes, block by block, before anything is parsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenloom.errors import SourceError
from tokenloom.resources.tables.flags import Flags, any_of
from tokenloom.resources.tables.ragged import Ints, ranges
from tokenloom.resources.tables.row_hash import Hashes, hash_records

Bytes = npt.NDArray[np.uint8]

NEWLINE, RETURN, QUOTE = (np.uint8(ord(char)) for char in '\n\r"')
LARGEST_RECORD = 1 << 30
SPACE = np.zeros(256, bool)
"""bool [256]: which bytes are white space in JSON."""
SPACE[[ord(char) for char in " \t\r\n"]] = True


class Finder(Protocol):
    """Finds records in a file that is read from start to end."""

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in a window of the file.

        Args:
            window: uint8 [bytes]. Bytes after the last bound are passed again, at the start of the next window.
            final: whether the file ends with the window.

        Returns:
            `bounds`, int64 [records + 1]: record i, with its separator, is window[bounds[i]:bounds[i + 1]].
        """
        ...


@dataclass(frozen=True)
class RecordBlock:
    """Whole records.

    Args:
        data: uint8 [bytes].
        bounds: int64 [records + 1] into `data`, starting at 0.
    """

    data: Bytes
    bounds: Ints

    @property
    def sizes(self) -> Ints:
        """int64 [records]: the records' sizes in bytes."""
        return np.diff(self.bounds)

    @cached_property
    def _hashed(self) -> Hashes:
        return hash_records(self.data, *trimmed(self.data, self.bounds))

    @property
    def hashes(self) -> Hashes:
        """uint64 [records]: hashes of the records' content without the white space around it."""
        return self._hashed

    def slice(self, start: int, end: int) -> RecordBlock:
        """Return the records [start, end)."""
        part = RecordBlock(
            self.data[self.bounds[start] : self.bounds[end]].copy(), self.bounds[start : end + 1] - self.bounds[start]
        )
        part.__dict__["_hashed"] = self.hashes[start:end]
        return part

    @staticmethod
    def join(blocks: list[RecordBlock]) -> RecordBlock:
        """Concatenate several blocks."""
        if len(blocks) == 1:
            return blocks[0]
        starts = np.cumsum([0, *(len(block.data) for block in blocks)])
        bounds = [block.bounds[:-1] + start for block, start in zip(blocks, starts[:-1], strict=True)]
        whole = RecordBlock(np.concatenate([block.data for block in blocks]), np.concatenate([*bounds, starts[-1:]]))
        whole.__dict__["_hashed"] = np.concatenate([block.hashes for block in blocks])
        return whole


def record_blocks(blocks: Iterator[bytes], finder: Finder, name: str) -> Iterator[RecordBlock]:
    """Yield the records of a file in blocks of whole records.

    Memory is bounded by the size of a block and of the largest record.

    Args:
        name: the file, for messages.

    Raises:
        SourceError: the finder raises it, or a record is larger than `LARGEST_RECORD`.
    """
    parts: list[Any] = []
    pending = needed = done = 0
    block, final = next(blocks, b""), False
    while not final:
        following = next(blocks, None)
        final = following is None
        parts.append(block)
        pending += len(block)
        block = following or b""
        if pending < needed and not final:
            continue
        window = np.frombuffer(bytearray(b"").join(parts), np.uint8)
        while True:  # once if more blocks follow, else until no bytes are left
            bounds = finder.find(window, final)
            done += int(bounds[-1])
            if len(bounds) > 1:
                start = bounds[0]
                yield RecordBlock(window[start : bounds[-1]], bounds - start)
            window = window[bounds[-1] :]
            if not final or not bounds[-1]:
                break
        parts, pending = [window.data], len(window)
        needed = 2 * pending  # search a long record again only when the window has doubled: linear time in total
        if pending > LARGEST_RECORD:
            raise SourceError(f"{name}: the record at byte {done} is larger than {LARGEST_RECORD >> 30} GiB")


class Lines:
    """A finder with one record per line."""

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        return _bounds(np.flatnonzero(window == NEWLINE) + 1, window, final)


class Paragraphs:
    """A finder with one record per paragraph: lines that are not blank, with the blank lines after them."""

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        lines = _bounds(np.flatnonzero(window == NEWLINE) + 1, window, final)
        solid = is_solid(window, lines) if len(lines) > 1 else np.zeros(0, bool)
        starts = np.flatnonzero(solid[1:] & ~solid[:-1]) + 1
        first = int(np.argmax(solid)) if len(solid) else 0
        ends = lines[starts[starts > first]]
        return _bounds(ends, window, final)


class WholeFile:
    """A finder with one record per file."""

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        return _bounds(np.zeros(0, np.int64), window, final)


class QuotedLines:
    """A finder with one record per line of delimited text; line breaks inside quoted fields end no record.

    A quote opens a quoted field only at the start of the field, and two quotes inside one are a literal quote
    (RFC 4180). Anywhere else quotes are text.

    Args:
        name: the file, for messages.
        lines: the number of lines of the file before the first window.

    Raises:
        SourceError: a quoted field is never closed.
    """

    def __init__(self, delimiter: str, name: str, lines: int = 0):
        self._delimiter, self._name = np.uint8(ord(delimiter)), name
        self._lines = lines

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        ends = line_ends(window)
        if not final and len(ends) and ends[-1] == len(window) and window[-1] == RETURN:
            ends = ends[:-1]  # a newline can follow
        quotes = np.flatnonzero(window == QUOTE)
        before = np.append(window, NEWLINE)[quotes - 1]
        starts_field = (before == NEWLINE) | (before == RETURN) | (before == self._delimiter) | (quotes == 0)
        regular = starts_field[::2] | ((before[::2] == QUOTE) & (quotes[::2] > 0))
        edges = quotes if regular.all() else _quoted_fields(quotes, starts_field)
        if final and len(edges) % 2:
            line = self._lines + int(np.searchsorted(ends, edges[-1], side="right")) + 1
            raise SourceError(f"{self._name}: the quote that opens a field on line {line} is never closed")
        bounds = _bounds(ends[np.searchsorted(edges, ends) % 2 == 0], window, final)
        self._lines += int(np.searchsorted(ends, bounds[-1], side="right"))
        return bounds


def line_ends(data: Bytes) -> Ints:
    """Return where lines end: after each newline, and after each carriage return without one."""
    returns = data == RETURN
    returns[:-1] &= data[1:] != NEWLINE
    return np.flatnonzero((data == NEWLINE) | returns) + 1


def _quoted_fields(quotes: Ints, starts_field: Flags) -> Ints:
    """Return where quoted fields open and close, alternately, in text that also contains other quotes."""
    edges: list[int] = []
    positions, opens = quotes.tolist(), starts_field.tolist()
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


def is_solid(data: Bytes, bounds: Ints) -> Flags:
    """Return bool [records]: which records contain more than white space."""
    if len(bounds) < 2:
        return np.zeros(0, bool)
    starts, ends = bounds[:-1], bounds[1:]
    solid = starts < ends
    solid[solid] = ~SPACE[data[starts[solid]]]
    rest = np.flatnonzero(~solid)  # records that are empty or start with white space
    lengths = ends[rest] - starts[rest]
    solid[rest] = any_of(~SPACE[data[ranges(starts[rest], lengths)]], lengths)
    return solid


def trimmed(data: Bytes, bounds: Ints) -> tuple[Ints, Ints]:
    """Return where the content of each record starts and ends, without white space and separators around it."""
    starts, ends = bounds[:-1].copy(), bounds[1:].copy()
    left = right = np.arange(len(starts))
    while len(left := left[(starts[left] < ends[left])]) and len(left := left[SPACE[data[starts[left]]]]):
        starts[left] += 1
    while len(right := right[(starts[right] < ends[right])]) and len(right := right[SPACE[data[ends[right] - 1]]]):
        ends[right] -= 1
    return starts, ends


def _bounds(ends: Ints, window: Bytes, final: bool) -> Ints:
    """Return bounds, given the ends of records. A last record without a separator counts if the file ends there."""
    size = len(window)
    last = [size] if final and size and (not len(ends) or ends[-1] < size) else []
    return np.concatenate([[0], ends, last]).astype(np.int64)
