"""Rows with several texts: a row's position occurs once per text, and all counts of rows count it once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import list_parts

LOST = "texts_lost"
"""Counter: rejected or filtered texts of rows that keep another text."""


def count_rows(table: pa.Table) -> int:
    """Return the number of rows that a table of texts, in row order, has texts of."""
    return int(np.count_nonzero(first_of_row(table)))


def first_of_row(table: pa.Table) -> np.ndarray:
    """Return bool [texts]: whether each is the first of its row, in a table in row order."""
    rows = table[ROW].to_numpy()
    first = np.ones(len(rows), bool)
    first[1:] = rows[1:] != rows[:-1]
    return first


def counted_by_row(output: ChunkOutput, table: pa.Table) -> ChunkOutput:
    """Return the sequences of texts with counts of rows.

    A row is kept if one of its texts is. A row without texts is rejected if one was, for the first reason, else
    filtered.

    Args:
        output: the sequences, with counts of texts.
        table: the texts that they were made of.
    """
    if table.num_rows == (rows_in := count_rows(table)):
        return output
    kept = np.unique(list_parts(output.table["rows"])[1].to_numpy())
    texts_of_others = int(np.count_nonzero(~np.isin(table[ROW].to_numpy(), kept)))
    lost = output.filtered + output.rejects.num_rows - texts_of_others
    rejects = output.rejects.filter(pa.array(first_of_row(output.rejects)))
    rejects = rejects.filter(pa.array(~np.isin(rejects[ROW].to_numpy(), kept)))
    return replace(
        output,
        rows_in=rows_in,
        rows_out=len(kept),
        rejects=rejects,
        filtered=rows_in - len(kept) - rejects.num_rows,
        counters={**output.counters, LOST: lost},
    )
