"""Parses JSON records to rows: plain scalars to typed columns, other values to columns of JSON text.

A chunk of plain scalars is read by pyarrow in one pass. In other chunks each value's own text is cut out. If that fails
for a chunk, the records are parsed one by one: bad records are rejected, the others are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.json_layout import JsonLayout, split_entries
from tokenloom.assets.raw.formats.parsed_chunk import MAX_COLUMNS, ParsedChunk, check_columns, reject_records
from tokenloom.assets.raw.formats.record_boundaries import Bytes, is_solid, only, trimmed
from tokenloom.assets.raw.formats.text import NOT_UTF8
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.tables.json_text import (
    MAX_DEPTH,
    PARSED_DEPTH,
    TOO_DEEP,
    is_json,
    json_texts,
    read_json,
    which_deeper,
    without_dates,
)
from tokenloom.resources.tables.json_values import (
    LIST,
    NULL,
    OBJECT,
    has_long_integer,
    items_of,
    kinds_of,
    member_texts,
    members_of,
    object_slices,
    too_deep,
    typed,
)
from tokenloom.resources.tables.ragged import Ints, one_array, row_of, text_array, text_parts

MAX_REPEATED = 1 << 28
"""Most bytes of the fields around the rows of a chunk, counted once per row."""
_NOT_A_LIST = pa.scalar("0", pa.string())
"""JSON text of any value that is not a list."""


def explode(table: pa.Table, lists: Sequence[Sequence[str]], file: str) -> tuple[pa.Table, Ints, Ints]:
    """Return one row for each item of the innermost list.

    Args:
        lists: for each level, the fields that lead from a row to the list with the rows of the next level.
        file: its name, for messages.

    Returns:
        - A table of the items' fields, then the fields of the levels around them, which are named `outer.<name>` if an
          inner level has the same name. Items that are not objects are in a column with the name of the list.
        - int64 [rows], the record of each row.
        - int64, ascending: records without rows because the fields lead to something other than a list.

    Raises:
        SourceError: the fields around the rows take more than `MAX_REPEATED` bytes.
    """
    source, bad = np.arange(table.num_rows, dtype=np.int64), np.zeros(table.num_rows, bool)
    for keys in lists:
        texts, rest = _take_list(table, keys)
        kinds = kinds_of(texts)
        bad[source[(kinds != LIST) & (kinds != NULL)]] = True
        is_list = kinds == LIST
        lengths = np.zeros(len(texts), np.int64)
        lengths[is_list], items = items_of(texts.filter(pa.array(is_list)))
        parent = row_of(lengths)
        if (size := sum(int(_sizes(column) @ lengths) for column in rest.columns)) > MAX_REPEATED:
            raise SourceError(
                f"{file}: the fields around {'.'.join(keys)} take {size >> 20:,} MiB when each row repeats them, more "
                f"than the {MAX_REPEATED >> 20} MiB supported; remove the large ones"
            )
        inner = _as_table(items, keys[-1])
        outer = rest.take(pa.array(parent))
        for name, column in zip(outer.column_names, outer.columns, strict=True):
            inner = inner.append_column(name if name not in inner.column_names else f"outer.{name}", column)
        table, source = inner, source[parent]
    keep = ~bad[source]
    return (table if keep.all() else table.filter(pa.array(keep))), source[keep], np.flatnonzero(bad)


def _sizes(column: pa.ChunkedArray) -> Ints:
    """Return the bytes of each value of a column, int64 [rows]; 8 for those that are not text."""
    array = json_texts(column) if is_json(column.type) else one_array(column)
    if not pa.types.is_string(array.type):
        return np.full(len(array), 8)
    return np.diff(text_parts(array.fill_null("") if array.null_count else array)[0]).astype(np.int64)


def _take_list(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Array, pa.Table]:
    """Take the list at a path of fields out of each record. Return the lists as JSON texts, and the other columns."""
    first, *below = keys
    if first not in table.column_names:
        return pa.nulls(table.num_rows, pa.string()), table
    column, rest = table[first], table.drop_columns([first])
    if not is_json(column.type):
        return pc.if_else(one_array(column.is_valid()), _NOT_A_LIST, None), rest
    texts = json_texts(column)
    for key in below:
        members = _members_of_objects(texts)
        # where the path goes on, a value that is not an object is reported as is a value that is not a list
        unfit = ~np.isin(kinds_of(texts), (OBJECT, NULL))
        texts = pc.if_else(pa.array(unfit), _NOT_A_LIST, members.pop(key, pa.nulls(len(texts), pa.string())))
        for name, values in members.items():
            rest = rest.append_column(f"{first}.{name}", typed(values))
    return texts, rest


def _members_of_objects(texts: pa.Array) -> dict[str, pa.Array]:
    """Split objects into the JSON texts of their members, by name; values that are not objects give null."""
    is_object = kinds_of(texts) == OBJECT
    if is_object.all():
        return members_of(texts).columns()
    # the members have one row per object; other rows take null
    place = pa.array(np.cumsum(is_object) - 1, mask=~is_object)
    columns = members_of(texts.filter(pa.array(is_object))).columns()
    return {name: values.take(place) for name, values in columns.items()}


def _as_table(items: pa.Array, name: str) -> pa.Table:
    """Make a table of items: a column for each field of objects, and the column `name` for all other items."""
    columns = _members_of_objects(items)
    other = ~np.isin(kinds_of(items), (OBJECT, NULL))
    if other.any():
        alone = items.take(pa.array(np.arange(len(items)), mask=~other))
        columns[name] = pc.coalesce(columns[name], alone) if name in columns else alone
    if not columns:
        return pa.table({name: pa.nulls(len(items))})
    return pa.table({column: typed(texts) for column, texts in columns.items()})


OPEN, CLOSE = ord("{"), ord("}")
KEY, ITEMS = "key", "items"
"""Columns: an entry's key; the items of a record that is a list."""

