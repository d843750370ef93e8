"""Runs stages that process single texts on preference data: on each side of a pair in turn, keeping labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.resources.tables import sequence_schema
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, list_parts, one_array

LABEL = sequence_schema.LABEL
"""Column with whether a completion is the desired one, bool."""

_SHARED = (ROW, "rows")

Compute = Callable[[pa.Table], ChunkOutput]


@dataclass(frozen=True)
class InPairs:
    """A function that computes each side of a table of pairs; see `in_pairs`. Picklable if `compute` is."""

    compute: Compute

    def __call__(self, table: pa.Table) -> ChunkOutput:
        tables = sides(table)
        if len(tables) == 1:
            return _with_label(self.compute(table), table)
        return _joined({side: self.compute(rows) for side, rows in tables.items()}, table.num_rows)


def in_pairs(compute: Compute) -> InPairs:
    """Return a function that runs `compute` on each side of a table of pairs.

    A pair is kept only if both sides are. A pair with a rejected side is rejected once, for the first reason. For a
    table without sides, the function returns the output of `compute` with the column `label` carried along.

    Args:
        compute: returns rows in input order, each at most once.
    """
    return InPairs(compute)


def _joined(outputs: dict[str, ChunkOutput], rows_in: int) -> ChunkOutput:
    rows = {side: _rows(output.table) for side, output in outputs.items()}
    chosen, rejected = rows.values()
    both = np.intersect1d(chosen, rejected, assume_unique=True)
    columns: dict[str, pa.Array] = {}
    for side, output in outputs.items():
        kept = pa.array(np.searchsorted(rows[side], both))
        for name in output.table.column_names:
            array = one_array(output.table[name])
            column = name if name in _SHARED else f"{side}_{name}"
            columns[column] = array if len(array) == len(both) else array.take(kept)
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
    """Prefix the `field` of rejects with their side."""
    field = pc.binary_join_element_wise(pa.scalar(side), one_array(rejects["field"]), "_")
    index = rejects.schema.get_field_index("field")
    return rejects.set_column(index, "field", pc.utf8_rtrim(field, "_"))


def _once(rejects: list[pa.Table]) -> list[pa.Table]:
    """Remove from the second table the rows that the first one has."""
    first, second = rejects
    return [first, second.filter(pc.invert(pc.is_in(second[ROW], one_array(first[ROW]))))]


def _with_label(output: ChunkOutput, table: pa.Table) -> ChunkOutput:
    if LABEL not in table.column_names:
        return output
    indices = np.searchsorted(_rows(table), _rows(output.table))
    label = one_array(table[LABEL]).take(pa.array(indices))
    return replace(output, table=output.table.append_column(LABEL, label))


def _rows(table: pa.Table) -> Ints:
    """Return int64 [rows]: the position of each row."""
    rows = one_array(table[ROW]) if ROW in table.column_names else list_parts(table["rows"])[1]
    return rows.to_numpy().astype(np.int64)
