"""Reads rows of any map-style dataset; errors name the row that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Subset

NAMED = 8
"""Maximum number of rows that a message lists."""


def fetch(dataset: Any, rows: Sequence[int]) -> list[Any]:
    """Return the samples of some rows, through the dataset's `__getitems__` if it has one.

    Raises:
        Exception: the dataset's exception, with a note that names the row and that worker processes pass on.
        RuntimeError: the dataset raised StopIteration, which would end the epoch early.
    """
    if not hasattr(dataset, "__getitems__"):
        return [_sample(dataset, row) for row in rows]
    try:
        return dataset.__getitems__(list(rows))
    except Exception as error:
        failed = error
    for row in rows:  # raises for the row that failed
        _sample(dataset, row)
    raise with_note(failed, f"in {listed(rows)} of the dataset")


def with_note(error: Exception, note: str) -> Exception:
    """Return the error with a note; a StopIteration becomes a RuntimeError."""
    if isinstance(error, StopIteration):
        raised = RuntimeError("the dataset raised StopIteration")
        raised.__cause__, error = error, raised
    error.add_note(note)
    return error


def listed(rows: Sequence[int]) -> str:
    """Return "row 3" or "rows 3, 4 and 9 more" for a message."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows[:NAMED]))}{more}"


def _sample(dataset: Any, row: int) -> Any:
    try:
        return dataset[row]
    except Exception as error:
        while isinstance(dataset, Subset):
            dataset, row = dataset.dataset, dataset.indices[row]
        raised = with_note(error, f"in row {row} of the dataset")
    raise raised