_HEAD = 1 << 16
_SAMPLES, _SAMPLE, _MANY_NAMES = 128, 512, 100
_NAME = re.compile(rb'"([^"\\\n]*+)"\s*+:')


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
        SourceError: an element of an array or an entry of an object is not valid JSON, or there are too many columns.
    """
    solid = np.flatnonzero(is_solid(part, bounds))
    if not len(solid):
        return ParsedChunk.of(pa.table({}), solid)
    try:
        data, keys = _as_objects(part, bounds, solid, layout)
    except ValueError as error:
        raise SourceError(f"{name}: invalid JSON: {error}, after byte {start}") from error
    alone = layout.kind in ("lines", "values")
    if not alone and len(solid) < len(bounds) - 1:
        raise SourceError(f"{name}: invalid JSON: nothing between two commas, after byte {start}")
    rows, rejects = solid, []
    wrapped = layout.lists or keys is not None
    table = None
    if (wrapped or _are_objects(part, bounds, solid)) and not _is_hostile(part, bounds):
        table = _read_whole(data, layout.kind != "lines", len(solid), name)
    if table is None:
        table, keys, rows, rejects = _read_singly(part, bounds, solid, layout, columns, name, start)
    check_columns(table.num_columns, name, table.num_rows)
    if keys is not None:
        table = table.add_column(0, KEY if KEY not in table.column_names else f"_{KEY}", typed(keys))
    if layout.inner:
        table, source, bad = explode(table, layout.inner, name)
        if len(bad):
            path = ".".join(layout.inner[-1])
            message = f"a value that dataset.reader.root names, such as {path}, is not a list"
            rejects = [*rejects, reject_rows(rows[bad], "raw", "not_a_list", path, message, [""] * len(bad))]
        rows = rows[source]
    return ParsedChunk.of(table, rows, rejects)


def _are_objects(part: Bytes, bounds: Ints, solid: Ints) -> bool:
    starts, ends = trimmed(part, bounds)
    return bool((part[starts[solid]] == OPEN).all() and (part[ends[solid] - 1] == CLOSE).all())


def _is_hostile(part: Bytes, bounds: Ints) -> bool:
    """Return whether a record could be nested too deeply for a parser, or have too many fields."""
    if which_deeper(part, bounds, PARSED_DEPTH).any():
        return True
    # a record with more fields has at least these bytes, and a colon for each: most need no second look
    large = np.flatnonzero(np.diff(bounds) > MAX_COLUMNS * len('"k":1'))
    records = (part[bounds[record] : bounds[record + 1]].tobytes() for record in large.tolist())
    return any(record.count(b":") > MAX_COLUMNS and _has_many_fields(record) for record in records)


def _has_many_fields(record: bytes) -> bool:
    try:
        return len(members_of(record).names) > MAX_COLUMNS
    except (msgspec.DecodeError, ValueError, RecursionError):
        return True


def _as_objects(part: Bytes, bounds: Ints, solid: Ints, layout: JsonLayout) -> tuple[bytes, pa.Array | None]:
    """Return the records as consecutive JSON objects, lists wrapped, and the JSON texts of the keys of entries."""
    if layout.kind != "entries" and not layout.lists:
        return part.tobytes(), None
    data, limits = only(part, bounds, solid)
    if layout.kind != "entries":
        joined = pc.binary_join_element_wise(b'{"items":', _slices(data, limits[:-1], limits[1:]), b"}\n", b"")
        return joined.buffers()[2].to_pybytes(), None
    key_start, key_end, value_start = split_entries(data, limits)
    keys = _slices(data, key_start, key_end).cast(pa.string(), safe=False)
    values = pc.binary_join_element_wise(_slices(data, value_start, limits[1:]), b"\n", b"")
    return values.buffers()[2].to_pybytes(), keys


def _slices(data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Return the binary strings data[start:end] of ascending ranges that do not overlap."""
    # the bounds of gaps and ranges alternate; every second text is one of the ranges
    between = np.column_stack([starts, ends]).ravel()
    every = text_array(np.concatenate([[0], between, [len(data)]]), data).view(pa.binary())
    return every.take(pa.array(np.arange(len(starts)) * 2 + 1))


