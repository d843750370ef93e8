"""JSON records to rows, by pyarrow's reader.

Where it gives up on a chunk, the chunk's records are tried one by one, so that a bad record is set aside and the others
go on.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from tokenloom.assets.raw.formats.explode import explode
from tokenloom.assets.raw.formats.json_elements import split_entries
from tokenloom.assets.raw.formats.json_layout import JsonLayout
from tokenloom.assets.raw.formats.parsed import Parsed
from tokenloom.assets.raw.formats.records import Bytes, is_solid, trimmed
from tokenloom.assets.raw.formats.text import NOT_UTF8
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.tables.ragged import Ints, text_array

OPEN, CLOSE = ord("{"), ord("}")
DEEPEST = 32
"""Levels of lists and objects that a row may have; stored tables hold little more."""
_NULL_ITEM = re.compile(rb"[\[,]\s*null")
KEY, VALUE, ITEMS = "key", "value", "items"
"""Columns: an entry's key, and on the way its value; the items of a record that is a list."""

Records = tuple[pa.Table, Ints, list[pa.Table]]
"""Rows, the record of each, and rejects."""


def parse_json(
    part: Bytes, bounds: Ints, layout: JsonLayout, columns: Sequence[str] | None, name: str, start: int
) -> Parsed:
    """JSON records to rows; blank records are no rows.

    Args:
        bounds: int64 [records + 1] into `part`.
        columns: those that matter; what others hold rejects no row.
        start: bytes of the file before the chunk, for messages.

    Raises:
        SourceError: an element of an array, or an entry of an object, is no JSON.
    """
    solid = np.flatnonzero(is_solid(part, bounds))
    if not len(solid):
        return Parsed.of(pa.table({}), solid)
    try:
        data = _as_objects(part, bounds, solid, layout)
    except ValueError as error:
        raise SourceError(f"{name}: invalid JSON: {error}, behind byte {start}") from error
    wrapped = layout.lists or layout.kind == "entries"
    if layout.kind != "lines" and len(solid) < len(bounds) - 1:
        raise SourceError(f"{name}: invalid JSON: nothing stands between two commas, behind byte {start}")
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
    return Parsed.of(table, rows, rejects)


def _are_objects(part: Bytes, bounds: Ints, solid: Ints) -> bool:
    """Whether every record begins and ends as an object does."""
    begins, ends = trimmed(part, bounds)
    return bool((part[begins[solid]] == OPEN).all() and (part[ends[solid] - 1] == CLOSE).all())


def _as_objects(part: Bytes, bounds: Ints, solid: Ints, layout: JsonLayout) -> bytes:
    """The records as JSON objects, one after the other: lists and entries wrapped."""
    if layout.kind != "entries" and not layout.lists:
        return part.tobytes()
    if layout.kind == "entries":
        kept = part if len(solid) == len(bounds) - 1 else None
        data, limits = (part, bounds) if kept is not None else _only(part, bounds, solid)
        key, behind, value = split_entries(data, limits)
        keys, values = _slices(data, key, behind), _slices(data, value, limits[1:])
        joined = pc.binary_join_element_wise(b'{"key":', keys, b',"value":', values, b"}\n", b"")
    else:
        data, limits = _only(part, bounds, solid)
        joined = pc.binary_join_element_wise(b'{"items":', _slices(data, limits[:-1], limits[1:]), b"}\n", b"")
    return joined.buffers()[2].to_pybytes()


def _only(part: Bytes, bounds: Ints, records: Ints) -> tuple[Bytes, Ints]:
    """The bytes and bounds of some of the records."""
    if len(records) == len(bounds) - 1:
        return part, bounds
    kept = text_array(bounds, part).view(pa.binary()).take(pa.array(records))
    limits = np.concatenate([[0], np.cumsum(np.diff(bounds)[records])])
    return np.frombuffer(kept.buffers()[2], np.uint8)[: limits[-1]], limits


def _slices(data: Bytes, begins: Ints, ends: Ints) -> pa.Array:
    """Binary strings data[begin:end]; those must follow each other."""
    between = np.column_stack([begins, ends]).ravel()
    every = text_array(np.concatenate([[0], between, [len(data)]]), data).view(pa.binary())
    return every.take(pa.array(np.arange(len(begins)) * 2 + 1))


