"""Rows in a stage: slices of chunks with large texts, the two sides of pairs, and rows with several texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables import sequence_schema
from tokenloom.resources.tables.ragged import Ints, list_parts, one_array, sides, text_parts

LABEL = sequence_schema.LABEL
"""Column with whether a completion is the desired one, bool."""

_SHARED = (ROW, "rows", MEDIA)

Compute = Callable[[pa.Table], ChunkOutput]


@dataclass(frozen=True)
class InPairs:
    """A function that computes each side of a table of pairs; see `in_pairs`. Picklable if `compute` is."""

    compute: Compute

    def __call__(self, table: pa.Table) -> ChunkOutput:
        tables = sides(table)
        if len(tables) == 1:
            return _with_label(self.compute(table), table)
        return _paired({side: self.compute(rows) for side, rows in tables.items()}, table.num_rows)


def in_pairs(compute: Compute) -> InPairs:
    """Return a function that runs `compute` on each side of a table of pairs.

    A pair is kept only if both sides are. A pair with a rejected side is rejected once, for the first reason. For a
    table without sides, the function returns the output of `compute` with the column `label` carried along.

    Args:
        compute: returns rows in input order, each at most once.
    """
    return InPairs(compute)


def _paired(outputs: dict[str, ChunkOutput], rows_in: int) -> ChunkOutput:
    rows = {side: _rows(output.table) for side, output in outputs.items()}
    chosen, rejected = rows.values()
    both = np.intersect1d(chosen, rejected, assume_unique=True)
    columns: dict[str, pa.Array] = {}
    for side, output in outputs.items():
        # Rows are in ascending order, so the place of each kept row is found by bisection.
        places = pa.array(np.searchsorted(rows[side], both))
        for name in output.table.column_names:
            array = one_array(output.table[name])
            column = name if name in _SHARED else f"{side}_{name}"
            columns[column] = array if len(array) == len(both) else array.take(places)
    # One reject a pair, although both sides can have one, so that counts stay counts of rows.
    rejects = join_rejects(_once([_with_side(output.rejects, side) for side, output in outputs.items()]))
    dropped = rows_in - len(both) - rejects.num_rows
    counts = [output.counters for output in outputs.values()]
    counters = {name: sum(side.get(name, 0) for side in counts) for name in {**counts[0], **counts[1]}}
    if "sequences" in counters:
        counters["sequences"] = len(both)
        for side, output in outputs.items():
            lost = np.where(np.isin(rows[side], both), 0, np.diff(list_parts(output.table["input_ids"])[0]))
            is_reject = np.isin(rows[side], rejects[ROW].to_numpy())
            counters["tokens_rejected"] += int(lost[is_reject].sum())
            counters["tokens_dropped"] += int(lost[~is_reject].sum())
    return ChunkOutput(
        pa.table(columns),
        rows_in,
        rejects,
        filtered=min(dropped, sum(output.filtered for output in outputs.values())),
        tokens=sum(len(list_parts(array)[1]) for name, array in columns.items() if name.endswith("_input_ids")),
        counters=counters,
        engine=max(output.engine for output in outputs.values()),
    )


def _with_side(rejects: pa.Table, side: str) -> pa.Table:
    field = pc.binary_join_element_wise(pa.scalar(side), one_array(rejects["field"]), "_")
    index = rejects.schema.get_field_index("field")
    return rejects.set_column(index, "field", pc.utf8_rtrim(field, "_"))


def _once(rejects: list[pa.Table]) -> list[pa.Table]:
    """Remove rejects of the second side whose row the first side rejects too."""
    first, second = rejects
    return [first, second.filter(pc.invert(pc.is_in(second[ROW], one_array(first[ROW]))))]


def _with_label(output: ChunkOutput, table: pa.Table) -> ChunkOutput:
    if LABEL not in table.column_names:
        return output
    indices = np.searchsorted(_rows(table), _rows(output.table))
    label = one_array(table[LABEL]).take(pa.array(indices))
    return replace(output, table=output.table.append_column(LABEL, label))


def _rows(table: pa.Table) -> Ints:
    rows = one_array(table[ROW]) if ROW in table.column_names else list_parts(table["rows"])[1]
    return rows.to_numpy().astype(np.int64)


LOST = "texts_lost"
"""Counter: rejected or filtered texts of rows that keep another text."""


def count_rows(table: pa.Table) -> int:
    """Count the rows in a table in which consecutive texts can be of the same row."""
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
    kept_rows = np.unique(list_parts(output.table["rows"])[1].to_numpy())
    texts_of_others = int(np.count_nonzero(~np.isin(table[ROW].to_numpy(), kept_rows)))
    # Texts lost from rows that keep another text are neither rejected nor filtered rows.
    lost = output.filtered + output.rejects.num_rows - texts_of_others
    rejects = output.rejects.filter(pa.array(first_of_row(output.rejects)))
    rejects = rejects.filter(pa.array(~np.isin(rejects[ROW].to_numpy(), kept_rows)))
    return replace(
        output,
        rows_in=rows_in,
        rows_out=len(kept_rows),
        rejects=rejects,
        filtered=rows_in - len(kept_rows) - rejects.num_rows,
        counters={**output.counters, LOST: lost},
    )


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
    """Yield the texts of whole rows, with about `SLICE_BYTES` each; a table without texts is one."""
    if "text" not in table.column_names:
        yield table
        return
    offsets = text_parts(table["text"])[0]
    if offsets[-1] - offsets[0] <= SLICE_BYTES:
        yield table
        return
    # A row goes to the slice in which its first text begins, so that none is divided.
    numbers = (offsets[:-1] - offsets[0]) // SLICE_BYTES
    starts = np.flatnonzero(first_of_row(table))
    starts = starts[np.diff(numbers[starts], prepend=-1) != 0]
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), table.num_rows], strict=True):
        yield table.slice(start, end - start).combine_chunks()
