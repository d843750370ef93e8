"""Rows set aside: which, by which stage, and why."""

from __future__ import annotations

from collections.abc import Sequence

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


def summarize(tables: Sequence[pa.Table], reasons: int = 3) -> str:
    """The most frequent codes among rejects, each with its count and one example, in one line."""
    rejects = pa.concat_tables(tables)
    counted = rejects.group_by(["code", "field"], use_threads=False).aggregate(
        [(ROW, "count"), ("message", "first"), ("excerpt", "first")]
    )
    lines = []
    for found in counted.sort_by([(f"{ROW}_count", "descending")]).slice(0, reasons).to_pylist():
        where = f" in {found['field']}" if found["field"] else ""
        example = f"{found['message_first']}; e.g. {found['excerpt_first'][:60]!r}"
        lines.append(f"{found[f'{ROW}_count']} × {found['code']}{where} ({example})")
    return ", ".join(lines)