def _read_whole(data: bytes, layout: JsonLayout, expected: int) -> pa.Table | None:
    """One pass of pyarrow's reader over records that are objects, or None where that does not give a row for each.

    A bare `null` among them would crash the reader.
    """
    multi_line = layout.kind != "lines"
    try:
        table = _read_json(data, multi_line)
        table.validate(full=True)
        too_deep = any(_depth(kind) > DEEPEST for kind in table.schema.types)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, RecursionError):
        return None
    return table if table.num_rows == expected and not too_deep else None


def _depth(kind: pa.DataType) -> int:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return 1 + max(map(_depth, inner), default=0)


def _read_json(data: bytes, multi_line: bool) -> pa.Table:
    """One pass of pyarrow's reader, or two where the first one only tells the types.

    Strings that look like dates stay strings; and a null in a list, before an item tells the type, would move the
    items behind it.
    """
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = arrow_json.ParseOptions(newlines_in_values=multi_line)
    table = arrow_json.read_json(pa.BufferReader(data), read, parse)
    schema = pa.schema([field.with_type(_undated(field.type)) for field in table.schema])
    if schema != table.schema or (any(map(_holds_list, schema.types)) and b"null" in data and _NULL_ITEM.search(data)):
        parse = arrow_json.ParseOptions(newlines_in_values=multi_line, explicit_schema=schema)
        table = arrow_json.read_json(pa.BufferReader(data), read, parse).select(table.column_names)
    return table


def _holds_list(kind: pa.DataType) -> bool:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return pa.types.is_list(kind) or any(map(_holds_list, inner))


def _undated(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(pa.string() if pa.types.is_null(kind.value_type) else _undated(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_undated(field.type)) for field in kind])
    return kind


def _unpack_entries(table: pa.Table, rows: Ints, rejects: list[pa.Table]) -> Records:
    """The fields of each entry's value as columns, behind its key."""
    values = table[VALUE] if VALUE in table.column_names else pa.chunked_array([pa.nulls(table.num_rows)])
    found = values.is_valid() if pa.types.is_struct(values.type) else pa.chunked_array([[False] * table.num_rows])
    absent = ~np.asarray(found.to_numpy(), bool)
    if absent.any():
        shown = [str(value)[:400] for value in table.filter(pa.array(absent)).to_pylist()]
        message = "expected an object under each key"
        rejects.append(reject_rows(rows[absent], "raw", "not_an_object", "", message, shown))
        table, rows = table.filter(found), rows[~absent]
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
    """The slow path for a chunk that holds a bad record: set that aside, then read the others in one pass."""
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
            wanted = columns if layout.kind == "lines" and not layout.inner else None
            kept_fields = {field: item for field, item in value.items() if wanted is None or field in wanted}
            if (code := _unreadable(kept_fields)) is not None:
                reject(row, code, "", _UNREADABLE[code], excerpt)
            else:
                values.append((row, kept_fields))
    found: dict[tuple[str, ...], Counter[str]] = {}
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
            reject(row, "wrong_type", "".join(odd[0]).lstrip("."), message, json.dumps(value, ensure_ascii=False))
    text = b"\n".join(json.dumps(value, ensure_ascii=False).encode() for _, value in kept)
    try:
        table = _read_json(text, multi_line=False) if kept else pa.table({})
    except pa.ArrowInvalid as error:
        raise SourceError(f"{name}: {str(error).splitlines()[0]}, behind byte {start}") from error
    return table, np.array([row for row, _ in kept], np.int64), rejects


def _value(record: bytes, layout: JsonLayout) -> tuple[Any, str]:
    """A record's value as the layout wraps it, and what is wrong with it: a code of `_UNREADABLE`, words, or ""."""
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
    "lone_surrogate": "a string holds half of a surrogate pair",
    "nested_too_deeply": "lists and objects nest too deeply",
}


def _unreadable(value: Any) -> str | None:
    """Why Arrow could not read a JSON value, as a code of `_UNREADABLE`, or None."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
        if any(len(path) > DEEPEST for path, _ in _kinds(value)):
            return "nested_too_deeply"
    except UnicodeEncodeError:
        return "lone_surrogate"
    except RecursionError:
        return "nested_too_deeply"
    return None


def _kinds(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, kind) of everything in a JSON value but nulls; a path's steps are `.field` and `[]`."""
    if isinstance(value, dict):
        yield path, "object"
        for key, item in value.items():
            yield from _kinds(item, (*path, f".{key}"))
    elif isinstance(value, list):
        yield path, "list"
        for item in value:
            yield from _kinds(item, (*path, "[]"))
    elif value is not None:
        yield path, "boolean" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
