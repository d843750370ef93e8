"""Tables whose stored bytes are a function of their rows, for rows that were sliced from a larger table.

Arrow stores slices with bytes of their neighbours: the rest of a buffer of text, values of a dictionary that no row
uses, and what is below a null.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.ragged import one_array


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
    """Return an array without unused values of dictionaries, and with nulls below null structs.

    Args:
        array: as `take` returns it.
    """
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
    """Return a dictionary array whose dictionary has each used value once, in the order of their first use."""
    used = pc.unique(array.indices.drop_null())
    place = pc.index_in(array.indices, used, skip_nulls=True)
    values = array.dictionary.take(used)
    with suppress(pa.ArrowNotImplementedError):
        once = values.dictionary_encode()
        place, values = once.indices.take(place), once.dictionary
    return pa.DictionaryArray.from_arrays(place.cast(array.type.index_type), values, ordered=array.type.ordered)
