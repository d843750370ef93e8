"""Rejected rows: which, by which stage, and why; and records of rows that a stage drops or reports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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


CONTAMINATED, OVERLAP = "contaminated", "overlap"
"""Codes of records of rows that contain an item of an evaluation: dropped ones, and ones that stay."""
DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"
"""Codes of records of rows that repeat an earlier one."""
ABANDONED, NO_CONTEXT = "abandoned_branch", "missing_context"
"""Codes of records of parts of sessions: branches that the conversation left, and answers to what is not there."""
RECORDS = pa.array([CONTAMINATED, OVERLAP, DUPLICATE, NEAR_DUPLICATE, ABANDONED, NO_CONTEXT])
"""Codes of records that are kept with the rejects, of rows that are not rejected: they are filtered, or stay."""


@cache
def no_rejects() -> pa.Table:
    """Return an empty table of rejects."""
    return REJECTS.empty_table()


def count_rejected(rejects: pa.Table) -> int:
    """Return the number of rejected rows in a table of rejects and records."""
    if not rejects.num_rows:
        return 0
    return rejects.num_rows - int(pc.sum(pc.is_in(rejects["code"], RECORDS)).as_py() or 0)


def fate(code: str) -> str:
    """Return what happened to a row with a reject or record of some code: `rejected`, `dropped` or `reported`."""
    return "reported" if code == OVERLAP else "dropped" if code in RECORDS.to_pylist() else "rejected"


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
