"""Reads the chunks of manifests of version 4: digests in hexadecimal text, no counters."""

from __future__ import annotations

from binascii import unhexlify

import numpy as np
import pyarrow as pa

from tokenloom.resources.store.manifest_chunks import DIGESTS, SCHEMA
from tokenloom.resources.tables.ragged import one_array, text_parts

_HEX = (*(name for name in DIGESTS if name != "engine"), "blocks")
_COLUMNS = [
    pa.field(field.name, pa.string() if field.name in _HEX else field.type)
    for field in SCHEMA
    if field.name not in ("counters", "engine")
]


def converted(table: pa.Table) -> pa.Table:
    """Return the chunks in the layout of today; their counters are null.

    Raises:
        ValueError: the columns are not those of version 4, or a digest is not hexadecimal.
    """
    if not table.schema.equals(pa.schema(_COLUMNS)):
        raise ValueError(f"its columns are {', '.join(table.column_names)[:200]}")
    columns = {name: one_array(table[name]) for name in table.column_names}
    columns |= {name: _decoded(columns[name]).cast(SCHEMA.field(name).type) for name in _HEX}
    columns |= {"counters": pa.nulls(len(table), pa.large_binary()), "engine": pa.array([b""] * len(table))}
    return pa.table([columns[field.name] for field in SCHEMA], SCHEMA)


def _decoded(column: pa.Array) -> pa.Array:
    offsets, characters = text_parts(column)
    if (offsets % 2).any():
        raise ValueError("has digests of an odd length")
    data = pa.py_buffer(unhexlify(characters.tobytes()))
    sizes = pa.py_buffer((offsets // 2).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(column), [column.buffers()[0], sizes, data])