def _read_whole(data: bytes, multi_line: bool, expected: int, name: str) -> pa.Table | None:
    """Read records that are objects in one pass, or return None; raise SourceError for too many columns. Never pass it
    a bare `null`: that crashes pyarrow's reader."""
    nested = _starts_nested(data)
    # pyarrow's reader needs 0.2 ms for each name, and more with many rows: many are counted by a faster one first
    if not nested and _has_many_names(data):
        try:
            members = members_of(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if len(set(_NAME.findall(data))) > MAX_COLUMNS:
                return None
        else:
            check_columns(len(members.names), name, members.rows)
            nested = bool(np.isin(kinds_of(members.values), (LIST, OBJECT)).any())
    table = None if nested else _read_scalars(data, multi_line, expected)
    return _read_members(data, expected, name) if table is None else table


def _has_many_names(data: bytes) -> bool:
    """Return whether random samples of JSON contain many different names, at any depth."""
    positions = np.random.default_rng().integers(0, max(len(data) - _SAMPLE, 0) + 1, _SAMPLES)
    return len(set(_NAME.findall(b"\n".join(data[at : at + _SAMPLE] for at in positions.tolist())))) > _MANY_NAMES


def _starts_nested(data: bytes) -> bool:
    """Return whether the first record has a list or an object as a value. Only decides what is tried first."""
    try:
        first, _ = json.JSONDecoder().raw_decode(data[:_HEAD].decode(errors="replace").lstrip())
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and any(isinstance(value, dict | list) for value in first.values())


def _read_scalars(data: bytes, multi_line: bool, expected: int) -> pa.Table | None:
    """Read objects of plain scalars with pyarrow; return None if other values are among them.

    Strings that look like dates stay strings, and columns of floats with whole numbers are read again if some of these
    are written as integers.
    """
    try:
        table = read_json(data, multi_line)
        if any(map(pa.types.is_nested, table.schema.types)):
            return None
        schema = pa.schema([field.with_type(without_dates(field.type)) for field in table.schema])
        # pyarrow reads texts like 2024-02-29 as dates; read again as text, they stay as written
        if schema != table.schema:
            table = read_json(data, multi_line, schema).select(table.column_names)
        # the reader does not check that strings are UTF-8
        table.validate(full=True)
        whole = [name for name in table.column_names if _has_whole_float(table[name])]
        if table.num_rows != expected:
            return None
        for name in whole:
            table = table.set_column(table.column_names.index(name), name, typed(member_texts(data, name)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, msgspec.DecodeError):
        return None
    return table


def _has_whole_float(column: pa.ChunkedArray) -> bool:
    """Return whether a column of floats has a number that could be written as an integer."""
    return pa.types.is_float64(column.type) and bool(pc.any(pc.equal(pc.floor(column), column)).as_py())


def _read_members(data: bytes, expected: int, name: str) -> pa.Table | None:
    """Read objects by cutting out the text of each value; None if a record is not valid or too deep."""
    try:
        members = members_of(data)
        members.values.validate(full=True)
        check_columns(len(members.names), name, members.rows)
        table = _typed_table(members.columns(), members.rows)
    except (pa.ArrowInvalid, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    texts = [json_texts(column) for column in table.columns if is_json(column.type)]
    if members.rows != expected or any(too_deep(text, MAX_DEPTH).any() or has_long_integer(text) for text in texts):
        return None
    return table


def _typed_table(columns: Mapping[str, pa.Array], rows: int) -> pa.Table:
    if not columns:
        return pa.table({"": pa.nulls(rows)}).select([])
    return pa.table({name: typed(texts) for name, texts in columns.items()})


def _read_singly(
    part: Bytes, bounds: Ints, solid: Ints, layout: JsonLayout, columns: Sequence[str] | None, name: str, start: int
) -> tuple[pa.Table, pa.Array | None, Ints, list[pa.Table]]:
    """Reject the bad records of a chunk. Return the other rows, their keys as JSON, the record of each, and the
    rejects."""
    readable: list[tuple[int, str, dict[str, bytes]]] = []
    rejected: list[tuple[int, str, str, str]] = []

    def reject(row: int, code: str, message: str, excerpt: str) -> None:
        rejected.append((row, code, message, excerpt))

    used = columns if layout.kind in ("lines", "values") and not layout.inner else None
    for row in solid.tolist():
        record = part[bounds[row] : bounds[row + 1]].tobytes()
        key, value, problem = _value(record, layout)
        excerpt = record[:400].decode(errors="replace").strip()
        if problem in _UNREADABLE:
            reject(row, problem, _UNREADABLE[problem], excerpt)
        elif problem and layout.kind not in ("lines", "values"):
            at = start + int(bounds[row])
            raise SourceError(f"{name}: invalid JSON in the element at byte {at}, {excerpt[:60]!r}: {problem}")
        elif problem:
            reject(row, "invalid_json", problem, excerpt)
        elif not isinstance(value, dict):
            message = "expected an object" + (" under each key" if key else f", found {type(value).__name__}")
            reject(row, "not_an_object", message, excerpt)
        elif len(value) > MAX_COLUMNS:
            reject(row, "too_many_fields", f"an object with {len(value):,} fields, more than {MAX_COLUMNS:,}", excerpt)
        elif (code := _unreadable({n: item for n, item in value.items() if used is None or n in used})) is not None:
            reject(row, code, _UNREADABLE[code], excerpt)
        else:
            readable.append((row, key, _members(record, layout, used)))
    names = list(dict.fromkeys(name for _, _, members in readable for name in members))
    check_columns(len(names), name, len(readable))
    texts: dict[str, pa.Array] = {}
    for name in names:
        values = [members.get(name) for _, _, members in readable]
        texts[name] = pa.array([None if value == b"null" else value for value in values], pa.string())
    keys = pa.array([key for _, key, _ in readable], pa.string()) if layout.kind == "entries" else None
    rows = np.array([row for row, _, _ in readable], np.int64)
    return _typed_table(texts, len(readable)), keys, rows, reject_records(rejected)


def _value(record: bytes, layout: JsonLayout) -> tuple[str, Any, str]:
    """Return the JSON text of an entry's key, the value as `json.loads` reads it, and its problem.

    The key is "" for other layouts; lists are wrapped in an object. The problem is a code of `_UNREADABLE`, a message,
    or "".
    """
    try:
        text = record.decode()
        value = json.loads(f"{{{text}}}" if layout.kind == "entries" else text)
    except UnicodeDecodeError:
        return "", None, "invalid_utf8"
    except RecursionError:
        return "", None, "nested_too_deeply"
    except ValueError as error:
        return "", None, str(error)
    if layout.kind == "entries":
        ((key, value),) = value.items()
        return json.dumps(key), value, ""
    return "", {ITEMS: value} if layout.lists else value, ""


def _members(record: bytes, layout: JsonLayout, used: Sequence[str] | None) -> dict[str, bytes]:
    """Return the JSON of each member of a record that `_value` could read."""
    text = record.decode()
    if layout.kind == "entries":
        (value,) = object_slices(f"{{{text}}}").values()
        text = value.decode()
    if layout.lists:
        return {ITEMS: text.strip().encode()}
    return {name: value for name, value in object_slices(text).items() if used is None or name in used}


_UNREADABLE = {
    "invalid_utf8": NOT_UTF8,
    "lone_surrogate": "a string contains a lone surrogate",
    "nested_too_deeply": TOO_DEEP,
}


def _unreadable(value: dict[str, Any]) -> str | None:
    """Return why a JSON object cannot be stored, as a code of `_UNREADABLE`, or None."""
    try:
        # half of a surrogate pair is valid as an escape in JSON, but cannot be stored as UTF-8
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "lone_surrogate"
    except RecursionError:
        return "nested_too_deeply"
    return "nested_too_deeply" if any(_is_deeper(item, MAX_DEPTH) for item in value.values()) else None


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (not levels or any(_is_deeper(item, levels - 1) for item in inner))
