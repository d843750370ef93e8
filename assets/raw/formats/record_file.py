"""Opens a file of records - JSON, delimited or plain text - as blocks of them, with what parsing needs to know."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from tokenloom.assets.raw.formats.json_elements import JsonElements
from tokenloom.assets.raw.formats.json_layout import JsonLayout, Root, json_layout
from tokenloom.assets.raw.formats.parsed import Parsed
from tokenloom.assets.raw.formats.records import (
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


@dataclass(frozen=True)
class RecordFile:
    """A file of records, opened.

    Args:
        name: the file, for messages.
        text: its UTF-8 from the first record on, in blocks.
        finder: finds records in text that follows so many lines of the file.
        restarts: whether such text may begin at any record.
        facts: what besides its bytes the rows of a chunk depend on.
        parse: a chunk's bytes, its bounds, and the bytes of the file before it, to rows.
        line_ends: where lines end in bytes, for formats whose records begin on lines of their own; None: rows count.
        first_line: lines before the first record.
        found: what was found out about the file rather than declared, for people to read.
    """

    name: str
    text: Iterator[bytes]
    finder: Callable[[int], Finder]
    restarts: bool
    facts: dict[str, Any]
    parse: Callable[[Bytes, Ints, int], Parsed]
    line_ends: Callable[[Bytes], Ints] | None
    first_line: int
    found: dict[str, str]

    def blocks(self, text: Iterator[bytes] | None = None, lines: int | None = None) -> Iterator[RecordBlock]:
        """The records of the file, or of the text that follows so many lines of it."""
        finder = self.finder(self.first_line if lines is None else lines)
        return record_blocks(self.text if text is None else text, finder, self.name)


def open_records(dataset: DatasetConfig, file: SourceFile) -> RecordFile:
    """Open a file of records; reads its begin.

    Raises:
        SourceError: it cannot be read, or is not what its format says.
    """
    found: dict[str, str] = {}
    detect = file.format in ("csv", "tsv", "text")
    encoded = partial(found.__setitem__, "encoding")
    blocks = utf8_blocks(file.blocks(), dataset.encoding, detect, file.name, encoded)
    if file.format in ("csv", "tsv"):
        return _csv(dataset, file, blocks, found)
    if file.format == "text":
        rows = dataset.reader.lines_per_row
        found_by = {"line": Lines, "paragraph": Paragraphs, "file": WholeFile}[rows]
        return RecordFile(
            file.name,
            blocks,
            lambda lines: found_by(),
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
    layout, start, blocks = _json_head(blocks, file, root)
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

    def parse(part: Bytes, bounds: Ints, behind: int) -> Parsed:
        return parse_json(part, bounds, layout, dataset.columns, file.name, start + behind)

    return RecordFile(file.name, blocks, finder, layout.kind == "lines", facts, parse, line_ends_of, 0, found)


def _json_head(blocks: Iterator[bytes], file: SourceFile, root: Root | None) -> tuple[JsonLayout, int, Iterator[bytes]]:
    """The layout of a JSON file, the bytes before its first record, and the blocks from there on."""
    head, wanted, final = b"", 0, False
    while True:
        block = next(blocks, None)
        final = block is None
        head += block or b""
        if len(head) < wanted and not final:
            continue
        text = head.decode(errors="surrogateescape")
        layout = json_layout(text, final, file.format == "jsonl", root, file.name)
        if layout is not None:
            start = len(text[: layout.start].encode(errors="surrogateescape"))
            rest = [head[start:]] if head[start:] else []
            return layout, start, itertools.chain(rest, blocks)
        wanted = 2 * len(head)


def _csv(dataset: DatasetConfig, file: SourceFile, blocks: Iterator[bytes], found: dict[str, str]) -> RecordFile:
    options, usual = dataset.reader, DELIMITERS[file.format]
    head = next(blocks, b"")
    delimiter = options.delimiter or guess_delimiter(head, usual)
    if delimiter != (options.delimiter or usual):
        found["delimiter"] = {"\t": "tab"}.get(delimiter, delimiter)

    def finder(lines: int) -> Finder:
        return QuotedLines(delimiter, file.name, lines)

    blank, first, rest = _first_record(itertools.chain([head] if head else [], blocks), finder)
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
        rest = itertools.chain([first] if first else [], rest)
    if len(set(names)) < len(names):
        raise SourceError(f"{file.name}: two columns come to have one name: {', '.join(names)}")
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
    """The blank lines before a file's first record that holds something, that record, and what follows it."""
    head, wanted, final = b"", 0, False
    while True:
        block = next(blocks, None)
        final = block is None
        head += block or b""
        if len(head) < wanted and not final:
            continue
        window = np.frombuffer(head, np.uint8)
        bounds = finder(0).find(window, final)
        solid = np.flatnonzero(is_solid(window, bounds))
        if len(solid) or final:
            begin, end = bounds[solid[0] : solid[0] + 2] if len(solid) else (len(head), len(head))
            rest = [head[end:]] if head[end:] else []
            return len(line_ends(window[:begin])), head[begin:end], itertools.chain(rest, blocks)
        wanted = 2 * len(head)
