"""Finds where records begin and end in a file's bytes, before anything is parsed, one block after the other.

A finder's `find(window, final)` returns `bounds`, int64 of shape [records + 1]: record i is
window[bounds[i]:bounds[i + 1]], its separator included. What lies behind the last bound is seen again with more behind
it; `final` says that nothing follows the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenloom.errors import SourceError
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges, sum_rows
from tokenloom.resources.tables.row_hash import Hashes, hash_records

Bytes = npt.NDArray[np.uint8]

NEWLINE, RETURN, QUOTE = (np.uint8(ord(char)) for char in '\n\r"')
LARGEST_RECORD = 1 << 30
_SPACE = np.zeros(256, bool)
_SPACE[[ord(char) for char in " \t\r\n"]] = True


class Finder(Protocol):
    """Finds records in a file that is read from its begin to its end."""

    def find(self, window: Bytes, final: bool) -> Ints: ...


@dataclass(frozen=True)
class RecordBlock:
    """Whole records: their bytes, and bounds int64 [records + 1] that begin at 0."""

    data: Bytes
    bounds: Ints

    @property
    def sizes(self) -> Ints:
        return np.diff(self.bounds)

    @cached_property
    def _hashed(self) -> Hashes:
        return hash_records(self.data, *trimmed(self.data, self.bounds))

    @property
    def hashes(self) -> Hashes:
        """uint64 [records]: of each record's content, the white space around it apart."""
        return self._hashed

    def slice(self, begin: int, end: int) -> RecordBlock:
        part = RecordBlock(
            self.data[self.bounds[begin] : self.bounds[end]].copy(), self.bounds[begin : end + 1] - self.bounds[begin]
        )
        part.__dict__["_hashed"] = self.hashes[begin:end]
        return part

    @staticmethod
    def join(blocks: list[RecordBlock]) -> RecordBlock:
        if len(blocks) == 1:
            return blocks[0]
        starts = np.cumsum([0, *(len(block.data) for block in blocks)])
        bounds = [block.bounds[:-1] + start for block, start in zip(blocks, starts[:-1], strict=True)]
        whole = RecordBlock(np.concatenate([block.data for block in blocks]), np.concatenate([*bounds, starts[-1:]]))
        whole.__dict__["_hashed"] = np.concatenate([block.hashes for block in blocks])
        return whole


def record_blocks(blocks: Iterator[bytes], finder: Finder, name: str) -> Iterator[RecordBlock]:
    """The records of a file as blocks of whole ones; memory is bounded by a block and the largest record.

    Raises:
        SourceError: what the finder raises, or a record is larger than `LARGEST_RECORD`; `name` names the file.
    """
    parts: list[Any] = []
    held = wanted = done = 0
    block, final = next(blocks, b""), False
    while not final:
        following = next(blocks, None)
        final = following is None
        parts.append(block)
        held += len(block)
        block = following or b""
        if held < wanted and not final:
            continue
        window = np.frombuffer(bytearray(b"").join(parts), np.uint8)
        while True:  # once if more follows, else until nothing is left
            bounds = finder.find(window, final)
            done += int(bounds[-1])
            if len(bounds) > 1:
                begin = bounds[0]
                yield RecordBlock(window[begin : bounds[-1]], bounds - begin)
            window = window[bounds[-1] :]
            if not final or not bounds[-1]:
                break
        parts, held = [window.data], len(window)
        wanted = 2 * held  # a record longer than its window is sought again only when that has doubled
        if held > LARGEST_RECORD:
            raise SourceError(
                f"{name}: the record that begins at byte {done} is larger than {LARGEST_RECORD >> 30} GiB"
            )


class Lines:
    """One record a line."""

    def find(self, window: Bytes, final: bool) -> Ints:
        return _bounds(np.flatnonzero(window == NEWLINE) + 1, window, final)


