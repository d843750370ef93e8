"""Turns lists within records into rows: one row per item, with the fields around the list repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.ragged import Ints, one_array, row_of


def explode(table: pa.Table, lists: Sequence[Sequence[str]]) -> tuple[pa.Table, Ints]:
    """Return one row for each item of the innermost list.

    Args:
        lists: for each level, the fields that lead from a row to the list with the rows of the next level.

    Returns:
        A table of the items' fields, then the fields of the levels around them, which are named `outer.<name>` if an
        inner level has the same name; and int64 [rows], the record of each row.

    Raises:
        ValueError: the fields lead to something other than a list.
    """
    source = np.arange(table.num_rows, dtype=np.int64)
    for keys in lists:
        items, rest = _take_list(table, keys)
        lengths = np.asarray(pc.list_value_length(items).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
        parent = row_of(lengths)
        inner = _as_table(items.flatten(), keys[-1])
        outer = rest.take(pa.array(parent))
        for name, column in zip(outer.column_names, outer.columns, strict=True):
            inner = inner.append_column(name if name not in inner.column_names else f"outer.{name}", column)
        table, source = inner, source[parent]
    return table, source


def _take_list(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Array, pa.Table]:
    """Return the list column that the fields lead to, and the other columns; all null if the chunk has no such list."""
    first, *below = keys
    if first not in table.column_names:
        return pa.nulls(table.num_rows, pa.list_(pa.null())), table
    array = one_array(table[first])
    rest = table.drop_columns([first])
    for key in below:
        fields = dict(zip(array.type.names, array.flatten(), strict=True)) if pa.types.is_struct(array.type) else {}
        array = fields.pop(key, pa.nulls(len(array)))
        for name, column in fields.items():
            rest = rest.append_column(f"{first}.{name}", column)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        if not pa.types.is_null(array.type):
            raise ValueError(f"{'.'.join(keys)} in dataset.reader.root is not a list")
        array = pa.nulls(len(array), pa.list_(pa.null()))
    return array, rest


def _as_table(items: pa.Array, name: str) -> pa.Table:
    if pa.types.is_struct(items.type):
        return pa.Table.from_struct_array(items)
    return pa.table({name: items})
