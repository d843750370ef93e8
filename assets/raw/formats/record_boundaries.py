"""Finds where records start and end in a file's bytes, block by block, before anything is parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import SourceError
from tokenloom.resources.tables.hashes import Hashes, hash_records
from tokenloom.resources.tables.ragged import Flags, Ints, text_array

Bytes = npt.NDArray[np.uint8]

NEWLINE, RETURN, QUOTE, BACKSLASH = (np.uint8(ord(char)) for char in '\n\r"\\')
SEARCHED_AGAIN = 1 << 20
"""Bytes of a record without an end that are searched again with the next block; of longer ones, a finder gets a short
equivalent."""
SHOWN = 400
"""Bytes that are kept of a record that is too large."""
_WITHOUT_BREAKS = bytes.maketrans(b"\r\n", b"  ")
MOST_RECORDS = 1 << 20
"""Most records of a block. Only records of less than four bytes on average reach it."""
_STEPS = 64
"""White space before or after a record that is skipped byte by byte in all records together."""
_SLICE = 1 << 17
"""Records that are looked at together, so that arrays of their positions stay small."""
_SPACES = b" \t\r\n"
SPACE = np.zeros(256, bool)
"""bool [256]: which bytes are white space in JSON."""
SPACE[list(_SPACES)] = True


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

    def shortened(self, window: Bytes) -> tuple[bytes, int]:
        """Return a few bytes that can replace the start of a window without a record's end, and how much of it."""
        ...


@dataclass(frozen=True)
class Skipped:
    """A record that is too large to be read.

    Args:
        record: its index in the block, which holds only its first `SHOWN` bytes, without line breaks.
        missing: the number of bytes that the block does not hold.
        lines: the number of lines that end in the record.
    """

    record: int
    missing: int
    lines: int


@dataclass(frozen=True)
class RecordBlock:
    """Whole records.

    Args:
        data: uint8 [bytes].
        bounds: int64 [records + 1] into `data`, starting at 0.
        skipped: the records that are too large, in order.
    """

    data: Bytes
    bounds: Ints
    skipped: tuple[Skipped, ...] = ()

    @property
    def offsets(self) -> Ints:
        """int64 [records + 1]: the bytes at which records start."""
        return self.bounds

    @cached_property
    def _hashed(self) -> Hashes:
        hashes = np.empty(len(self.bounds) - 1, np.uint64)
        for start, data, bounds in slices(self.data, self.bounds):
            hashes[start : start + len(bounds) - 1] = hash_records(data, *trimmed(data, bounds))
        return hashes

    @property
    def hashes(self) -> Hashes:
        """uint64 [records]: hashes of the records' content without the white space around it."""
        return self._hashed

    @property
    def rows(self) -> Flags:
        """bool [records]: which records are not blank."""
        return is_solid(self.data, self.bounds)

    def slice(self, start: int, end: int) -> RecordBlock:
        """Return the records [start, end)."""
        bounds = self.bounds[start : end + 1]
        skipped = tuple(replace(one, record=one.record - start) for one in self.skipped if start <= one.record < end)
        part = RecordBlock(self.data[bounds[0] : bounds[-1]].copy(), bounds - bounds[0], skipped)
        # fills the cached property: a slice's hashes are known and need not be computed again
        part.__dict__["_hashed"] = self.hashes[start:end]
        return part

    @staticmethod
    def join(blocks: list[RecordBlock]) -> RecordBlock:
        """Concatenate several blocks."""
        if len(blocks) == 1:
            return blocks[0]
        starts = np.cumsum([0, *(len(block.data) for block in blocks)])
        bounds = [block.bounds[:-1] + start for block, start in zip(blocks, starts[:-1], strict=True)]
        firsts = np.cumsum([0, *(len(block.bounds) - 1 for block in blocks)]).tolist()
        whole = RecordBlock(
            np.concatenate([block.data for block in blocks]),
            np.concatenate([*bounds, starts[-1:]]),
            tuple(
                replace(one, record=first + one.record)
                for first, block in zip(firsts, blocks, strict=False)
                for one in block.skipped
            ),
        )
        if all("_hashed" in block.__dict__ for block in blocks):
            whole.__dict__["_hashed"] = np.concatenate([block.hashes for block in blocks])
        return whole


