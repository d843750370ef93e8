"""Parses the bytes of one chunk into a table: columns as found, plus each row's position.

The readers are pyarrow's. Where one of them gives up on a chunk, its records are tried one by one, so that a bad
record is set aside and the others go on.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from tokenloom.assets.raw.records import Bytes, is_solid
from tokenloom.assets.rejects import ROW, join_rejects, reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.ragged import Ints, text_array

TEXT_COLUMN = "text"
BOM = codecs.BOM_UTF8


class Parsed:
    """A chunk's rows with their positions, what was set aside, and how many records were blank."""

    def __init__(self, table: pa.Table, rejects: Sequence[pa.Table] = (), filtered: int = 0, rows: Any = None):
        if ROW in table.column_names:
            raise SourceError(f"a column is named {ROW}, which holds row positions here; rename it in the source")
        positions = np.arange(table.num_rows) if rows is None else np.asarray(rows)
        self.table = table.append_column(ROW, pa.array(positions, pa.int32()))
        self.rejects = join_rejects(rejects)
        self.filtered = filtered


def to_utf8(data: bytes, encoding: str, name: str) -> bytes:
    """The text of a file as UTF-8 without a byte-order mark.

    Raises:
        SourceError: the declared encoding does not fit, or the bytes are plainly another one than UTF-8.
    """
    if encoding == "auto":
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return to_utf8(data, "utf-16", name)
        return data.removeprefix(BOM)
    try:
        return data.decode(encoding).removeprefix("\ufeff").encode()
    except UnicodeError as error:
        raise SourceError(f"{name}: not {encoding} text: {error}; set dataset.encoding") from error


def parse_json(part: Bytes, bounds: Ints, name: str, lines: bool, columns: Sequence[str] | None = None) -> Parsed:
    """JSON values, one a line when `lines`, else one after the other; blank records are no rows.

    Args:
        bounds: int64 [records + 1] into `part`.
        columns: those that matter; what others hold rejects no row.

    Raises:
        SourceError: a value cannot be read and no line break tells where the next one begins.
    """
    rows = np.flatnonzero(is_solid(part, bounds)) if len(bounds) > 1 else np.zeros(0, np.int64)
    if not len(rows):
        return Parsed(pa.table({}), rows=rows)
    data = part.tobytes()
    try:
        table = _read_json(data, multi_line=not lines)
        table.validate(full=True)
        if table.num_rows == len(rows):
            return Parsed(table, rows=rows)
        problem: Exception = SourceError(f"{table.num_rows} values in {len(rows)} records")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        problem = error
    records = list(_json_lines(data) if lines else _json_values(data, name))
    if len(records) != len(rows):
        reason = _first_line(problem)
        raise SourceError(f"{name}: {len(records)} values where {len(rows)} were expected: {reason}") from problem
    return _parse_json_singly(records, rows, name, columns)


def _read_json(data: bytes, multi_line: bool) -> pa.Table:
    """One pass of pyarrow's reader; strings that look like dates stay strings."""
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = arrow_json.ParseOptions(newlines_in_values=multi_line)
    table = arrow_json.read_json(pa.BufferReader(data), read, parse)
    dated = [pa.field(field.name, kind) for field in table.schema if (kind := _undated(field.type)) != field.type]
    if dated:
        parse = arrow_json.ParseOptions(newlines_in_values=multi_line, explicit_schema=pa.schema(dated))
        order = table.column_names
        table = arrow_json.read_json(pa.BufferReader(data), read, parse).select(order)
    return table


def _undated(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_undated(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_undated(field.type)) for field in kind])
    return kind


def _parse_json_singly(
    records: Sequence[tuple[Any, str, str]], rows: Ints, name: str, columns: Sequence[str] | None
) -> Parsed:
    """The slow path for a chunk that holds a bad record: reject it, then read the others in one pass.

    Args:
        records: each one's value, what is wrong with it if anything, and an excerpt.
    """
    values: list[tuple[int, dict[str, Any]]] = []
    rejects: list[pa.Table] = []

    def reject(row: int, code: str, field: str, message: str, excerpt: str) -> None:
        rejects.append(reject_rows(np.array([row]), "raw", code, field, message, [excerpt]))

    for row, (value, problem, excerpt) in zip(rows.tolist(), records, strict=True):
        if problem:
            reject(row, "invalid_json", "", problem, excerpt)
        elif not isinstance(value, dict):
            reject(row, "not_an_object", "", f"expected an object, found {type(value).__name__}", excerpt)
        else:
            kept_fields = {field: item for field, item in value.items() if columns is None or field in columns}
            if (code := _unreadable(kept_fields)) is not None:
                reject(row, code, "", _UNREADABLE[code], excerpt)
            else:
                values.append((row, kept_fields))
    found: dict[str, Counter[str]] = {}
    for _, value in values:
        for path, kind in _kinds(value):
            found.setdefault(path, Counter())[kind] += 1
    usual = {path: counter.most_common(1)[0][0] for path, counter in found.items()}
    kept: list[tuple[int, dict[str, Any]]] = []
    for row, value in values:
        odd = next(((path, kind) for path, kind in _kinds(value) if kind != usual[path]), None)
        if odd is None:
            kept.append((row, value))
        else:
            message = f"{odd[1]} here, {usual[odd[0]]} elsewhere in this chunk"
            reject(row, "wrong_type", odd[0].lstrip("."), message, json.dumps(value, ensure_ascii=False))
    text = b"\n".join(json.dumps(value, ensure_ascii=False).encode() for _, value in kept)
    try:
        table = _read_json(text, multi_line=False) if kept else pa.table({})
    except pa.ArrowInvalid as error:
        raise SourceError(f"{name}: {_first_line(error)}") from error
    return Parsed(table, rejects, rows=[row for row, _ in kept])


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _json_lines(data: bytes) -> Iterator[tuple[Any, str, str]]:
    for line in data.split(b"\n"):
        if not line.strip(b" \t\r\n"):
            continue
        excerpt = line[:400].decode(errors="replace")
        try:
            yield json.loads(line.decode()), "", excerpt
        except UnicodeDecodeError as error:
            yield None, f"not UTF-8 at byte {error.start} of the line", excerpt
        except (ValueError, RecursionError) as error:
            yield None, str(error), excerpt


