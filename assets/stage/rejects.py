"""Rejected rows: which, by which stage, and why; and records of rows that a stage drops or reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.ragged import Flags, flags_of

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
SESSION_REMEDIES = {
    "result_without_call": "add the call to the session, or remove the result",
    "unknown_event": "remove the event, or correct it",
    "unknown_item": "remove the item, if nothing answers it",
    "unknown_part": "remove the part, if nothing answers it",
}
"""What to do about parts of sessions that are not understood, by reject code."""
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
    return pa.concat_tables(tables).sort_by(ROW).combine_chunks() if tables else no_rejects()


@dataclass(frozen=True)
class RowProblem:
    """Rows that cannot be used, for one reason.

    Args:
        flags: bool [rows]: which rows.
        code: the reject code.
        field: the role or field with the problem.
        message: the reason in words.
        shown: what to quote, one value per row.
    """

    flags: Flags
    code: str
    field: str
    message: str
    shown: pa.Array


def is_blank(text: pa.Array) -> Flags:
    """Return bool [rows]: which texts are empty or white space; False for a null."""
    return flags_of(pc.equal(pc.utf8_trim_whitespace(text), ""))


def reject(rows: pa.Array, stage: str, problems: Sequence[RowProblem]) -> tuple[Flags, pa.Table]:
    """Reject each row for its first problem.

    Args:
        rows: int32 [rows], the rows' positions in the chunk.

    Returns:
        bool [rows], which rows are rejected, and the rejects.
    """
    rejected, rejects = np.zeros(len(rows), bool), []
    for problem in problems:
        first = problem.flags & ~rejected
        rejected |= first
        if first.any():
            bad = pa.array(first)
            excerpts = problem.shown.filter(bad)
            # `str` of a list with millions of items is cut here, before Arrow copies it.
            if not pa.types.is_string(excerpts.type):
                excerpts = [str(value)[: 2 * EXCERPT_CHARACTERS] for value in excerpts.to_pylist()]
            reason = problem.code, problem.field, problem.message
            rejects.append(reject_rows(rows.filter(bad), stage, *reason, excerpts))
    return rejected, join_rejects(rejects)
