"""Delimited text: what the first record says, and records to rows. Cells stay the strings they are."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from tokenloom.assets.raw.formats.parsed import Parsed
from tokenloom.assets.raw.formats.records import Bytes
from tokenloom.assets.raw.formats.text import BOM, reject_undecodable, undecodable
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.tables.ragged import Ints

DELIMITERS = {"csv": ",", "tsv": "\t"}
OTHER_DELIMITERS = ";\t|"
_NUMBER = re.compile(r"\s*[-+]?(\d[\d.,]*|\.\d+)([eE][-+]?\d+)?\s*%?\s*")
_QUOTED = re.compile(r'"[^"]*"')
_HEAD, _LONGEST_NAME, _MOST_WORDS = 1 << 16, 100, 8
csv.field_size_limit(1 << 30)


def parse_csv(part: Bytes, bounds: Ints, names: Sequence[str], delimiter: str, name: str) -> Parsed:
    """Delimited records without a header. Records with another number of fields, or with bytes that are no text, are
    rejected; empty lines are no rows.

    Args:
        bounds: int64 [records + 1] into `part`.

    Raises:
        SourceError: the chunk's quoting cannot be followed.
    """
    rows = np.flatnonzero(_holds_text(part, bounds))
    rejects: list[pa.Table] = []
    if len(bad := undecodable(part, bounds, rows)):
        rejects.append(reject_undecodable(part, bounds, bad, ""))
        rows = np.setdiff1d(rows, bad)
        kept = [part[bounds[row] : bounds[row + 1]] for row in rows]
        part = np.concatenate(kept) if kept else part[:0]
    data = part.tobytes()
    invalid: list[arrow_csv.InvalidRow] = []

    def keep(row: arrow_csv.InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    if not len(rows):
        return Parsed.of(pa.table({column: pa.array([], pa.string()) for column in names}), rows, rejects)
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(BOM + data if data.startswith(BOM) else data),  # the reader takes the first one away
            arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 4, column_names=list(names)),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        raise SourceError(f"{name}: {str(error).splitlines()[0]}") from error
    if len(rows) != table.num_rows + len(invalid):
        found = table.num_rows + len(invalid)
        raise SourceError(
            f"{name}: {found} rows in {len(rows)} records; put fields that hold quotes or line breaks in quotes"
        )
    invalid_rows = np.array([row.number - 1 for row in invalid], np.int64)
    rejects += [
        reject_rows(
            rows[[row.number - 1]],
            "raw",
            "wrong_field_count",
            "",
            f"expected {row.expected_columns} fields, found {row.actual_columns}",
            [row.text or ""],
        )
        for row in invalid
    ]
    return Parsed.of(table, np.delete(rows, invalid_rows), rejects)


def _holds_text(data: Bytes, bounds: Ints) -> Any:
    """bool [records]: which records hold more than a line break."""
    if len(bounds) < 2:
        return np.zeros(0, bool)
    return np.add.reduceat((data != 10) & (data != 13), bounds[:-1], dtype=np.int64) > 0


def guess_delimiter(head: bytes, usual: str) -> str:
    """The usual separator, unless the first line holds none of it but others; then the most frequent of those."""
    text = re.split(r"[\r\n]", _QUOTED.sub("", head[:_HEAD].decode(errors="replace").lstrip(" \r\n")), maxsplit=1)[0]
    if usual in text:
        return usual
    best = max(OTHER_DELIMITERS + ",", key=text.count)
    return best if best in text else usual


def is_header(cells: Sequence[str]) -> bool:
    """Whether a first record reads like column names: short, distinct, none of them a number or prose, and none empty
    but the first, as the name of an index."""
    named = cells[1:] if len(cells) > 1 and not cells[0].strip() else cells
    return len(set(cells)) == len(cells) and all(
        cell.strip() and len(cell) <= _LONGEST_NAME and len(cell.split()) <= _MOST_WORDS and not _NUMBER.fullmatch(cell)
        for cell in named
    )


def column_names(cells: Sequence[str]) -> list[str]:
    """Column names from the first record; an empty or repeated one is made distinct by its position."""
    return [
        column if column and column not in cells[:index] else f"{column or 'column'}_{index}"
        for index, column in enumerate(cells)
    ]


def csv_record(data: bytes, delimiter: str, name: str) -> list[str]:
    """The fields of one record.

    Raises:
        SourceError: it is no text, or holds a field that is too long.
    """
    try:
        return next(csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{name}: first record cannot be read: {error}; set dataset.encoding") from error