def record_blocks(
    blocks: Iterator[bytes],
    finder: Finder,
    limit: int,
    line_ends: Callable[[Bytes], Ints],
    searched_again: int = SEARCHED_AGAIN,
) -> Iterator[RecordBlock]:
    """Yield the records of a file in blocks of whole records.

    Memory is bounded by the size of a block and `limit`: what a larger record has beyond is not kept.

    Args:
        limit: the largest size of a record in bytes, with its separator.
        line_ends: returns where lines end.
        searched_again: see `SEARCHED_AGAIN`.

    Raises:
        SourceError: the finder raises it.
    """
    record = _OpenRecord(finder, limit, line_ends, searched_again)
    rest, block, final = b"", next(blocks, b""), False
    while not final:
        following = next(blocks, None)
        final = following is None
        window = np.frombuffer(bytearray(b"").join([rest, block]), np.uint8)
        block = following or b""
        while True:  # once if more blocks follow, else until no bytes are left
            bounds = finder.find(window, final)
            if bounds[-1]:
                if len(bounds) > 1:
                    yield from _divided(record.ended(window, bounds))
                record = _OpenRecord(finder, limit, line_ends, searched_again)
            window = window[bounds[-1] :]
            if not final or not bounds[-1]:
                break
        rest = record.extended(window)


def _divided(block: RecordBlock) -> Iterator[RecordBlock]:
    """Yield a block in parts of at most `MOST_RECORDS` records."""
    bounds = block.bounds
    for start in range(0, len(bounds) - 1, MOST_RECORDS):
        limits = bounds[start : start + MOST_RECORDS + 1]
        skipped = (replace(one, record=one.record - start) for one in block.skipped)
        within = tuple(one for one in skipped if 0 <= one.record < len(limits) - 1)
        yield RecordBlock(block.data[limits[0] : limits[-1]], limits - limits[0], within)


class _OpenRecord:
    def __init__(self, finder: Finder, limit: int, line_ends: Callable[[Bytes], Ints], searched_again: int):
        self._finder, self._limit, self._line_ends, self._again = finder, limit, line_ends, searched_again
        self._parts: list[bytes] = []
        self._size = self._lines = self._replaced = 0

    def extended(self, window: Bytes) -> bytes:
        """Add a window without the record's end; return the bytes that the next window must start with.

        Before the bytes of the window that are new, it has those that this function returned last.
        """
        # searching a short start again is cheaper than asking the finder what to keep of it
        if len(window) <= self._again:
            return window.tobytes()
        short, replaced = self._finder.shortened(window)
        self._lines += self._lines_in(window[:replaced]) - self._lines_in(np.frombuffer(short, np.uint8))
        # the first bytes of the window are the stand-in of the last call, not bytes of the file
        self._add(window[self._replaced : replaced].tobytes())
        self._replaced = len(short)
        return short + window[replaced:].tobytes()

    def _add(self, part: bytes) -> None:
        has_room = self._size <= self._limit
        self._size += len(part)
        if has_room:
            self._parts.append(part)
            if self._size > self._limit:
                self._parts = [b"".join(self._parts)[:SHOWN]]

    def ended(self, window: Bytes, bounds: Ints) -> RecordBlock:
        """Return the records of a window, the first of which ends the open one."""
        window, lines = window[: bounds[-1]], self._lines
        if not self._size and len(window) <= self._limit:
            return RecordBlock(window, bounds)
        sizes = np.diff(bounds)
        if self._size:
            lines += self._lines_in(window[: bounds[1]])
            self._add(window[self._replaced : bounds[1]].tobytes())
            first = sum(map(len, self._parts))
            window = np.frombuffer(bytearray(b"").join([*self._parts, window[bounds[1] :].data]), np.uint8)
            bounds = np.concatenate([[0], bounds[1:] - bounds[1] + first])
            sizes[0] = self._size
        large = np.flatnonzero(sizes > self._limit)
        if not len(large):
            return RecordBlock(window, bounds)
        parts, skipped, done = [], [], 0
        for record in large.tolist():
            start, end = bounds[record : record + 2]
            shown = window[start : min(start + SHOWN, end)].tobytes().translate(_WITHOUT_BREAKS)
            parts += [window[done:start].tobytes(), shown]
            ended = lines if record == 0 and self._size else self._lines_in(window[start:end])
            skipped.append(Skipped(record, int(sizes[record]) - len(shown), ended))
            done = end
        data = np.frombuffer(b"".join([*parts, window[done:].tobytes()]), np.uint8)
        sizes_kept = np.diff(bounds)
        sizes_kept[large] = np.minimum(sizes_kept[large], SHOWN)
        return RecordBlock(data, np.concatenate([[0], np.cumsum(sizes_kept)]), tuple(skipped))

    def _lines_in(self, data: Bytes) -> int:
        return len(self._line_ends(data))


