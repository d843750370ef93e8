"""Rows set aside: which, by which stage, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROW = "_row"
"""Name of the column that holds a row's position within its raw chunk, int32."""

EXCERPT_CHARACTERS = 200

REJECTS = pa.schema(
    [
        (ROW, pa.int32()),
        ("stage", pa.string()),
        ("code", pa.string()),
        ("field", pa.string()),
        ("message", pa.string()),
        ("excerpt", pa.string()),
    ]
)


def no_rejects() -> pa.Table:
    return REJECTS.empty_table()


def reject_rows(
    rows: pa.Array | npt.NDArray[np.integer],
    stage: str,
    code: str,
    field: str,
    message: str,
    excerpts: pa.Array | Sequence[str],
) -> pa.Table:
    """A rejects table for rows set aside for one reason; `excerpts` shows what was found in each."""
    positions = pa.array(np.asarray(rows, np.int32)) if isinstance(rows, np.ndarray) else rows
    shown = pc.utf8_slice_codeunits(pa.array(excerpts, pa.string()).fill_null(""), 0, EXCERPT_CHARACTERS)
    constant = [pa.repeat(pa.scalar(value, pa.string()), len(positions)) for value in (stage, code, field, message)]
    return pa.Table.from_arrays([positions.cast(pa.int32()), *constant, shown.cast(pa.string())], schema=REJECTS)


def join_rejects(tables: Sequence[pa.Table]) -> pa.Table:
    """All rejects of a chunk, in row order."""
    if not tables:
        return no_rejects()
    return pa.concat_tables(tables).sort_by(ROW).combine_chunks()


def summarize(found: Sequence[tuple[pa.Table, Callable[[int], str]]], reasons: int = 3) -> str:
    """The most frequent codes among rejects, each with its count and one example, in one line.

    Args:
        found: tables of rejects, each with what tells where the row at a position stands.
    """
    numbered = [
        table.append_column("chunk", pa.repeat(pa.scalar(number, pa.int32()), table.num_rows))
        for number, (table, _) in enumerate(found)
    ]
    counted = pa.concat_tables(numbered).group_by(["code", "field"], use_threads=False)
    example = [(name, "first") for name in ("message", "excerpt", "chunk", ROW)]
    rows = counted.aggregate([(ROW, "count"), *example]).sort_by([(f"{ROW}_count", "descending")]).slice(0, reasons)
    lines = []
    for row in rows.to_pylist():
        where = f" in {row['field']}" if row["field"] else ""
        place = found[row["chunk_first"]][1](row[f"{ROW}_first"])
        lines.append(
            f"{row[f'{ROW}_count']} × {row['code']}{where} ({row['message_first']}; e.g. {place}: "
            f"{row['excerpt_first'][:60]!r})"
        )
    return ", ".join(lines)