def _json_values(data: bytes, name: str) -> Iterator[tuple[Any, str, str]]:
    try:
        text, at = data.decode(), 0
    except UnicodeDecodeError as error:
        raise SourceError(f"{name}: not UTF-8 at byte {error.start} of a chunk; set dataset.encoding") from error
    decoder = json.JSONDecoder()
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{name}: invalid JSON near {text[at : at + 60]!r}: {error}") from error
        yield value, "", text[at : min(end, at + 400)]
        at = end


_UNREADABLE = {
    "lone_surrogate": "a string holds half of a surrogate pair",
    "nested_too_deeply": "lists and objects nest too deeply",
}


def _unreadable(value: Any) -> str | None:
    """Why Arrow could not read a JSON value, as a code of `_UNREADABLE`, or None."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
        for _ in _kinds(value):
            pass
    except UnicodeEncodeError:
        return "lone_surrogate"
    except RecursionError:
        return "nested_too_deeply"
    return None


def _kinds(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, kind) of everything in a JSON value but nulls."""
    if isinstance(value, dict):
        yield path, "object"
        for key, item in value.items():
            yield from _kinds(item, f"{path}.{key}")
    elif isinstance(value, list):
        yield path, "list"
        for item in value:
            yield from _kinds(item, f"{path}[]")
    elif value is not None:
        yield path, "boolean" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def parse_csv(part: Bytes, bounds: Ints, names: Sequence[str], delimiter: str, name: str) -> Parsed:
    """Delimited records without a header. Cells stay the strings they are: no types are guessed.

    Records with another number of fields are rejected; empty lines are no rows.

    Args:
        bounds: int64 [records + 1] into `part`.
    """
    data = part.tobytes()
    invalid: list[arrow_csv.InvalidRow] = []

    def keep(row: arrow_csv.InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(BOM + data if data.startswith(BOM) else data),  # the reader takes the first one away
            arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 4, column_names=list(names)),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        hint = "; set dataset.encoding" if "UTF8" in str(error) or "UTF-8" in str(error) else ""
        raise SourceError(f"{name}: {_first_line(error)}{hint}") from error
    rows = np.flatnonzero(_holds_text(part, bounds))
    if len(rows) != table.num_rows + len(invalid):
        found = table.num_rows + len(invalid)
        raise SourceError(
            f"{name}: {found} rows in {len(rows)} records; put fields that hold quotes or line breaks in quotes"
        )
    bad = np.array([row.number - 1 for row in invalid], np.int64)
    rejects = [
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
    return Parsed(table, rejects, rows=np.delete(rows, bad))


def _holds_text(data: Bytes, bounds: Ints) -> Any:
    """bool [records]: which records hold more than a line break."""
    if len(bounds) < 2:
        return np.zeros(0, bool)
    return np.add.reduceat((data != 10) & (data != 13), bounds[:-1], dtype=np.int64) > 0


def csv_header(data: bytes, delimiter: str, name: str) -> list[str]:
    """Column names from the first record; an empty or repeated one is made distinct by its position."""
    first = parse_csv_record(data, delimiter, name)
    return [
        column if column and column not in first[:index] else f"{column or 'column'}_{index}"
        for index, column in enumerate(first)
    ]


def parse_csv_record(data: bytes, delimiter: str, name: str) -> list[str]:
    """The fields of one record."""
    import csv
    import io

    try:
        return next(csv.reader(io.StringIO(data.decode()), delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{name}: first record cannot be read: {error}; set dataset.encoding") from error


def parse_text(data: Bytes, bounds: Any, name: str) -> Parsed:
    """Plain text: a row for each record, without its final line breaks; blank records are filtered.

    Args:
        bounds: int64 [records + 1] into `data`.
    """
    text = text_array(bounds, data)
    valid = _valid_utf8(text)
    rejects = []
    if not valid.all():
        bad = np.flatnonzero(~valid)
        shown = [bytes(data[bounds[row] : bounds[row + 1]][:400]).decode(errors="replace") for row in bad]
        rejects = [reject_rows(bad, "raw", "invalid_utf8", TEXT_COLUMN, "not UTF-8; set dataset.encoding", shown)]
        text = text.filter(pa.array(valid))
    rows = np.flatnonzero(valid)
    text = pc.utf8_rtrim(text, "\r\n")
    solid = pc.not_equal(pc.utf8_trim_whitespace(text), "").to_numpy(zero_copy_only=False)
    table = pa.table({TEXT_COLUMN: text.filter(pa.array(solid))})
    return Parsed(table, rejects, int((~solid).sum()), rows[solid])


def _valid_utf8(text: pa.StringArray) -> Any:
    try:
        text.validate(full=True)
        return np.ones(len(text), bool)
    except pa.ArrowInvalid:
        return np.array([_decodes(value.as_buffer()) for value in text.view(pa.binary())], bool)


def _decodes(buffer: pa.Buffer) -> bool:
    try:
        buffer.to_pybytes().decode()
    except UnicodeDecodeError:
        return False
    return True