class Lines:
    """A finder with one record per line."""

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        return _bounds(np.flatnonzero(window == NEWLINE) + 1, window, final)

    def shortened(self, window: Bytes) -> tuple[bytes, int]:
        """Return any character; see `Finder`."""
        return b"x", len(window)


class Paragraphs:
    """A finder with one record per paragraph: lines that are not blank, with the blank lines after them."""

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        lines = _bounds(np.flatnonzero(window == NEWLINE) + 1, window, True)
        solid = is_solid(window, lines)
        # a paragraph starts at a line with text after a blank one; blank lines before the first belong to it
        starts = np.flatnonzero(solid[1:] & ~solid[:-1]) + 1
        first = int(np.argmax(solid)) if len(solid) else 0
        return _bounds(lines[starts[starts > first]], window, final)

    def shortened(self, window: Bytes) -> tuple[bytes, int]:
        """Return a line, a blank line, and the start of a line, if the window ends with them; see `Finder`."""
        lines = _bounds(np.flatnonzero(window == NEWLINE) + 1, window, False)
        solid = is_solid(window, lines)
        whole = b"x\n" * bool(solid.any()) + b"\n" * bool(len(solid) and not solid[-1])
        last = window[lines[-1] :]
        if not SPACE[last].all():
            return whole + b"x", len(window)
        return (whole, int(lines[-1])) if len(last) <= SEARCHED_AGAIN else (whole + b" ", len(window))


