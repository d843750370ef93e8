"""Documents of sequences padded to a multiple of tokens (`length.document_multiple`), and without their padding again.

Padding is at the end of a document, is not trained, and is counted by the column `padding`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.resources.tables.ragged import Ints, list_array, list_views, offsets_of, ranges
from tokenloom.resources.tables.sequence_schema import (
    DOCUMENT_LENGTHS,
    INPUT_IDS,
    PADDING,
    PER_TOKEN,
    TOKEN_COLUMNS,
)


def rounded_up(lengths: Ints, multiple: int) -> Ints:
    """Return int64 lengths, each the next multiple."""
    return -(-lengths // multiple) * multiple


def with_padding(table: pa.Table, multiple: int, pad_token_id: int) -> pa.Table:
    """Return sequences whose documents are padded to a multiple of tokens, with the column `padding`.

    Args:
        table: sequences of one side, without padding.
        multiple: of tokens; a document can be one multiple long, or several.
        pad_token_id: fills `input_ids`; other columns with a value per token get 0.
    """
    documents, lengths = list_views(table[DOCUMENT_LENGTHS])
    wide = rounded_up(lengths.astype(np.int64), multiple)
    bounds = offsets_of(wide)
    own = ranges(bounds[:-1], lengths)

    def padded(name: str) -> pa.Array:
        values = list_views(table[name])[1]
        filled = np.full(bounds[-1], pad_token_id if name == INPUT_IDS else 0, values.dtype)
        filled[own] = values
        return list_array(bounds[documents], filled)

    columns = {name: padded(name) if _is_per_token(name) else table[name] for name in table.column_names}
    columns[DOCUMENT_LENGTHS] = list_array(documents, wide.astype(np.int32))
    return pa.table({**columns, PADDING: list_array(documents, (wide - lengths).astype(np.int32))})


def without_padding(table: pa.Table) -> pa.Table:
    """Return sequences of one side without the padding of documents; a table without the column `padding` as it is."""
    if PADDING not in table.column_names:
        return table
    (documents, lengths), padding = list_views(table[DOCUMENT_LENGTHS]), list_views(table[PADDING])[1]
    left = lengths - padding
    bounds, own = offsets_of(left), ranges(offsets_of(lengths)[:-1], left)
    columns: dict[str, Any] = {
        name: list_array(bounds[documents], list_views(table[name])[1][own]) if _is_per_token(name) else table[name]
        for name in table.column_names
        if name != PADDING
    }
    return pa.table({**columns, DOCUMENT_LENGTHS: list_array(documents, left)})


def _is_per_token(name: str) -> bool:
    return name in TOKEN_COLUMNS or name.startswith(PER_TOKEN)
