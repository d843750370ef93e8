"""Parses JSON records to rows with pyarrow's reader.

If the reader fails on a chunk, the records are parsed one by one: bad records are rejected, the others are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.explode import explode
from tokenloom.assets.raw.formats.json_boundaries import split_entries
from tokenloom.assets.raw.formats.json_layout import JsonLayout
from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk
from tokenloom.assets.raw.formats.record_boundaries import Bytes, is_solid, trimmed
from tokenloom.assets.raw.formats.text import NOT_UTF8
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.tables.flags import flags_of
from tokenloom.resources.tables.json_text import json_kinds, read_json, usual_kinds, without_dates
from tokenloom.resources.tables.ragged import Ints, text_array

OPEN, CLOSE = ord("{"), ord("}")
MAX_DEPTH = 32
"""The levels of lists and objects that a row can have; stored tables support little more."""
_NULL_ITEM = re.compile(rb"[\[,]\s*null")
KEY, VALUE, ITEMS = "key", "value", "items"
"""Columns: an entry's key and, temporarily, its value; the items of a record that is a list."""

Records = tuple[pa.Table, Ints, list[pa.Table]]
"""Rows, the record of each row, and rejects."""


def parse_json(
    part: Bytes, bounds: Ints, layout: JsonLayout, columns: Sequence[str] | None, name: str, start: int
) -> ParsedChunk:
    """Parse JSON records to rows. Blank records are skipped.

    Args:
        part: uint8 [bytes], the bytes of the chunk.
        bounds: int64 [records + 1] into `part`.
        columns: the columns that are used; bad values in others reject no row. Default: all.
        name: the file, for messages.
        start: bytes of the file before the chunk, for messages.

    Raises:
        SourceError: an element of an array or an entry of an object is not valid JSON.
    """
    solid = np.flatnonzero(is_solid(part, bounds))
    if not len(solid):
        return ParsedChunk.of(pa.table({}), solid)
    try:
        data = _as_objects(part, bounds, solid, layout)
    except ValueError as error:
        raise SourceError(f"{name}: invalid JSON: {error}, after byte {start}") from error
    wrapped = layout.lists or layout.kind == "entries"
    if layout.kind != "lines" and len(solid) < len(bounds) - 1:
        raise SourceError(f"{name}: invalid JSON: nothing between two commas, after byte {start}")
    if (wrapped or _are_objects(part, bounds, solid)) and (table := _read_whole(data, layout, len(solid))) is not None:
        rows, rejects = solid, []
    else:
        table, rows, rejects = _read_singly(part, bounds, solid, layout, columns, name, start)
    if layout.kind == "entries":
        table, rows, rejects = _unpack_entries(table, rows, rejects)
    if layout.inner:
        try:
            table, source = explode(table, layout.inner)
        except ValueError as error:
            raise SourceError(f"{name}: {error}") from error
        rows = rows[source]
    return ParsedChunk.of(table, rows, rejects)


def _are_objects(part: Bytes, bounds: Ints, solid: Ints) -> bool:
    """Return whether every record starts with `{` and ends with `}`."""
    starts, ends = trimmed(part, bounds)
    return bool((part[starts[solid]] == OPEN).all() and (part[ends[solid] - 1] == CLOSE).all())


def _as_objects(part: Bytes, bounds: Ints, solid: Ints, layout: JsonLayout) -> bytes:
    """Return the records as consecutive JSON objects; lists and entries are wrapped in objects."""
    if layout.kind != "entries" and not layout.lists:
        return part.tobytes()
    data, limits = _only(part, bounds, solid)
    if layout.kind == "entries":
        key_start, key_end, value_start = split_entries(data, limits)
        keys, values = _slices(data, key_start, key_end), _slices(data, value_start, limits[1:])
        joined = pc.binary_join_element_wise(b'{"key":', keys, b',"value":', values, b"}\n", b"")
    else:
        joined = pc.binary_join_element_wise(b'{"items":', _slices(data, limits[:-1], limits[1:]), b"}\n", b"")
    return joined.buffers()[2].to_pybytes()


def _only(part: Bytes, bounds: Ints, records: Ints) -> tuple[Bytes, Ints]:
    """Return the bytes and bounds of some of the records."""
    if len(records) == len(bounds) - 1:
        return part, bounds
    kept = text_array(bounds, part).view(pa.binary()).take(pa.array(records))
    limits = np.concatenate([[0], np.cumsum(np.diff(bounds)[records])])
    return np.frombuffer(kept.buffers()[2], np.uint8)[: limits[-1]], limits


