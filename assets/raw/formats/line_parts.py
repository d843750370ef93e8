"""Finds and hashes the lines of a large file part by part, in tasks; then joins lines that parts share.

A line break always ends a record here, so that a part needs nothing of the parts before it: only the bytes up to its
first line break, and those after its last one, wait for its neighbours. The records are those that one reader finds.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tokenloom.assets.raw.formats.record_boundaries import Bytes, Lines, RecordBlock, record_blocks
from tokenloom.assets.raw.formats.record_file import RecordFile
from tokenloom.resources.sources.large_file import LargeFile, Part, Ranges
from tokenloom.resources.sources.source_file import BLOCK_BYTES
from tokenloom.resources.tables.ragged import Ints


def hashed(block: RecordBlock) -> RecordBlock:
    """Return a block whose hashes are computed."""
    _ = block.hashes
    return block


def text_start(records: RecordFile, file: LargeFile, encoding: str) -> tuple[int | None, Iterator[bytes]]:
    """Return where the text of a file starts in it, and the text. None if one reader finds its records: the file is
    small, its text is not its own bytes, or a line break can be inside a record.

    Args:
        encoding: `dataset.encoding`.
    """
    head = next(records.text, b"")
    text = itertools.chain([head] if head else [], records.text)
    facts, raw = records.facts, file.first
    lines = facts.get("kind", facts.get("rows")) in ("lines", "line")
    can_change = facts.get("format") == "text" and encoding == "auto" and not raw.startswith(codecs.BOM_UTF8)
    if not (file.is_large and lines) or can_change or "encoding" in records.found:
        return None, text
    start = -len(head) % BLOCK_BYTES  # without a byte-order mark, and white space before the first record
    return (start if head.startswith(raw[start:]) else None), text


@dataclass(frozen=True)
class LinePart:
    """A part of a file of lines.

    Args:
        head: the bytes up to and including its first line break; all bytes if it has none.
        blocks: the lines between, hashed.
        tail: the bytes after its last line break; None if it has none.
    """

    head: bytes
    blocks: Sequence[RecordBlock] = ()
    tail: bytes | None = None


def read_lines(limit: int, line_ends: Callable[[Bytes], Ints], ranges: Ranges, start: int) -> Part[LinePart]:
    """Return the part of a file that starts at a position.

    Args:
        limit, line_ends: as in `record_blocks`.
    """
    data = ranges.read(start)
    first, last = data.find(b"\n") + 1, data.rfind(b"\n") + 1
    if not first:
        return Part(len(data), LinePart(data))
    blocks = list(record_blocks(iter([data[first:last]]), Lines(), limit, line_ends)) if last > first else []
    return Part(len(data), LinePart(data[:first], [*map(hashed, blocks)], data[last:]))


def line_blocks(file: LargeFile, records: RecordFile, start: int) -> Iterator[RecordBlock]:
    """Yield the lines of a file from a position on, where a line starts, in blocks."""
    ends = records.line_ends_of_skipped
    parts = file.parts(start, partial(read_lines, records.limit, ends))
    tail: bytes | None = b""
    while tail is not None:
        shared = _Shared(tail, parts)
        yield from record_blocks(shared.bytes(), Lines(), records.limit, ends)
        yield from shared.blocks
        tail = shared.tail


class _Shared:
    """A line that ends in a later part than it starts in.

    Args:
        start: its bytes in the part that it starts in.
        parts: the parts after it.

    Attributes:
        blocks, tail: of the part that the line ends in; no tail at the end of the file.
    """

    def __init__(self, start: bytes, parts: Iterator[LinePart]):
        self._start, self._parts = start, parts
        self.blocks: Sequence[RecordBlock] = ()
        self.tail: bytes | None = None

    def bytes(self) -> Iterator[bytes]:
        """Yield the bytes of the line, part by part."""
        if self._start:
            yield self._start
        for part in self._parts:
            if part.head:
                yield part.head
            if part.tail is not None:
                self.blocks, self.tail = part.blocks, part.tail
                return