class Paragraphs:
    """One record a run of lines that are not blank, with the blank lines after it."""

    def find(self, window: Bytes, final: bool) -> Ints:
        lines = _bounds(np.flatnonzero(window == NEWLINE) + 1, window, final)
        solid = is_solid(window, lines) if len(lines) > 1 else np.zeros(0, bool)
        begins = np.flatnonzero(solid[1:] & ~solid[:-1]) + 1
        first = int(np.argmax(solid)) if len(solid) else 0
        ends = lines[begins[begins > first]]
        return _bounds(ends, window, final)


class WholeFile:
    """One record a file."""

    def find(self, window: Bytes, final: bool) -> Ints:
        return _bounds(np.zeros(0, np.int64), window, final)


class QuotedLines:
    """One record a line, line breaks inside quoted fields apart.

    A quote opens a field only at the field's begin, and a doubled one inside stands for itself (RFC 4180); anywhere
    else quotes are text.

    Args:
        lines: those of the file that come before.

    Raises:
        SourceError: a quoted field never closes; `name` names the file.
    """

    def __init__(self, delimiter: str, name: str, lines: int = 0):
        self._delimiter, self._name = np.uint8(ord(delimiter)), name
        self._lines = lines

    def find(self, window: Bytes, final: bool) -> Ints:
        ends = line_ends(window)
        if not final and len(ends) and ends[-1] == len(window) and window[-1] == RETURN:
            ends = ends[:-1]  # a newline may follow
        quotes = np.flatnonzero(window == QUOTE)
        before = np.append(window, NEWLINE)[quotes - 1]
        begins_field = (before == NEWLINE) | (before == RETURN) | (before == self._delimiter) | (quotes == 0)
        regular = begins_field[::2] | ((before[::2] == QUOTE) & (quotes[::2] > 0))
        edges = quotes if regular.all() else _quoted_fields(quotes, begins_field)
        if final and len(edges) % 2:
            line = self._lines + int(np.searchsorted(ends, edges[-1], side="right")) + 1
            raise SourceError(f"{self._name}: the quote that opens a field on line {line} never closes")
        bounds = _bounds(ends[np.searchsorted(edges, ends) % 2 == 0], window, final)
        self._lines += int(np.searchsorted(ends, bounds[-1], side="right"))
        return bounds


def line_ends(data: Bytes) -> Ints:
    """Where lines end: behind each newline, and behind each return that none follows."""
    returns = data == RETURN
    returns[:-1] &= data[1:] != NEWLINE
    return np.flatnonzero((data == NEWLINE) | returns) + 1


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


def is_solid(data: Bytes, bounds: Ints) -> npt.NDArray[np.bool_]:
    """bool [records]: which records hold more than white space."""
    if len(bounds) < 2:
        return np.zeros(0, bool)
    begins, ends = bounds[:-1], bounds[1:]
    solid = begins < ends
    solid[solid] = ~_SPACE[data[begins[solid]]]
    begun = np.flatnonzero(~solid)  # those whose first byte does not tell
    lengths = ends[begun] - begins[begun]
    solid[begun] = sum_rows(~_SPACE[data[ranges(begins[begun], lengths)]], offsets_of(lengths)) > 0
    return solid


def trimmed(data: Bytes, bounds: Ints) -> tuple[Ints, Ints]:
    """Where the content of each record begins and ends, without the white space (separators too) around it."""
    starts, ends = bounds[:-1].copy(), bounds[1:].copy()
    left = right = np.arange(len(starts))
    while len(left := left[(starts[left] < ends[left])]) and len(left := left[_SPACE[data[starts[left]]]]):
        starts[left] += 1
    while len(right := right[(starts[right] < ends[right])]) and len(right := right[_SPACE[data[ends[right] - 1]]]):
        ends[right] -= 1
    return starts, ends


def _bounds(ends: Ints, window: Bytes, final: bool) -> Ints:
    """Bounds from the ends of records; a last record without a separator counts when nothing follows."""
    size = len(window)
    last = [size] if final and size and (not len(ends) or ends[-1] < size) else []
    return np.concatenate([[0], ends, last]).astype(np.int64)