def _slices(data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Return the binary strings data[start:end] of ascending ranges that do not overlap."""
    between = np.column_stack([starts, ends]).ravel()
    every = text_array(np.concatenate([[0], between, [len(data)]]), data).view(pa.binary())
    return every.take(pa.array(np.arange(len(starts)) * 2 + 1))


def _read_whole(data: bytes, layout: JsonLayout, expected: int) -> pa.Table | None:
    """Read records that are objects in one pass; return None if that does not give one row per record.

    Never pass it a bare `null`: that crashes pyarrow's reader.
    """
    try:
        table = _read_typed(data, multi_line=layout.kind != "lines")
        table.validate(full=True)
        too_deep = any(_depth(kind) > MAX_DEPTH for kind in table.schema.types)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, RecursionError):
        return None
    return table if table.num_rows == expected and not too_deep else None


def _depth(kind: pa.DataType) -> int:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return 1 + max(map(_depth, inner), default=0)


def _read_typed(data: bytes, multi_line: bool) -> pa.Table:
    """Read JSON objects in one pass, or in two if the first only determines the types.

    Strings that look like dates stay strings. Without the types, pyarrow would shift the items of a list in which a
    null comes before the first item that shows the type.
    """
    table = read_json(data, multi_line)
    schema = pa.schema([field.with_type(without_dates(field.type, pa.string())) for field in table.schema])
    if schema != table.schema or (any(map(_has_list, schema.types)) and b"null" in data and _NULL_ITEM.search(data)):
        table = read_json(data, multi_line, schema).select(table.column_names)
    return table


def _has_list(kind: pa.DataType) -> bool:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return pa.types.is_list(kind) or any(map(_has_list, inner))


def _unpack_entries(table: pa.Table, rows: Ints, rejects: list[pa.Table]) -> Records:
    """Return the entries' keys and the fields of their values as columns; other values than objects are rejected."""
    values = table[VALUE] if VALUE in table.column_names else pa.chunked_array([pa.nulls(table.num_rows)])
    is_object = flags_of(values.is_valid()) if pa.types.is_struct(values.type) else np.zeros(table.num_rows, bool)
    if not is_object.all():
        other = ~is_object
        excerpts = [str(value)[:400] for value in table.filter(pa.array(other)).to_pylist()]
        message = "expected an object under each key"
        rejects.append(reject_rows(rows[other], "raw", "not_an_object", "", message, excerpts))
        table, rows = table.filter(pa.array(is_object)), rows[is_object]
    if not len(rows):
        return pa.table({}), rows, rejects
    fields = pa.Table.from_struct_array(table[VALUE])
    name = KEY if KEY not in fields.column_names else f"_{KEY}"
    return fields.add_column(0, name, table[KEY]), rows, rejects


def _read_singly(
    part: Bytes,
    bounds: Ints,
    solid: Ints,
    layout: JsonLayout,
    columns: Sequence[str] | None,
    name: str,
    start: int,
) -> Records:
    """Parse a chunk that contains a bad record: reject bad records, then read the others in one pass."""
    values: list[tuple[int, dict[str, Any]]] = []
    rejects: list[pa.Table] = []

    def reject(row: int, code: str, field: str, message: str, excerpt: str) -> None:
        rejects.append(reject_rows(np.array([row]), "raw", code, field, message, [excerpt]))

    for row in solid.tolist():
        record = part[bounds[row] : bounds[row + 1]].tobytes()
        value, problem = _value(record, layout)
        excerpt = record[:400].decode(errors="replace").strip()
        if problem in _UNREADABLE:
            reject(row, problem, "", _UNREADABLE[problem], excerpt)
        elif problem and layout.kind != "lines":
            at = start + int(bounds[row])
            raise SourceError(f"{name}: invalid JSON in the element at byte {at}, {excerpt[:60]!r}: {problem}")
        elif problem:
            reject(row, "invalid_json", "", problem, excerpt)
        elif not isinstance(value, dict):
            reject(row, "not_an_object", "", f"expected an object, found {type(value).__name__}", excerpt)
        else:
            used = columns if layout.kind == "lines" and not layout.inner else None
            kept_fields = {field: item for field, item in value.items() if used is None or field in used}
            if (code := _unreadable(kept_fields)) is not None:
                reject(row, code, "", _UNREADABLE[code], excerpt)
            else:
                values.append((row, kept_fields))
    usual = usual_kinds(value for _, value in values)
    kept: list[tuple[int, dict[str, Any]]] = []
    for row, value in values:
        odd = next(((path, kind) for path, kind in json_kinds(value) if kind != usual[path]), None)
        if odd is None:
            kept.append((row, value))
        else:
            message = f"{odd[1]} here, {usual[odd[0]]} elsewhere in this chunk"
            reject(row, "wrong_type", "".join(odd[0]).lstrip("."), message, json.dumps(value, ensure_ascii=False))
    text = b"\n".join(json.dumps(value, ensure_ascii=False).encode() for _, value in kept)
    try:
        table = _read_typed(text, multi_line=False) if kept else pa.table({})
    except pa.ArrowInvalid as error:
        raise SourceError(f"{name}: {str(error).splitlines()[0]}, after byte {start}") from error
    return table, np.array([row for row, _ in kept], np.int64), rejects


def _value(record: bytes, layout: JsonLayout) -> tuple[Any, str]:
    """Return a record's value as the layout wraps it, and its problem: a code of `_UNREADABLE`, a message, or ""."""
    try:
        text = record.decode()
        if layout.kind == "entries":
            text = f"{{{text}}}"
        value = json.loads(text)
    except UnicodeDecodeError:
        return None, "invalid_utf8"
    except RecursionError:
        return None, "nested_too_deeply"
    except ValueError as error:
        return None, str(error)
    if layout.kind == "entries":
        ((key, value),) = value.items()
        value = {KEY: key, VALUE: value}
    elif layout.lists:
        value = {ITEMS: value}
    return value, ""


_UNREADABLE = {
    "invalid_utf8": NOT_UTF8,
    "lone_surrogate": "a string contains a lone surrogate",
    "nested_too_deeply": "lists and objects are nested too deeply",
}


def _unreadable(value: Any) -> str | None:
    """Return why Arrow could not read a JSON value, as a code of `_UNREADABLE`, or None."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
        if any(len(path) > MAX_DEPTH for path, _ in json_kinds(value)):
            return "nested_too_deeply"
    except UnicodeEncodeError:
        return "lone_surrogate"
    except RecursionError:
        return "nested_too_deeply"
    return None
