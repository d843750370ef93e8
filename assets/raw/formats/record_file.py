"""Opens a file of records (JSON, delimited or plain text) and determines how to find and parse its records.

The lines of a large file are found and hashed part by part, in tasks; then lines that parts share are joined. A line
break always ends a record there, so that a part needs nothing of the parts before it: only the bytes up to its first
line break, and those after its last one, wait for its neighbours. The records are those that one reader finds.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.formats.decode import chained, utf8_blocks
from tokenloom.assets.raw.formats.json import parse_json
from tokenloom.assets.raw.formats.json_layout import JsonElements, JsonLayout, JsonValues, Root, json_layout
from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk, check_columns, reject_too_large
from tokenloom.assets.raw.formats.record_boundaries import (
    NEWLINE,
    Bytes,
    Finder,
    Lines,
    Paragraphs,
    RecordBlock,
    WholeFile,
    is_solid,
    line_ends,
    only,
    record_blocks,
)
from tokenloom.assets.raw.formats.text import (
    Dialect,
    column_names,
    csv_record,
    guess_delimiter,
    has_escapes,
    is_header,
    parse_csv,
    parse_text,
)
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import DatasetConfig
from tokenloom.errors import SourceError
from tokenloom.resources.sources.large_file import LargeFile
from tokenloom.resources.sources.source_file import BLOCK_BYTES, FILE_FORMATS, SourceFile
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
    text = chained(head, records.text)
    facts, raw = records.facts, file.first
    lines = facts.get("kind", facts.get("rows")) in ("lines", "line")
    # a later block of plain text can still show an encoding, which all blocks after it then have
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
        # the line may span several parts: those without any line break are all head
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


@dataclass(frozen=True)
class RecordFile:
    """An opened file of records.

    Args:
        name: the file, for messages.
        text: its UTF-8 from the first record on, in blocks.
        finder: returns a finder for the text after a given number of lines of the file.
        restarts: whether a finder can start at any record.
        facts: what the rows of a chunk depend on in addition to its bytes.
        parse: parses a chunk, given its bytes, its bounds, and the number of bytes of the file before it.
        line_ends: returns where lines end in bytes, if each record starts on its own line; None counts rows instead.
        first_line: the number of lines before the first record.
        found: detected properties of the file, for display.
        limit: `dataset.reader.max_record_bytes`.
    """

    name: str
    text: Iterator[bytes]
    finder: Callable[[int], Finder]
    restarts: bool
    facts: dict[str, Any]
    parse: Callable[[Bytes, Ints, int], ParsedChunk]
    line_ends: Callable[[Bytes], Ints] | None
    first_line: int
    found: dict[str, str]
    limit: int

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs, which parses chunks and does not read the file."""
        return {**self.__dict__, "text": iter(())}

    @property
    def bounds_follow(self) -> bool:
        """Whether the bytes of several files, each with a newline at its end, determine the bounds of their records."""
        return self.facts.get("rows", "line") == "line"

    @property
    def unit(self) -> str:
        """What positions count: the lines of a file, or its rows."""
        return "line" if self.line_ends is _newlines or self.line_ends is line_ends else "row"

    def blocks(self, text: Iterator[bytes] | None = None, lines: int | None = None) -> Iterator[RecordBlock]:
        """Yield the records of the file, or of the given text after `lines` lines of the file."""
        finder = self.finder(self.first_line if lines is None else lines)
        return record_blocks(self.text if text is None else text, finder, self.limit, self.line_ends_of_skipped)

    @property
    def line_ends_of_skipped(self) -> Callable[[Bytes], Ints]:
        """Returns where lines end in records that are too large, if positions count lines."""
        return self.line_ends or (lambda data: np.zeros(0, np.int64))

    def parse_block(self, block: RecordBlock, before: int) -> ParsedChunk:
        """Parse the records of a chunk, and reject those that are too large.

        Args:
            before: the number of bytes of the file before it.
        """
        if not block.skipped:
            return self.parse(block.data, block.bounds, before)
        large = np.array([skipped.record for skipped in block.skipped])
        small = np.setdiff1d(np.arange(len(block.bounds) - 1), large)
        parsed = self.parse(*only(block.data, block.bounds, small), before)
        # of a skipped record the block holds only the start: shown in the reject, never parsed
        shown = [block.data[block.bounds[row] : block.bounds[row + 1]].tobytes() for row in large]
        rejects = parsed.rejects.set_column(
            parsed.rejects.column_names.index(ROW), ROW, pa.array(small[parsed.rejects[ROW].to_numpy()], pa.int32())
        )
        too_large = reject_too_large(large, self.limit, [text.decode(errors="replace") for text in shown])
        chunk = ParsedChunk.of(parsed.table, small[parsed.records], [rejects, too_large], parsed.filtered)
        if parsed.places is None:
            return chunk
        places = parsed.places[0], np.append(parsed.places[1], np.zeros(len(large), np.int64))
        unsorted = pa.concat_tables([rejects, too_large]).combine_chunks()
        return replace(chunk, rejects=unsorted, places=places, counters=parsed.counters)

    def positions(self, block: RecordBlock) -> tuple[Ints | None, int]:
        """Return the position of each record within a chunk and the number of positions.

        Positions are lines, int64 [records], or None for rows.
        """
        if self.line_ends is None:
            return None, len(block.bounds) - 1
        ends = self.line_ends(block.data)
        positions = np.arange(len(block.bounds) - 1)
        # where each record is one line the numbers follow; else lines are counted up to each record's start
        if len(ends) < len(positions) - 1 or not np.array_equal(ends, block.bounds[1 : len(ends) + 1]):
            positions = np.searchsorted(ends, block.bounds[:-1], side="right")
        for skipped in block.skipped:
            positions[skipped.record + 1 :] += skipped.lines
        return positions, len(ends) + sum(skipped.lines for skipped in block.skipped)


