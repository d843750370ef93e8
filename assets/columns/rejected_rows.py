"""Rejects rows that do not fit their canonical form, such as those with an empty answer, text or prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.source_expressions import Source
from tokenloom.assets.stage.forms import has_calls
from tokenloom.assets.stage.rejects import EXCERPT_CHARACTERS, join_rejects, reject_rows
from tokenloom.resources.tables.flags import Flags, any_of, flags_of
from tokenloom.resources.tables.nested_paths import list_values

EMPTY_ANSWER = "empty_answer"


@dataclass(frozen=True)
class Problem:
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


def empty_text(text: pa.Array, code: str, role: str, source: Source, shown: pa.Array) -> Problem:
    """Return the problem of rows whose text is empty or white space."""
    return Problem(is_blank(text), code, role, f"{source} is empty", shown)


def empty_answer(messages: pa.Array, role: str, message: str, shown: pa.Array) -> Problem:
    """Return the problem of conversations without an assistant message that has text or a tool call."""
    lengths, flat = list_values(messages)
    speaker, content = flat.flatten()[:2]
    answers = flags_of(pc.equal(speaker, "assistant"))
    blank = np.flatnonzero(answers & is_blank(content))
    answers[blank] = has_calls(flat.take(pa.array(blank)))
    return Problem(~any_of(answers, lengths), EMPTY_ANSWER, role, message, shown)


def empty_prompt(prompt: pa.Array, code: str, message: str, shown: pa.Array) -> Problem:
    """Return the problem of prompts without messages."""
    lengths, _ = list_values(prompt)
    return Problem(lengths == 0, code, "prompt", message, shown)


def is_blank(text: pa.Array) -> Flags:
    """Return bool [rows]: which texts are empty or white space; False for a null."""
    return flags_of(pc.equal(pc.utf8_trim_whitespace(text), ""))


def reject(rows: pa.Array, problems: Sequence[Problem]) -> tuple[Flags, pa.Table]:
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
            excerpts = _excerpts(problem.shown.filter(bad))
            rejects.append(
                reject_rows(rows.filter(bad), "columns", problem.code, problem.field, problem.message, excerpts)
            )
    return rejected, join_rejects(rejects)


def _excerpts(array: pa.Array) -> pa.Array | list[str]:
    if pa.types.is_string(array.type):
        return array
    return [str(value)[: 2 * EXCERPT_CHARACTERS] for value in array.to_pylist()]
