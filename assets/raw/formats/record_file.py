"""Opens a file of records (JSON, delimited or plain text) and determines how to find and parse its records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tokenloom.assets.raw.formats.csv import (
    DELIMITERS,
    column_names,
    csv_record,
    guess_delimiter,
    is_header,
    parse_csv,
)
from tokenloom.assets.raw.formats.decode import utf8_blocks
from tokenloom.assets.raw.formats.json import parse_json
from tokenloom.assets.raw.formats.json_boundaries import JsonElements
from tokenloom.assets.raw.formats.json_layout import JsonLayout, Root, json_layout
from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk
from tokenloom.assets.raw.formats.record_boundaries import (
    NEWLINE,
    Bytes,
    Finder,
    Lines,
    Paragraphs,
    QuotedLines,
    RecordBlock,
    WholeFile,
    is_solid,
    line_ends,
    record_blocks,
)
from tokenloom.assets.raw.formats.text import parse_text
from tokenloom.config import DatasetConfig
from tokenloom.errors import SourceError
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.tables.ragged import Ints

T = TypeVar("T")


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

    def blocks(self, text: Iterator[bytes] | None = None, lines: int | None = None) -> Iterator[RecordBlock]:
        """Yield the records of the file, or of the given text after `lines` lines of the file."""
        finder = self.finder(self.first_line if lines is None else lines)
        return record_blocks(self.text if text is None else text, finder, self.name)


def open_records(dataset: DatasetConfig, file: SourceFile) -> RecordFile:
    """Open a file of records; reads the start of the file.

    Raises:
        SourceError: the file cannot be read, or is not a valid file of its format.
    """
    found: dict[str, str] = {}
    detect = file.format in ("csv", "tsv", "text")
    encoded = partial(found.__setitem__, "encoding")
    blocks = utf8_blocks(file.blocks(), dataset.encoding, detect, file.name, encoded)
    if file.format in ("csv", "tsv"):
        return _csv(dataset, file, blocks, found)
    if file.format == "text":
        rows = dataset.reader.lines_per_row
        finder_class = {"line": Lines, "paragraph": Paragraphs, "file": WholeFile}[rows]
        return RecordFile(
            file.name,
            blocks,
            lambda lines: finder_class(),
            rows != "file",
            {"format": "text", "rows": rows},
            lambda part, bounds, start: parse_text(part, bounds),
            _newlines,
            0,
            found,
        )
    return _json(dataset, file, blocks, found)


def _newlines(data: Bytes) -> Ints:
    return np.flatnonzero(data == NEWLINE) + 1


def _json(dataset: DatasetConfig, file: SourceFile, blocks: Iterator[bytes], found: dict[str, str]) -> RecordFile:
    root = Root.parse(dataset.reader.root) if dataset.reader.root else None
    layout, start, blocks = _detect_layout(blocks, file, root)
    if layout.found:
        found["root"] = layout.root
    line_ends_of = _newlines if layout.kind == "lines" and not layout.inner else None
    closing = "}" if layout.kind == "entries" else "]"

    def finder(lines: int) -> Finder:
        if layout.kind in ("lines", "whole"):
            return Lines() if layout.kind == "lines" else WholeFile()
        return JsonElements(layout.keys, start, layout.found, file.name, closing)

    facts = {
        "format": "json",
        "kind": layout.kind,
        "inner": [list(keys) for keys in layout.inner],
        "lists": layout.lists,
    }

    def parse(part: Bytes, bounds: Ints, done: int) -> ParsedChunk:
        return parse_json(part, bounds, layout, dataset.columns, file.name, start + done)

    return RecordFile(file.name, blocks, finder, layout.kind == "lines", facts, parse, line_ends_of, 0, found)


def _detect_layout(
    blocks: Iterator[bytes], file: SourceFile, root: Root | None
) -> tuple[JsonLayout, int, Iterator[bytes]]:
    """Return the layout of a JSON file, the number of bytes before its first record, and the blocks from there on."""

    def layout_of(head: bytes, final: bool) -> tuple[JsonLayout, int] | None:
        text = head.decode(errors="surrogateescape")
        layout = json_layout(text, final, file.format == "jsonl", root, file.name)
        return layout and (layout, len(text[: layout.start].encode(errors="surrogateescape")))

    (layout, start), head = _read_head(blocks, layout_of)
    return layout, start, _chained(head[start:], blocks)


def _read_head(blocks: Iterator[bytes], detect: Callable[[bytes, bool], T | None]) -> tuple[T, bytes]:
    """Read blocks until `detect(head, final)` returns a result; return it and the bytes read.

    Each attempt has at least twice the bytes of the last one, so that the total time is linear.
    """
    head, needed = b"", 0
    while True:
        block = next(blocks, None)
        head += block or b""
        if len(head) < needed and block is not None:
            continue
        if (result := detect(head, block is None)) is not None:
            return result, head
        needed = 2 * len(head)


def _chained(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Return the blocks with `first` before them, unless it is empty."""
    return itertools.chain([first] if first else [], blocks)


def _csv(dataset: DatasetConfig, file: SourceFile, blocks: Iterator[bytes], found: dict[str, str]) -> RecordFile:
    options, usual = dataset.reader, DELIMITERS[file.format]
    head = next(blocks, b"")
    delimiter = options.delimiter or guess_delimiter(head, usual)
    if delimiter != (options.delimiter or usual):
        found["delimiter"] = {"\t": "tab"}.get(delimiter, delimiter)

    def finder(lines: int) -> Finder:
        return QuotedLines(delimiter, file.name, lines)

    blank, first, rest = _first_record(_chained(head, blocks), finder)
    cells = csv_record(first, delimiter, file.name) if first else []
    header = is_header(cells) if options.header == "auto" else options.header
    if options.header == "auto" and not header and cells:
        found["header"] = "none"
    lines = blank
    if header and first:
        names = column_names(cells)
        lines += len(line_ends(np.frombuffer(first, np.uint8)))
    else:
        names = [f"column_{index}" for index in range(len(cells))]
        rest = _chained(first, rest)
    if len(set(names)) < len(names):
        raise SourceError(f"{file.name}: two columns would have the same name: {', '.join(names)}")
    facts = {"names": names, "delimiter": delimiter}
    return RecordFile(
        file.name,
        rest,
        finder,
        True,
        facts,
        lambda part, bounds, start: parse_csv(part, bounds, names, delimiter, file.name),
        line_ends,
        lines,
        found,
    )


def _first_record(blocks: Iterator[bytes], finder: Callable[[int], Finder]) -> tuple[int, bytes, Iterator[bytes]]:
    """Return the number of blank lines before the first record, that record, and the blocks after it."""

    def record_of(head: bytes, final: bool) -> tuple[int, int, int] | None:
        window = np.frombuffer(head, np.uint8)
        bounds = finder(0).find(window, final)
        solid = np.flatnonzero(is_solid(window, bounds))
        if not len(solid) and not final:
            return None
        start, end = bounds[solid[0] : solid[0] + 2] if len(solid) else (len(head), len(head))
        return len(line_ends(window[:start])), int(start), int(end)

    (blank, start, end), head = _read_head(blocks, record_of)
    return blank, head[start:end], _chained(head[end:], blocks)