def open_records(dataset: DatasetConfig, file: SourceFile, content: Iterator[bytes] | None = None) -> RecordFile:
    """Open a file of records; reads the start of the file.

    Args:
        content: what `file.blocks` yields, if it is read in another way.

    Raises:
        SourceError: the file cannot be read, or is not a valid file of its format.
    """
    found: dict[str, str] = {}
    detect = file.format in ("csv", "tsv", "text")
    encoded = partial(found.__setitem__, "encoding")
    blocks = utf8_blocks(file.blocks() if content is None else content, dataset.encoding, detect, file.name, encoded)
    if FILE_FORMATS[file.format].sessions:
        return _sessions(dataset, file, blocks, file.format, found)
    if FILE_FORMATS[file.format].delimiter:
        return _csv(dataset, file, blocks, found)
    if file.format == "text":
        rows = dataset.reader.lines_per_row
        finder_class = {"line": Lines, "paragraph": Paragraphs, "file": WholeFile}[rows]
        facts, limit = {"format": "text", "rows": rows}, dataset.reader.max_record_bytes

        def parse(part: Bytes, bounds: Ints, before: int) -> ParsedChunk:
            return parse_text(part, bounds)

        def finder(lines: int) -> Finder:
            return finder_class()

        return RecordFile(file.name, blocks, finder, rows != "file", facts, parse, _newlines, 0, found, limit)
    return _json(dataset, file, blocks, found)


def _sessions(
    dataset: DatasetConfig, file: SourceFile, blocks: Iterator[bytes], kind: str, found: dict[str, str]
) -> RecordFile:
    from tokenloom.assets.raw.formats.sessions import EVENTS, parse_sessions, places

    def parse(part: Bytes, bounds: Ints, before: int) -> ParsedChunk:
        return parse_sessions(part, bounds, kind)

    facts, limit = {"format": kind, "rows": "file"}, dataset.reader.max_record_bytes
    line_ends = _newlines if kind in EVENTS else places
    return RecordFile(file.name, blocks, lambda lines: WholeFile(), False, facts, parse, line_ends, 0, found, limit)


def session_notices(counters: Mapping[str, int]) -> list[str]:
    """Return what a build reports about sessions, as sentences, given the counters of its rows."""
    from tokenloom.assets.raw.sessions.conversation import notices_of

    return notices_of(counters)


def _newlines(data: Bytes) -> Ints:
    return np.flatnonzero(data == NEWLINE) + 1


def _json(dataset: DatasetConfig, file: SourceFile, blocks: Iterator[bytes], found: dict[str, str]) -> RecordFile:
    root = Root.parse(dataset.reader.root) if dataset.reader.root else None
    if dataset.format == "auto" and root is None:
        from tokenloom.assets.raw.formats.sessions import detected

        head = next(blocks, b"")
        blocks = chained(head, blocks)
        if kind := detected(head, file.format):
            return _sessions(dataset, file, blocks, kind, {**found, "format": kind})
    limit = dataset.reader.max_record_bytes
    layout, start, blocks = _detect_layout(blocks, file, root, limit)
    if layout.found:
        found["root"] = layout.root
    line_ends_of = _newlines if layout.kind == "lines" and not layout.inner else None
    closing = "}" if layout.kind == "entries" else "]"
    columns, name = dataset.columns, file.name

    def finder(lines: int) -> Finder:
        if layout.kind in ("lines", "whole"):
            return Lines() if layout.kind == "lines" else WholeFile()
        if layout.kind == "values":
            return JsonValues(start, name)
        return JsonElements(layout.keys, start, layout.found, name, closing)

    inner = [list(keys) for keys in layout.inner]
    facts = {"format": "json", "kind": layout.kind, "inner": inner, "lists": layout.lists}

    def parse(part: Bytes, bounds: Ints, done: int) -> ParsedChunk:
        return parse_json(part, bounds, layout, columns, name, start + done)

    return RecordFile(name, blocks, finder, layout.kind == "lines", facts, parse, line_ends_of, 0, found, limit)


