"""Ragged arrays: rows of unequal length, stored flat with offsets, as Arrow lists are; and tables of them.

Offsets are int64 [rows + 1], lengths int64 [rows]. No function here loops over rows in Python.

The stored bytes of a table are a function of its rows only once it is compact: Arrow stores slices with bytes of their
neighbours, the rest of a buffer of text, values of a dictionary that no row uses, and what is below a null.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SIDES = ("chosen", "rejected")


def sides(table: pa.Table) -> dict[str, pa.Table]:
    """Split a table of preference pairs into one table per side, keyed by side.

    Each has the side's columns without their prefix (`chosen_` or `rejected_`), and the columns that both sides share.
    A table without such columns is returned whole under the key "".
    """
    side_of = {name: side for name in table.column_names for side in SIDES if name.startswith(f"{side}_")}
    if not side_of:
        return {"": table}
    tables = {}
    for side in SIDES:
        names = [name for name in table.column_names if side_of.get(name, side) == side]
        tables[side] = table.select(names).rename_columns([name.removeprefix(f"{side}_") for name in names])
    return tables


Ints = npt.NDArray[np.int64]

_BLOCK = 1 << 18
"""Number of values that `ranges` counts up at once."""


def offsets_of(lengths: npt.NDArray[np.integer]) -> Ints:
    """Return offsets [rows + 1] for lengths [rows]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(starts: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> Ints:
    """Return the concatenated ranges [start, start + length), int64 [sum(lengths)]."""
    lengths = np.asarray(lengths, np.int64)
    offsets = offsets_of(lengths)
    index = np.repeat(np.asarray(starts, np.int64) - offsets[:-1], lengths)
    for start in range(0, len(index), _BLOCK):  # without a second array of this size
        part = index[start : start + _BLOCK]
        part += np.arange(start, start + len(part), dtype=np.int64)
    return index


def row_of(lengths: npt.NDArray[np.integer]) -> Ints:
    """Return the row of each flat item, int64 [sum(lengths)]."""
    return np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)


def sum_rows(values: npt.NDArray[Any], offsets: Ints) -> npt.NDArray[Any]:
    """Return the sum of `values` within each row, [rows]. Empty rows give 0."""
    totals = np.zeros(len(values) + 1, np.result_type(values.dtype, np.int64))
    np.cumsum(values, out=totals[1:])
    # a difference of running sums: exact for integers
    return totals[offsets[1:]] - totals[offsets[:-1]]


def list_parts(array: pa.Array | pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """Return offsets [rows + 1], starting at 0, and the flat values of a list array without nulls."""
    array = one_array(array)
    offsets = flat_numbers(array.offsets).astype(np.int64) if len(array) else np.zeros(1, np.int64)
    return offsets - offsets[0], array.values.slice(offsets[0], offsets[-1] - offsets[0])


def list_views(array: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return offsets int32 [rows + 1], starting at 0, and the flat numbers of a list array without nulls; both share
    its memory unless it is a slice."""
    array = one_array(array)
    offsets = flat_numbers(array.offsets) if len(array) else np.zeros(1, np.int32)
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets - np.int32(begin) if begin else offsets, flat_numbers(array.values.slice(begin, end - begin))


def list_array(offsets: npt.NDArray[np.integer], values: pa.Array | npt.NDArray[np.generic]) -> pa.ListArray:
    """Build an Arrow list array from offsets and flat values."""
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), values if isinstance(values, pa.Array) else pa.array(values)
    )


def text_parts(array: pa.Array | pa.ChunkedArray) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return byte offsets [rows + 1], starting at 0, and the UTF-8 bytes of a string array without nulls."""
    array = one_array(array)
    if not len(array):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    offsets = offsets.astype(np.int64)
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return offsets - offsets[0], values[offsets[0] : offsets[-1]]


def holds(array: pa.Array, text: bytes) -> bool:
    """Return whether a text occurs in the bytes of a string array without nulls, also across the bounds of strings."""
    data = text_parts(array)[1]  # `in` would need a copy of them, and no other thread could run
    at = np.flatnonzero(data[: max(len(data) - len(text) + 1, 0)] == text[0])
    for place, byte in enumerate(text[1:], 1):
        if not len(at):
            break
        # byte by byte, only where all bytes so far agree
        at = at[data[at + place] == byte]
    return len(at) > 0


def text_array(offsets: npt.NDArray[np.integer], data: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Build a string array from byte offsets and UTF-8 bytes. Offsets that split a character are not detected."""
    offset_buffer = pa.py_buffer(np.ascontiguousarray(offsets, np.int32))
    return pa.StringArray.from_buffers(len(offsets) - 1, offset_buffer, pa.py_buffer(np.ascontiguousarray(data)))


def flat_numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return the numbers of an array without nulls, sharing its memory. Unlike `Array.to_numpy`, imports no pandas."""
    return np.from_dlpack(array)


def one_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the array as one contiguous array."""
    if not isinstance(array, pa.ChunkedArray):
        return array
    if not array.num_chunks:
        return pa.array([], array.type)
    return array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)


Flags = npt.NDArray[np.bool_]


def flags_of(array: pa.Array | pa.ChunkedArray) -> Flags:
    """Return a boolean array as bool [rows], with null as False."""
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), bool)


def any_of(flags: Flags, lengths: Ints) -> Flags:
    """Return bool [rows]: which rows have a flagged item.

    Args:
        flags: bool [items].
        lengths: int64 [rows], the number of items of each row.
    """
    return sum_rows(flags, offsets_of(lengths)) > 0


def compact(table: pa.Table) -> pa.Table:
    """Return a table with the same rows and types, in which every column is one array of only the rows' values.

    Columns of types that Arrow cannot copy row by row, such as run-end encoded ones, stay as they are.
    """
    return pa.table([_compact(one_array(column)) for column in table.columns], table.schema)


def _compact(array: pa.Array) -> pa.Array:
    with suppress(pa.ArrowNotImplementedError):
        return _canonical(array.take(pa.array(np.arange(len(array)))))
    return array


def _canonical(array: pa.Array) -> pa.Array:
    """Return an array, as `take` gives it, without unused values of dictionaries, and with nulls below null structs."""
    kind: Any = array.type
    if not _holds(kind):
        return array
    if pa.types.is_dictionary(kind):
        return _used_values(array)
    if pa.types.is_struct(kind):
        parts = [_compact(part) for part in array.flatten()]  # these are null where the struct is
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
        return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, children=[_canonical(array.values)])
    return array


def _holds(kind: Any) -> bool:
    """Return whether values of a type are, or hold, dictionaries or structs that `_canonical` changes."""
    if pa.types.is_dictionary(kind) or pa.types.is_struct(kind):
        return True
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and _holds(kind.value_type)


def _used_values(array: Any) -> pa.Array:
    import pyarrow.compute as pc  # a loader, which needs none of it, starts sooner

    used = pc.unique(array.indices.drop_null())
    place = pc.index_in(array.indices, used, skip_nulls=True)
    values = array.dictionary.take(used)
    with suppress(pa.ArrowNotImplementedError):
        # a dictionary can have a value several times: equal rows must have equal bytes
        once = values.dictionary_encode()
        place, values = once.indices.take(place), once.dictionary
    return pa.DictionaryArray.from_arrays(place.cast(array.type.index_type), values, ordered=array.type.ordered)
