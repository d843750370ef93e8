"""Nested paths into the columns of a table, such as `instances[0].output` or `answers.text`.

`.field` selects a field of a struct, or of every struct in a list, giving the list of that field. `[0]` and `[-1]`
select an item of a list. If a column has exactly the path's text as its name, the path means that column. A name in
backticks is always taken literally.

Arrow gives every struct all fields that any row has: a field that is null can be null in the source, or one that only
other rows have. Items of lists, values of maps and JSON texts can be null in the source only, so they stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.json_text import is_json, json_column, json_texts, to_json_text
from tokenloom.resources.tables.json_values import (
    LIST,
    OBJECT,
    field_texts,
    item_texts,
    items_of,
    kinds_of,
    members_of,
    typed,
)
from tokenloom.resources.tables.ragged import Flags, Ints, any_of, flags_of, list_array, offsets_of, one_array, ranges

QUOTED = r"`(?:[^`]|``)*`(?!`)"
_INDEX = re.compile(r"\[(-?\d{1,9})\](?=[.\[]|$)")
_NAME = re.compile(rf"({QUOTED})(?=[.\[]|$)|((?:[^.\[]|\[(?!-?\d{{1,9}}\](?:[.\[]|$)))*)")
_NEEDS_QUOTES = re.compile(r"[`.\[\]{}=:]|^\s|\s\Z|^\Z")


@dataclass(frozen=True)
class Path:
    """A column and the steps into it: field names and list indices.

    `str(path)` quotes names in backticks where needed and parses back to the same path.
    """

    column: str
    steps: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        first, *rest = (self.column, *self.steps)
        shown = [f"[{step}]" if isinstance(step, int) else f".{quoted(step)}" for step in rest]
        return quoted(str(first)) + "".join(shown)


def quoted(name: str) -> str:
    """Return a name as it is written in a path: in backticks if it contains characters that are special in paths."""
    return f"`{name.replace('`', '``')}`" if _NEEDS_QUOTES.search(name) else name


def parse_path(text: str, columns: Collection[str] = ()) -> Path:
    """Parse a path. Every text is a valid path.

    Args:
        columns: names of existing columns. The path's column is the longest of them that is the whole text, or a prefix
            of it that ends where a step begins.
    """
    if text in columns:
        return Path(text)
    first, is_quoted, end = _name(text, 0)
    path = Path(first)
    while end < len(text):
        if index := _INDEX.match(text, end):
            path, end = Path(path.column, (*path.steps, int(index.group(1)))), index.end()
        else:
            name, _, end = _name(text, end + 1)
            path = Path(path.column, (*path.steps, name))
        # the longest column that the path begins with wins: names can have dots
        if not is_quoted and text[:end] in columns:
            path = Path(text[:end])
    return path


def _name(text: str, start: int) -> tuple[str, bool, int]:
    match = _NAME.match(text, start)
    assert match is not None  # the pattern matches the empty text
    if match.group(1) is not None:
        return match.group(1)[1:-1].replace("``", "`"), True, match.end()
    return match.group(2), False, match.end()


def evaluate(table: pa.Table, path: Path) -> pa.Array:
    """Return the values at a path, one per row.

    The value is null if anything along the path is null, an index is out of range, or the table has no such column or
    field. Lists of any layout are returned as `pa.list_`, maps as lists of {key, value}, dictionaries decoded. Values
    inside a JSON column are typed where that is exact, else a JSON column: see `json_values.typed`.
    """
    if path.column not in table.column_names:
        return pa.nulls(table.num_rows)
    values = plain(one_array(table[path.column]))
    if is_json(values.type) and path.steps:
        texts = json_texts(values)
        for step in path.steps:
            texts = item_texts(texts, step) if isinstance(step, int) else field_texts(texts, step)
        return typed(texts)
    for step in path.steps:
        if isinstance(step, str):
            values = plain(_field(values, step))
        elif pa.types.is_list(values.type):
            values = plain(item_at(values, np.full(len(values), step, np.int64)))
        else:
            values = pa.nulls(len(values))
    return values


def leads_somewhere(table: pa.Table, path: Path) -> bool:
    """Return whether a table has the column and fields of a path.

    A JSON column has the fields that any of its objects has. Null values are assumed to have any field.
    """
    index = table.schema.get_all_field_indices(path.column)
    if not index:
        return False
    kind = table.schema.field(index[0]).type
    if is_json(kind):
        return _json_leads_somewhere(json_texts(table.column(index[0])), path.steps)
    for step in path.steps:
        while pa.types.is_dictionary(kind) or (isinstance(step, str) and is_list(kind) and not pa.types.is_map(kind)):
            kind = kind.value_type
        if pa.types.is_null(kind):
            return True
        if isinstance(step, int) and is_list(kind) and not pa.types.is_map(kind):
            kind = kind.value_type
        elif isinstance(step, str) and pa.types.is_struct(kind) and kind.get_all_field_indices(step):
            kind = kind.field(kind.get_all_field_indices(step)[0]).type
        else:
            return pa.types.is_map(kind) or isinstance(kind, pa.BaseExtensionType)
    return True


def _json_leads_somewhere(texts: pa.Array, steps: Sequence[str | int]) -> bool:
    """Return whether any of the JSON texts has the fields and items that the steps lead to, or all are null."""
    for step in steps:
        texts = texts.drop_null() if isinstance(step, int) else _outside_lists(texts)
        if not len(texts):
            return True
        inside = texts.filter(pa.array(kinds_of(texts) == (LIST if isinstance(step, int) else OBJECT)))
        if not len(inside):
            return False
        if isinstance(step, int):
            texts = items_of(inside)[1]
        else:
            members = members_of(inside)
            if step not in members.names:
                return False
            texts = members.values.take(pa.array(members.places()[step]))
    return True


def _outside_lists(texts: pa.Array) -> pa.Array:
    """Flatten JSON texts: lists are replaced with their items, at any depth, and nulls are dropped."""
    texts = texts.drop_null()
    # level by level, all rows at once
    while (is_list := kinds_of(texts) == LIST).any():
        items = items_of(texts.filter(pa.array(is_list)))[1].drop_null()
        texts = pa.concat_arrays([texts.filter(pa.array(~is_list)), items])
    return texts


def plain(array: pa.Array) -> pa.Array:
    """Return the same values in Arrow's basic layouts: extension types other than JSON as their storage, dictionaries
    and run-end encoding decoded, strings as `pa.string`, lists and maps as `pa.list_`. Only the outermost type changes.
    """
    if isinstance(array, pa.ExtensionArray) and not is_json(array.type):
        return plain(array.storage)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(array))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if is_list(kind) and not pa.types.is_list(kind):
        starts, lengths, values = _list_parts(array)
        gathered = values.take(pa.array(ranges(starts, lengths)))
        missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool)
        return pa.ListArray.from_arrays(pa.array(offsets_of(lengths), pa.int32()), gathered, mask=pa.array(missing))
    return array


def without_nan(array: pa.Array) -> pa.Array:
    """Return values with null in place of NaN, which pandas writes for a missing value."""
    if not (pa.types.is_floating(array.type) or is_json(array.type)):
        return array
    is_nan = pc.equal(json_texts(array), "NaN") if is_json(array.type) else pc.is_nan(array)
    return array.take(pa.array(np.arange(len(array)), mask=flags_of(is_nan))) if is_nan.true_count else array


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list of any layout, or a map."""
    tests: Any = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
        pa.types.is_map,
    )
    return any(test(kind) for test in tests)