def _detect_layout(
    blocks: Iterator[bytes], file: SourceFile, root: Root | None, limit: int
) -> tuple[JsonLayout, int, Iterator[bytes]]:
    """Return the layout of a JSON file, the bytes before its first record, and the blocks from there on; raise
    SourceError after `limit` bytes. Each attempt has at least twice the bytes of the last one, so that the total time
    is linear."""
    head, needed = b"", 0
    while True:
        block = next(blocks, None)
        head += block or b""
        if len(head) < min(needed, limit + 1) and block is not None:
            continue
        text = head.decode(errors="surrogateescape")
        # surrogateescape keeps bytes that are not UTF-8, so that characters convert back to positions in bytes
        if layout := json_layout(text, block is None, file.format == "jsonl", root, file.name):
            start = len(text[: layout.start].encode(errors="surrogateescape"))
            return layout, start, chained(head[start:], blocks)
        if len(head) > limit:
            raise _first_too_large(file.name, limit)
        needed = 2 * len(head)


def _first_too_large(name: str, limit: int) -> SourceError:
    return SourceError(
        f"{name}: the first record is larger than dataset.reader.max_record_bytes ({limit:,} bytes), so the layout of "
        "the file is unknown"
    )


def _csv(dataset: DatasetConfig, file: SourceFile, blocks: Iterator[bytes], found: dict[str, str]) -> RecordFile:
    options, usual, name = dataset.reader, FILE_FORMATS[file.format].delimiter, file.name
    head = next(blocks, b"")
    delimiter = options.delimiter or guess_delimiter(head, usual)
    if delimiter != (options.delimiter or usual):
        found["delimiter"] = {"\t": "tab"}.get(delimiter, delimiter)

    dialect = Dialect(delimiter, "" if options.quote == "none" else options.quote, options.escape == "backslash")
    # only shows whether the head is the whole file, whose last record then counts too
    second = next(blocks, b"") if options.escape == "auto" and b"\\" in head else b""
    if options.escape == "auto" and has_escapes(head, not second, dialect):
        dialect = replace(dialect, escape=True)
        found["escape"] = "backslash"

    def finder(lines: int) -> Finder:
        return dialect.finder(name, lines)

    blank, first, rest = _first_record(chained(head, chained(second, blocks)), finder, options.max_record_bytes, name)
    cells = csv_record(first, dialect, name) if first else []
    check_columns(len(cells), name)
    header = is_header(cells) if options.header == "auto" else options.header
    if options.header == "auto" and not header and cells:
        found["header"] = "none"
    lines = blank
    if header and first:
        names = column_names(cells)
        lines += len(line_ends(np.frombuffer(first, np.uint8)))
    else:
        names = [f"column_{index}" for index in range(len(cells))]
        rest = chained(first, rest)
    if len(set(names)) < len(names):
        raise SourceError(f"{name}: two columns would have the same name: {', '.join(names)}")
    facts = {"names": names, "delimiter": delimiter, **dialect.facts()}

    def parse(part: Bytes, bounds: Ints, before: int) -> ParsedChunk:
        return parse_csv(part, bounds, names, dialect, name)

    return RecordFile(name, rest, finder, True, facts, parse, line_ends, lines, found, options.max_record_bytes)


def _first_record(
    blocks: Iterator[bytes], finder: Callable[[int], Finder], limit: int, name: str
) -> tuple[int, bytes, Iterator[bytes]]:
    """Return the blank lines before the first record, that record, and the blocks after it; raise SourceError if it is
    too large."""
    read: list[bytes] = []

    def noted() -> Iterator[bytes]:
        for block in blocks:
            read.append(block)
            yield block
            if sum(map(len, read[:-1])) > limit:  # without the last block, which is read ahead
                raise _first_too_large(name, limit)

    done = lines = 0
    for block in record_blocks(noted(), finder(0), limit, line_ends):
        solid = np.flatnonzero(is_solid(block.data, block.bounds))
        if block.skipped and (not len(solid) or block.skipped[0].record <= solid[0]):
            raise _first_too_large(name, limit)
        if len(solid):
            start, end = block.bounds[solid[0] : solid[0] + 2]
            head = b"".join(read)
            lines += len(line_ends(block.data[:start]))
            return lines, block.data[start:end].tobytes(), chained(head[done + end :], blocks)
        done += len(block.data)
        lines += len(line_ends(block.data))
    return lines, b"", iter(())
