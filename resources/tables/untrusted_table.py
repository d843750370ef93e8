"""Reads tables from the bytes of Arrow IPC files, which can be damaged or crafted."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

MAX_WEIGHTLESS = 1 << 26
"""Largest length of an array whose values take no bytes, such as nulls: nothing else bounds it."""

_IN_THIS_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
"""Chunks are read in parallel; handing the columns of a small one to other threads takes longer than reading them."""


def read_table(data: pa.Buffer) -> pa.Table:
    """Read a file of at most one record batch, and validate all of it: buffers, offsets, UTF-8 and nesting.

    Raises:
        ValueError: the bytes are not such a file; the message is one line.
    """
    try:
        reader = pa.ipc.open_file(data, options=_IN_THIS_THREAD)
        if reader.num_record_batches > 1:  # a few bytes can name the same batch many times
            raise ValueError(f"has {reader.num_record_batches:,} record batches instead of one")
        schema = reader.schema
        if len({*schema.names}) < len(schema.names):
            raise ValueError(f"has several columns {Counter(schema.names).most_common(1)[0][0]!r}")
        _check_type_names(schema)
        table = reader.read_all()
        table.validate(full=True)
        _check_lengths(table)
    except (pa.ArrowException, OSError, ValueError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError((str(error) or type(error).__name__).splitlines()[0]) from error
    return table


def check_schema(schema: pa.Schema, table: pa.Table) -> None:
    """Check that a table has exactly these columns and types, without nulls.

    Raises:
        ValueError: it does not.
    """
    if not table.schema.equals(schema):
        raise ValueError(f"has other columns than expected: {', '.join(table.column_names)[:200]}")
    if any(column.null_count for column in table.columns):
        raise ValueError("has nulls")


def _check_type_names(schema: pa.Schema) -> None:
    """Read all types once: names that are not UTF-8 raise an error only when they are read."""
    for kind in schema.types:
        _ = str(kind)


def _check_lengths(table: pa.Table) -> None:
    """Check that no array of values without bytes is longer than `MAX_WEIGHTLESS`."""
    if not table.num_columns and table.num_rows:
        raise ValueError("has rows but no columns")
    arrays: list[pa.Array] = [chunk for column in table.columns for chunk in column.chunks]
    while arrays:
        array = arrays.pop()
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            arrays.append(array.storage)
            continue
        if pa.types.is_struct(kind) or pa.types.is_union(kind):
            arrays += [array.field(number) for number in range(kind.num_fields)]
        elif pa.types.is_dictionary(kind):
            arrays.append(array.dictionary)
        elif kind.num_fields:
            arrays.append(array.values)
        if len(array) > MAX_WEIGHTLESS and (pa.types.is_run_end_encoded(array.type) or not array.nbytes):
            raise ValueError(f"has {len(array):,} values of type {array.type} without bytes")
