"""The collator for modalities without a specific one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import default_collate

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.task_spec import TaskSpec


class DefaultCollator:
    """Stacks values of one shape, like torch's `default_collate`: the collator for modalities without a specific one.

    Tensors, arrays and numbers become tensors [rows, …], and texts become lists. Dicts and tuples keep their structure.
    Nothing is padded.

    Args:
        task_spec: accepted like in every collator, but not used.

    Raises:
        DataValidationError: when called with rows that cannot be stacked.
    """

    def __init__(self, task_spec: TaskSpec | None = None):
        pass

    def __call__(self, rows: Sequence[Any]) -> Any:
        if not rows:
            raise DataValidationError("the batch has no rows; collate at least one")
        try:
            return default_collate(list(rows))
        except (RuntimeError, TypeError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise DataValidationError(
                f"the default collator only stacks numbers of one shape: {reason}; choose or register a collator for "
                "these rows, or pad them with create_collate_fn"
            ) from error
