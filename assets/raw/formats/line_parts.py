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
from tokenloom.resources.sources.large_file import LargeFile
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


def lines_of(limit: int, line_ends: Callable[[Bytes], Ints], data: bytes) -> LinePart:
    """Return a part of a file.

    Args:
        limit, line_ends: as in `record_blocks`.
    """
    first, last = data.find(b"\n") + 1, data.rfind(b"\n") + 1
    if not first:
        return LinePart(data)
    blocks = record_blocks(iter([data[first:last]]), Lines(), limit, line_ends)
    return LinePart(data[:first], [*map(hashed, blocks)], data[last:])


def line_blocks(file: LargeFile, records: RecordFile, start: int) -> Iterator[RecordBlock]:
    """Yield the lines of a file from a position on, where a line starts, in blocks."""
    line_ends, last = records.line_ends_of_skipped, LinePart(b"", tail=b"")
    parts = file.parts(start, partial(lines_of, records.limit, line_ends))

    def shared() -> Iterator[bytes]:
        """Yield the bytes of the line that starts in the last part, up to the part that it ends in."""
        nonlocal last
        if last.tail:
            yield last.tail
        last = LinePart(b"")
        for part in parts:
            if part.head:
                yield part.head
            if part.tail is not None:
                last = part
                return

    while last.tail is not None:
        yield from record_blocks(shared(), Lines(), records.limit, line_ends)
        yield from last.blocks
