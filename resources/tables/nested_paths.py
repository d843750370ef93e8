"""Nested paths into the columns of a table, such as `instances[0].output` or `answers.text`.

`.field` goes into structs, and through lists of structs to the list of that field; `[0]` and `[-1]` take an item of a
list. A column's exact name wins over this reading of it; a name in backticks is only ever a name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of, one_array, ranges

QUOTED = r"`(?:[^`]|``)*`(?!`)"
_INDEX = re.compile(r"\[(-?\d{1,9})\](?=[.\[]|$)")
_NAME = re.compile(rf"({QUOTED})(?=[.\[]|$)|((?:[^.\[]|\[(?!-?\d{{1,9}}\](?:[.\[]|$)))*)")
_NEEDS_QUOTES = re.compile(r"[`.\[\]{}=:]|^\s|\s\Z|^\Z")


@dataclass(frozen=True)
class Path:
    """A column and the steps into it: field names and list indices.

    `str(path)` is the path's text with backticks where a name needs them, and parses back to the same path.
    """

    column: str
    steps: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        first, *rest = (self.column, *self.steps)
        shown = [f"[{step}]" if isinstance(step, int) else f".{quoted(step)}" for step in rest]
        return quoted(str(first)) + "".join(shown)


def quoted(name: str) -> str:
    """A name as it stands in a path: in backticks where it holds a character that a path gives a meaning."""
    return f"`{name.replace('`', '``')}`" if _NEEDS_QUOTES.search(name) else name


def parse_path(text: str, columns: Collection[str] = ()) -> Path:
    """The path that a text means; any text means one.

    Args:
        columns: names of columns: the longest one that the text is, or begins with before a step, is the path's column.
    """
    if text in columns:
        return Path(text)
    first, is_quoted, end = _name(text, 0)
    found = Path(first)
    while end < len(text):
        if index := _INDEX.match(text, end):
            found, end = Path(found.column, (*found.steps, int(index.group(1)))), index.end()
        else:
            name, _, end = _name(text, end + 1)
            found = Path(found.column, (*found.steps, name))
        if not is_quoted and text[:end] in columns:
            found = Path(text[:end])
    return found


def _name(text: str, at: int) -> tuple[str, bool, int]:
    """The name that begins there, whether it is quoted, and where it ends."""
    match = _NAME.match(text, at)
    assert match is not None  # the pattern matches the empty text
    if match.group(1) is not None:
        return match.group(1)[1:-1].replace("``", "`"), True, match.end()
    return match.group(2), False, match.end()


def evaluate(table: pa.Table, path: Path) -> pa.Array:
    """The values that a path leads to, one a row.

    Null where anything on the way is null, an index lies outside of its list, or the table has no such column or
    field. Lists of any kind, and maps as lists of {key, value}, come out as `pa.list_`, dictionaries decoded.
    """
    if path.column not in table.column_names:
        return pa.nulls(table.num_rows)
    found = plain(one_array(table[path.column]))
    for step in path.steps:
        found = plain(_item(found, step) if isinstance(step, int) else _field(found, step))
    return found


def leads_somewhere(schema: pa.Schema, path: Path) -> bool:
    """Whether tables of a schema have the column and fields of a path; a type of nulls may have any."""
    index = schema.get_all_field_indices(path.column)
    if not index:
        return False
    kind = schema.field(index[0]).type
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


def plain(array: pa.Array) -> pa.Array:
    """The same values in Arrow's ordinary layout: storage of extensions, decoded dictionaries, `pa.list_`, `pa.string`.

    Only the outermost type changes.
    """
    if isinstance(array, pa.ExtensionArray):
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


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of any layout, or a map."""
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
    """Where each row's items begin in the values, and how many there are: 0 for a null."""
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
    """Lengths [rows], 0 for a null, and the flat values of a list array of any layout."""
    starts, lengths, values = _list_parts(array)
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


def _item(array: pa.Array, index: int) -> pa.Array:
    if not pa.types.is_list(array.type):
        return pa.nulls(len(array))
    return item_at(array, np.full(len(array), index, np.int64))


def item_at(array: pa.Array, index: Ints) -> pa.Array:
    """Of each row's list the item at its index, counted from the end where negative; null outside of the list."""
    starts, lengths, values = _list_parts(array)
    within = np.where(index < 0, index + lengths, index)
    outside = (within < 0) | (within >= lengths)
    return values.take(pa.array(np.where(outside, 0, starts + within), mask=outside))
