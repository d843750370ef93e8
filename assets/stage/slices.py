"""Runs a stage's function on slices of a chunk whose texts are large, so that it takes less memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import join_rejects
from tokenloom.assets.stage.texts import first_of_row
from tokenloom.resources.tables.ragged import text_parts

SLICE_BYTES = 8 << 20
"""Text per slice in bytes; a slice of one row can have more."""


def in_slices(compute: Callable[[pa.Table], ChunkOutput], table: pa.Table) -> ChunkOutput:
    """Return the output of `compute`, computed slice by slice.

    Args:
        compute: returns the same for a row in any chunk.
        table: texts, in row order.
    """
    outputs = [compute(rows) for rows in _slices(table)]
    if len(outputs) == 1:
        return outputs[0]
    counters = Counter[str]()
    for output in outputs:
        counters.update(output.counters)
    return ChunkOutput(
        pa.concat_tables([output.table for output in outputs]).combine_chunks(),
        sum(output.rows_in for output in outputs),
        join_rejects([output.rejects for output in outputs]),
        sum(output.filtered for output in outputs),
        sum(output.counts()["rows_out"] for output in outputs),
        sum(output.tokens for output in outputs),
        dict(counters),
        max(output.engine for output in outputs),
    )


def _slices(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the texts of whole rows, with about `SLICE_BYTES` each."""
    offsets = text_parts(table["text"])[0]
    if offsets[-1] - offsets[0] <= SLICE_BYTES:
        yield table
        return
    numbers = (offsets[:-1] - offsets[0]) // SLICE_BYTES
    starts = np.flatnonzero(first_of_row(table))
    starts = starts[np.diff(numbers[starts], prepend=-1) != 0]
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), table.num_rows], strict=True):
        yield table.slice(start, end - start).combine_chunks()