def _list_parts(array: Any) -> tuple[Ints, Ints, pa.Array]:
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts, lengths = (np.arange(len(array)) + array.offset) * size, np.full(len(array), size)
    else:
        offsets = np.asarray(array.offsets.to_numpy(zero_copy_only=False), np.int64)
        viewed = pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type)
        sizes = array.sizes.to_numpy(zero_copy_only=False) if viewed else np.diff(offsets)
        starts, lengths = offsets[: len(array)], np.asarray(sizes, np.int64)
    return starts.astype(np.int64), np.where(valid, lengths, 0), array.values


def list_values(array: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the lengths [rows] (0 for a null) and the flat values of a list array of any layout."""
    starts, lengths, values = _list_parts(array)
    # rows without gaps between them need no copy
    if len(starts) and (np.diff(starts) == lengths[:-1]).all():
        return lengths, values.slice(starts[0], lengths.sum())
    return lengths, values.take(pa.array(ranges(starts, lengths)))


def _field(array: pa.Array, name: str) -> pa.Array:
    if pa.types.is_struct(array.type):
        if array.type.get_field_index(name) >= 0 or len(array.type.get_all_field_indices(name)):
            return pc.struct_field(array, [array.type.get_all_field_indices(name)[0]])
    elif pa.types.is_list(array.type):
        lengths, values = list_values(array)
        inner = _field(plain(values), name)
        if not pa.types.is_null(inner.type):
            lists = list_array(offsets_of(lengths), inner)
            return pc.if_else(array.is_valid(), lists, pa.scalar(None, lists.type))
    return pa.nulls(len(array))


def item_at(array: pa.Array, index: Ints) -> pa.Array:
    """Return one item of each row's list, null if the index is out of range.

    Args:
        index: [rows]; negative values count from the end of the list.
    """
    starts, lengths, values = _list_parts(array)
    within = np.where(index < 0, index + lengths, index)
    outside = (within < 0) | (within >= lengths)
    return values.take(pa.array(np.where(outside, 0, starts + within), mask=outside))


Convert = Callable[[Any], Any]


def without_null_fields(array: pa.Array) -> list[Any]:
    """Return values as Python objects: structs without their null fields, maps as dictionaries, JSON in them read."""
    return _objects(array, _converted(array.type))


def with_null_fields(array: pa.Array) -> pa.ExtensionArray:
    """Return nested values as a JSON column, which holds the null fields of structs as `null`."""
    values = _objects(array, _converted(array.type, keeps=True))
    return json_column([None if value is None else to_json_text(value) for value in values])


def has_objects(kind: pa.DataType) -> bool:
    """Return whether values of a type contain structs or maps."""
    return _converted(kind) is not None


def null_fields(array: pa.Array, level: int = 0, ignored: Collection[str] = ()) -> Flags:
    """Return bool [rows]: which values contain a struct with a null field.

    Args:
        level: levels of structs whose own fields are not looked at, only what is inside of them.
        ignored: names of fields of these levels whose lists are not looked into.
    """
    array = plain(array)
    if pa.types.is_struct(array.type):
        has_null = np.zeros(len(array), bool)
        for field, values in zip(array.type, array.flatten(), strict=True):
            has_null |= flags_of(values.is_null()) if not level else False
            if has_objects(field.type) and not (level and field.name in ignored and is_list(field.type)):
                has_null |= null_fields(values, max(level - 1, 0), ignored)
        return has_null & flags_of(array.is_valid())
    if is_list(array.type) and has_objects(array.type):
        lengths, values = list_values(array)
        return any_of(null_fields(values, level, ignored), lengths)
    return np.zeros(len(array), bool)


def _objects(array: pa.Array, convert: Convert | None) -> list[Any]:
    values = array.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converted(kind: pa.DataType, keeps: bool = False) -> Convert | None:
    """Return the function that converts a value that is not null, as `to_pylist` gives it; None if nothing changes.
    `keeps`: whether null fields are kept."""
    if isinstance(kind, pa.BaseExtensionType):
        return None if is_json(kind) else _converted(kind.storage_type, keeps)
    if pa.types.is_struct(kind):
        inner = {field.name: json.loads if is_json(field.type) else _converted(field.type, keeps) for field in kind}
        inner = {name: convert for name, convert in inner.items() if convert is not None}
        return lambda fields: {
            name: inner[name](value) if name in inner and value is not None else value
            for name, value in fields.items()
            if keeps or value is not None
        }
    if pa.types.is_map(kind):
        of_value = _converted(kind.item_type, keeps) or (lambda value: value)
        return lambda pairs: {name: None if value is None else of_value(value) for name, value in pairs}
    if is_list(kind) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        of_item = _converted(kind.value_type, keeps)
        if of_item is None or not is_list(kind):
            return of_item
        return lambda items: [None if item is None else of_item(item) for item in items]
    return None
