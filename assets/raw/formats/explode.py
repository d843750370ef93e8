"""Turns lists within JSON records into rows: one row per item, with the fields around the list repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.errors import SourceError
from tokenloom.resources.tables.json_text import is_json, json_texts
from tokenloom.resources.tables.json_values import LIST, NULL, OBJECT, items_of, kinds_of, members_of, typed
from tokenloom.resources.tables.ragged import Ints, one_array, row_of, text_parts

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
    """Return the JSON texts of the list that the fields lead to, and the other columns."""
    first, *below = keys
    if first not in table.column_names:
        return pa.nulls(table.num_rows, pa.string()), table
    column, rest = table[first], table.drop_columns([first])
    if not is_json(column.type):
        return pc.if_else(one_array(column.is_valid()), _NOT_A_LIST, None), rest
    texts = json_texts(column)
    for key in below:
        members = _members(texts)
        unfit = ~np.isin(kinds_of(texts), (OBJECT, NULL))
        texts = pc.if_else(pa.array(unfit), _NOT_A_LIST, members.pop(key, pa.nulls(len(texts), pa.string())))
        for name, values in members.items():
            rest = rest.append_column(f"{first}.{name}", typed(values))
    return texts, rest


def _members(texts: pa.Array) -> dict[str, pa.Array]:
    """Return the JSON texts of the members of objects; null for other values."""
    is_object = kinds_of(texts) == OBJECT
    if is_object.all():
        return members_of(texts).columns()
    place = pa.array(np.cumsum(is_object) - 1, mask=~is_object)
    columns = members_of(texts.filter(pa.array(is_object))).columns()
    return {name: values.take(place) for name, values in columns.items()}


def _as_table(items: pa.Array, name: str) -> pa.Table:
    """Return the fields of objects as columns, and other items in a column of that name."""
    columns = _members(items)
    other = ~np.isin(kinds_of(items), (OBJECT, NULL))
    if other.any():
        alone = items.take(pa.array(np.arange(len(items)), mask=~other))
        columns[name] = pc.coalesce(columns[name], alone) if name in columns else alone
    if not columns:
        return pa.table({name: pa.nulls(len(items))})
    return pa.table({column: typed(texts) for column, texts in columns.items()})
