"""Parses plain text and delimited text to rows, and rejects records that are not UTF-8."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk, reject_records
from tokenloom.assets.raw.formats.record_boundaries import BACKSLASH, Bytes, QuotedLines, escapes, without_escapes
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.tables.ragged import Ints, flags_of, text_array

BOM = codecs.BOM_UTF8
TEXT_COLUMN = "text"
NOT_UTF8 = "not UTF-8; set dataset.encoding"


def parse_text(data: Bytes, bounds: Ints) -> ParsedChunk:
    """Parse plain text: one row per record, without its final line breaks. Blank records are filtered.

    Args:
        data: uint8 [bytes], the bytes of the chunk.
        bounds: int64 [records + 1] into `data`.
    """
    text = text_array(bounds, data)
    rows = np.arange(len(text))
    rejects = []
    if len(bad := undecodable(data, bounds, rows)):
        rejects = [reject_undecodable(data, bounds, bad, TEXT_COLUMN)]
        rows = np.setdiff1d(rows, bad)
        text = text.take(pa.array(rows))
    text = pc.utf8_rtrim(text, "\r\n")
    filled = flags_of(pc.not_equal(pc.utf8_trim_whitespace(text), ""))
    table = pa.table({TEXT_COLUMN: text.filter(pa.array(filled))})
    return ParsedChunk.of(table, rows[filled], rejects, int((~filled).sum()))


def undecodable(data: Bytes, bounds: Ints, records: Ints) -> Ints:
    """Return those of the records that are not UTF-8."""
    if not len(records):
        return records
    try:
        codecs.decode(data.tobytes(), "utf-8")
        return records[:0]
    except UnicodeDecodeError:
        parts = ((record, data[bounds[record] : bounds[record + 1]]) for record in records.tolist())
        return np.array([record for record, part in parts if not is_utf8(part.tobytes())], np.int64)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def reject_undecodable(data: Bytes, bounds: Ints, records: Ints, field: str) -> pa.Table:
    """Return rejects for records that are not UTF-8."""
    shown = [data[bounds[row] : bounds[row + 1]][:400].tobytes().decode(errors="replace") for row in records]
    return reject_rows(records, "raw", "invalid_utf8", field, NOT_UTF8, shown)


OTHER_DELIMITERS = ";\t|"
_NUMBER = re.compile(r"\s*[-+]?(\d[\d.,]*|\.\d+)([eE][-+]?\d+)?\s*%?\s*")
_QUOTED = re.compile(r'"[^"]*"')
_MALFORMED = "text follows the quote that closes a field"
_HEAD_BYTES, _ESCAPES_BYTES, _NAME_CHARACTERS, _NAME_WORDS = 1 << 16, 1 << 20, 100, 8
csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class Dialect:
    """How fields are written: their delimiter, the quote ("" if quotes are text), and whether backslashes escape."""

    delimiter: str
    quote: str = '"'
    escape: bool = False

    def finder(self, name: str, lines: int = 0) -> QuotedLines:
        """Return a finder of records; see `QuotedLines`."""
        return QuotedLines(self.delimiter, name, lines, self.quote, self.escape)

    def facts(self) -> dict[str, Any]:
        """Return what differs from the usual dialect, apart from the delimiter, as JSON."""
        return {**({} if self.quote == '"' else {"quote": self.quote}), **({"escape": True} if self.escape else {})}

    def irregular(self, data: Bytes, bounds: Ints) -> Ints:
        """Return the records in which text follows the quote that closes a field: readers drop quotes of such text."""
        return np.unique(np.searchsorted(bounds, self.finder("").misplaced(data), side="right") - 1)

    def field_counts(self, data: Bytes, bounds: Ints) -> Ints:
        """Return the number of fields of each record, int64 [records]."""
        edges = self.finder("").edges(data)
        at = np.flatnonzero((without_escapes(data) if self.escape else data) == ord(self.delimiter))
        # delimiters between an opening and a closing edge are text
        at = at[np.searchsorted(edges, at) % 2 == 0]
        return np.diff(np.searchsorted(at, bounds)) + 1


def has_escapes(head: bytes, final: bool, dialect: Dialect) -> bool:
    """Return whether the first records of a file are regular only if backslashes escape quotes.

    Args:
        final: whether the head is the whole file.
        dialect: the file's, without escapes.
    """
    if dialect.escape or not dialect.quote or f"\\{dialect.quote}".encode() not in head:
        return False
    whole = final and len(head) <= _ESCAPES_BYTES
    data = np.frombuffer(head[:_ESCAPES_BYTES] + b"\n" * (whole and not head.endswith(b"\n")), np.uint8)
    good = []
    for one in (dialect, replace(dialect, escape=True)):
        bounds = one.finder("").find(data, False)
        if len(bounds) < 2:
            good.append(0)
            continue
        records = data[: bounds[-1]]
        counts = one.field_counts(records, bounds)
        bad = counts != counts[0]
        bad[one.irregular(records, bounds)] = True
        bad &= _has_text(records, bounds)
        quotes = np.flatnonzero(records == ord(dialect.quote))
        after_slash = quotes[(quotes > 0) & (records[quotes - 1] == BACKSLASH)]
        # only records with a quote after a backslash tell the dialects apart
        slashed = np.searchsorted(bounds, after_slash, side="right") - 1
        good.append(0 if bad[slashed].any() else int(bounds[-1]))
    return good[1] > good[0]


def _with_text_escaped(data: Bytes, dialect: Dialect) -> bytes:
    """Return bytes in which a backslash that escapes nothing is escaped itself, for it is text."""
    at = escapes(data)
    at = at[at + 1 < len(data)]
    # the reader drops each backslash, so one before an ordinary character is doubled
    text = at[~np.isin(data[at + 1], np.frombuffer(f"\\\r\n{dialect.quote}{dialect.delimiter}".encode(), np.uint8))]
    return np.insert(data, text, BACKSLASH).tobytes()


def parse_csv(part: Bytes, bounds: Ints, names: Sequence[str], dialect: Dialect, name: str) -> ParsedChunk:
    """Parse delimited records without a header.

    Records with a wrong number of fields, with text after a closing quote, or that are not UTF-8, are rejected. Empty
    lines are skipped.

    Args:
        part: uint8 [bytes], the bytes of the chunk.
        bounds: int64 [records + 1] into `part`.
        names: the column names.
        name: the file, for messages.

    Raises:
        SourceError: the reader finds a different number of records, because of quotes or line breaks in fields.
    """
    rows = np.flatnonzero(_has_text(part, bounds))
    rejects: list[pa.Table] = []
    undecoded = undecodable(part, bounds, rows)
    malformed = np.setdiff1d(dialect.irregular(part, bounds), undecoded)
    if len(undecoded):
        rejects.append(reject_undecodable(part, bounds, undecoded, ""))
    if len(malformed):
        texts = (part[bounds[row] : bounds[row + 1]].tobytes().decode(errors="replace") for row in malformed.tolist())
        shown = zip(malformed.tolist(), texts, strict=True)
        rejects += reject_records((row, "malformed_quotes", _MALFORMED, text.rstrip("\r\n")) for row, text in shown)
    if len(bad := np.union1d(undecoded, malformed)):
        rows = np.setdiff1d(rows, bad)
        regular = [part[bounds[row] : bounds[row + 1]] for row in rows]
        part = np.concatenate(regular) if regular else part[:0]
    data = _with_text_escaped(part, dialect) if dialect.escape else part.tobytes()
    invalid: list[arrow_csv.InvalidRow] = []

    def keep(row: arrow_csv.InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    if not len(rows):
        return ParsedChunk.of(pa.table({column: pa.array([], pa.string()) for column in names}), rows, rejects)
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(BOM + data if data.startswith(BOM) else data),  # the reader strips the first BOM
            arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 4, column_names=list(names)),
            arrow_csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote or False,
                escape_char="\\" if dialect.escape else False,
                newlines_in_values=True,
                invalid_row_handler=keep,
            ),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        raise SourceError(f"{name}: {str(error).splitlines()[0]}") from error
    if len(rows) != (count := table.num_rows + len(invalid)):
        raise SourceError(
            f"{name}: found {count} rows in {len(rows)} records; quote fields that contain quotes or line breaks"
        )
    invalid_rows = np.array([row.number - 1 for row in invalid], np.int64)
    wrong: list[tuple[int, str, str, str]] = []
    for row in invalid:
        message = f"expected {row.expected_columns} fields, found {row.actual_columns}"
        wrong.append((int(rows[row.number - 1]), "wrong_field_count", message, row.text or ""))
    rejects += reject_records(wrong)
    return ParsedChunk.of(table, np.delete(rows, invalid_rows), rejects)


def _has_text(data: Bytes, bounds: Ints) -> Any:
    """Return bool [records]: which records contain more than line breaks."""
    if len(bounds) < 2:
        return np.zeros(0, bool)
    # records have at least one byte, which reduceat needs
    return np.logical_or.reduceat((data != 10) & (data != 13), bounds[:-1])


def guess_delimiter(head: bytes, usual: str) -> str:
    """Return the usual delimiter if it is in the first line, else the most frequent other delimiter there."""
    text = _QUOTED.sub("", head[:_HEAD_BYTES].decode(errors="replace").lstrip(" \r\n"))
    line = re.split(r"[\r\n]", text, maxsplit=1)[0]
    if usual in line:
        return usual
    best = max(OTHER_DELIMITERS + ",", key=line.count)
    return best if best in line else usual


def is_header(cells: Sequence[str]) -> bool:
    """Return whether the first record looks like column names: short, distinct, and neither numbers nor prose.

    Only the first can be empty, as the name of an index.
    """
    named = cells[1:] if len(cells) > 1 and not cells[0].strip() else cells
    return len(set(cells)) == len(cells) and all(
        cell.strip()
        and len(cell) <= _NAME_CHARACTERS
        and len(cell.split()) <= _NAME_WORDS
        and not _NUMBER.fullmatch(cell)
        for cell in named
    )


def column_names(cells: Sequence[str]) -> list[str]:
    """Return column names from the first record; empty or repeated names get their position as a suffix."""
    return [
        column if column and column not in cells[:index] else f"{column or 'column'}_{index}"
        for index, column in enumerate(cells)
    ]


def csv_record(data: bytes, dialect: Dialect, name: str) -> list[str]:
    """Return the fields of one record.

    Raises:
        SourceError: the record is not UTF-8, or a field is too long.
    """
    try:
        reader = csv.reader(
            io.StringIO(data.decode(), newline=""),
            delimiter=dialect.delimiter,
            quotechar=dialect.quote or None,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
            escapechar="\\" if dialect.escape else None,
        )
        return next(reader, [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{name}: cannot read the first record: {error}; set dataset.encoding") from error