class WholeFile(Lines):
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
        quote: the quote; "" if quotes are text.
        escape: whether the character after a backslash is text.

    Raises:
        SourceError: a quoted field is never closed.
    """

    def __init__(self, delimiter: str, name: str, lines: int = 0, quote: str = '"', escape: bool = False):
        self._delimiter, self._name = np.uint8(ord(delimiter)), name
        self._quote, self._escape = np.uint8(ord(quote)) if quote else None, escape
        self._lines = lines
        self._opened = 0  # line of the quote that the next window starts with instead of a long field

    def find(self, window: Bytes, final: bool) -> Ints:
        """Return the bounds of the records in the window; see `Finder`."""
        ends, edges = line_ends(window), self.edges(window)
        if not final and len(ends) and ends[-1] == len(window) and window[-1] == RETURN:
            ends = ends[:-1]  # a newline can follow
        if final and len(edges) % 2:
            line = self._line(ends, edges[-1])
            raise SourceError(f"{self._name}: the quote that opens a field on line {line} is never closed")
        # an odd number of edges before a line's end: it is inside a quoted field
        unquoted = ends[np.searchsorted(edges, ends) % 2 == 0] if len(edges) else ends
        if self._escape:
            # an escaped line break is text
            last = without_escapes(window)[unquoted - 1]
            unquoted = unquoted[(last == NEWLINE) | (last == RETURN)]
        bounds = _bounds(unquoted, window, final)
        self._lines += int(np.searchsorted(ends, bounds[-1], side="right"))
        self._opened = 0 if bounds[-1] else self._opened
        return bounds

    def shortened(self, window: Bytes) -> tuple[bytes, int]:
        """Return an open quoted field, a closed one, or the last character after another; see `Finder`."""
        edges, ends = self.edges(window), line_ends(window)
        last, quote = window[-1:].tobytes(), b"" if self._quote is None else self._quote.tobytes()
        if self._escape and last == b"\\" and without_escapes(window)[-1] != BACKSLASH:
            last = b""  # a backslash that is text
        if len(edges) % 2:
            self._opened = self._line(ends, edges[-1])
            short = quote + last if last in (b"\r", b"\\") else quote
        else:
            short = quote * 2 if len(edges) and edges[-1] == len(window) - 1 else b"x" + last
        self._lines += len(ends) - len(line_ends(np.frombuffer(short, np.uint8)))
        return short, len(window)

    def edges(self, window: Bytes) -> Ints:
        """Return where quoted fields open and close, alternately."""
        if self._quote is None:
            return np.zeros(0, np.int64)
        window = without_escapes(window) if self._escape else window
        quotes = np.flatnonzero(window == self._quote)
        before = window.take(quotes - 1, mode="wrap")
        starts_field = (before == NEWLINE) | (before == RETURN) | (before == self._delimiter)
        starts_field[:1] |= quotes[:1] == 0
        # the usual case: quotes open and close in turn, or are doubled, and no quote has to be looked at alone
        regular = starts_field[::2] | ((before[::2] == self._quote) & (quotes[::2] > 0))
        return quotes if regular.all() else _quoted_fields(quotes, starts_field)

    def _line(self, ends: Ints, quote: int) -> int:
        if not quote and self._opened:
            return self._opened
        return self._lines + int(np.searchsorted(ends, quote, side="right")) + 1

    def misplaced(self, data: Bytes) -> Ints:
        """Return where quoted fields close without a delimiter or line break after them."""
        closing = self.edges(data)[1::2]
        after = data.take(closing + 1, mode="clip")
        ends = (after == NEWLINE) | (after == RETURN) | (after == self._delimiter) | (after == self._quote)
        return closing[:0] if ends.all() else closing[~ends & (closing + 1 < len(data))]


def without_escapes(data: Bytes) -> Bytes:
    """Return bytes in which each character after a backslash that escapes it is a letter."""
    escaped = escapes(data) + 1
    if not len(escaped):
        return data
    data = data.copy()
    data[escaped[escaped < len(data)]] = ord("x")
    return data


def escapes(data: Bytes) -> Ints:
    """Return the positions of backslashes that are not escaped by another."""
    slashes = np.flatnonzero(data == BACKSLASH)
    index = np.arange(len(slashes))
    first = np.maximum.accumulate(np.where(np.append(True, np.diff(slashes) > 1)[: len(index)], index, 0))
    return slashes[(index - first) % 2 == 0]


def line_ends(data: Bytes) -> Ints:
    """Return where lines end: after each newline, and after each carriage return without one."""
    returns = data == RETURN
    # of a pair of return and newline only the newline ends the line
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
    solid = np.zeros(len(bounds) - 1, bool)
    for first, part, limits in slices(data, bounds):
        starts, ends = limits[:-1], limits[1:]
        solid[first : first + len(starts)] = _content_starts(part, starts, ends) < ends
    return solid


def slices(data: Bytes, bounds: Ints) -> Iterator[tuple[int, Bytes, Ints]]:
    """Yield the first record, the bytes and the bounds of every `_SLICE` records."""
    for first in range(0, len(bounds) - 1, _SLICE):
        limits = bounds[first : first + _SLICE + 1]
        yield first, data[limits[0] : limits[-1]], limits - limits[0]


def trimmed(data: Bytes, bounds: Ints) -> tuple[Ints, Ints]:
    """Return where the content of each record starts and ends, without white space and separators around it."""
    starts, ends = _content_starts(data, bounds[:-1], bounds[1:]), bounds[1:].copy()
    records = np.arange(len(starts))
    for _ in range(_STEPS):
        records = records[starts[records] < ends[records]]
        if not len(records := records[SPACE[data[ends[records] - 1]]]):
            return starts, ends
        ends[records] -= 1
    for record in records.tolist():
        ends[record] = starts[record] + len(data[starts[record] : ends[record]].tobytes().rstrip(_SPACES))
    return starts, ends


def _content_starts(data: Bytes, starts: Ints, ends: Ints) -> Ints:
    """Return the place of each record's first byte that is not white space; its end if there is none."""
    starts, records = starts.copy(), np.arange(len(starts))
    for _ in range(_STEPS):
        # one byte of all records that still start with white space; after `_STEPS` bytes the rest one by one
        records = records[starts[records] < ends[records]]
        if not len(records := records[SPACE[data[starts[records]]]]):
            return starts
        starts[records] += 1
    for record in records.tolist():
        starts[record] = ends[record] - len(data[starts[record] : ends[record]].tobytes().lstrip(_SPACES))
    return starts


def only(data: Bytes, bounds: Ints, records: Ints) -> tuple[Bytes, Ints]:
    """Return the bytes and bounds of some of the records, int64 [records], ascending."""
    if len(records) == len(bounds) - 1:
        return data, bounds
    texts = text_array(bounds, data).view(pa.binary()).take(pa.array(records))
    limits = np.concatenate([[0], np.cumsum(np.diff(bounds)[records])])
    return np.frombuffer(texts.buffers()[2], np.uint8)[: limits[-1]], limits


def _bounds(ends: Ints, window: Bytes, final: bool) -> Ints:
    """Return bounds, given the ends of records. A last record without a separator counts if the file ends there."""
    size = len(window)
    last = [size] if final and size and (not len(ends) or ends[-1] < size) else []
    return np.concatenate([[0], ends, last]).astype(np.int64, copy=False)
