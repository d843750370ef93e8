"""Fetches rows of any map-style dataset; an error says which row it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Subset

NAMED = 8
"""Rows that a message lists at most."""


def fetch(dataset: Any, rows: Sequence[int]) -> list[Any]:
    """The samples of some rows, by `__getitems__` where the dataset has it.

    Raises:
        Exception: what the dataset raises, with a note that names the row: also a worker process's message has it.
        RuntimeError: in place of a StopIteration, which would end the epoch early.
    """
    if not hasattr(dataset, "__getitems__"):
        return [_sample(dataset, row) for row in rows]
    try:
        return dataset.__getitems__(list(rows))
    except Exception as error:
        failed = error
    for row in rows:  # which one is it?
        _sample(dataset, row)
    raise noted(failed, f"in {told(rows)} of the dataset")


def noted(error: Exception, note: str) -> Exception:
    """The error, with a note; a StopIteration as a RuntimeError."""
    if isinstance(error, StopIteration):
        raised = RuntimeError("the dataset raised StopIteration")
        raised.__cause__, error = error, raised
    error.add_note(note)
    return error


def told(rows: Sequence[int]) -> str:
    """Names some rows."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows[:NAMED]))}{more}"


def _sample(dataset: Any, row: int) -> Any:
    try:
        return dataset[row]
    except Exception as error:
        while isinstance(dataset, Subset):
            dataset, row = dataset.dataset, dataset.indices[row]
        raised = noted(error, f"in row {row} of the dataset")
    raise raised
