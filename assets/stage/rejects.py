"""Rejected rows: which, by which stage, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.remedies import explained

ROW = "_row"
"""Column with a row's position within its raw chunk, int32."""

EXCERPT_CHARACTERS = 200
"""Maximum length of an excerpt."""

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
    """Return an empty table of rejects."""
    return REJECTS.empty_table()


def reject_rows(
    rows: pa.Array | npt.NDArray[np.integer],
    stage: str,
    code: str,
    field: str,
    message: str,
    excerpts: pa.Array | Sequence[str],
) -> pa.Table:
    """Return the rejects table of rows that are rejected for one reason.

    Args:
        rows: positions of the rows within their raw chunk.
        stage: the stage that rejects them.
        code: the reason, for programs.
        field: column or field at fault, or "".
        message: the reason, for people.
        excerpts: the offending value of each row; long ones are shortened.
    """
    positions = pa.array(np.asarray(rows, np.int32)) if isinstance(rows, np.ndarray) else rows
    shown = pc.utf8_slice_codeunits(pa.array(excerpts, pa.string()).fill_null(""), 0, EXCERPT_CHARACTERS)
    constant = [pa.repeat(pa.scalar(value, pa.string()), len(positions)) for value in (stage, code, field, message)]
    return pa.Table.from_arrays([positions.cast(pa.int32()), *constant, shown.cast(pa.string())], schema=REJECTS)


def join_rejects(tables: Sequence[pa.Table]) -> pa.Table:
    """Return all rejects of a chunk, in row order."""
    if not tables:
        return no_rejects()
    return pa.concat_tables(tables).sort_by(ROW).combine_chunks()


def summarize(rejects: Sequence[tuple[pa.Table, Callable[[int], str]]], reasons: int = 3) -> str:
    """Return the most frequent codes among rejects in one line, each with its count, remedy and one example.

    Args:
        rejects: tables of rejects, each with a function that returns the place in the source of a row position.
        reasons: maximum number of codes.
    """
    numbered = [
        table.append_column("chunk", pa.repeat(pa.scalar(number, pa.int32()), table.num_rows))
        for number, (table, _) in enumerate(rejects)
    ]
    counted = pa.concat_tables(numbered).group_by(["stage", "code", "field"], use_threads=False)
    example = [(name, "first") for name in ("message", "excerpt", "chunk", ROW)]
    rows = counted.aggregate([(ROW, "count"), *example]).sort_by([(f"{ROW}_count", "descending")]).slice(0, reasons)
    lines = []
    for row in rows.to_pylist():
        where = f" in {row['field']}" if row["field"] else ""
        place = rejects[row["chunk_first"]][1](row[f"{ROW}_first"])
        message = explained(row["stage"], row["code"], row["message_first"])
        lines.append(
            f"{row[f'{ROW}_count']} × {row['code']}{where} ({message}; e.g. {place}: {row['excerpt_first'][:60]!r})"
        )
    return ", ".join(lines)
