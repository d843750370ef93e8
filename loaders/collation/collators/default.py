"""The collator of whatever has none of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import default_collate

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.task_spec import TaskSpec


class DefaultCollator:
    """Stacks what is of one shape, as torch's `default_collate` does: the collator of modalities that have none.

    Tensors, arrays and numbers of the rows become tensors [rows, …]; texts become lists; dicts and tuples keep their
    structure. Nothing is padded.

    Args:
        task_spec: taken as every collator takes one; not used.

    Raises:
        DataValidationError: when called with rows that cannot be stacked.
    """

    def __init__(self, task_spec: TaskSpec | None = None):
        pass

    def __call__(self, rows: Sequence[Any]) -> Any:
        if not rows:
            raise DataValidationError("a batch of no rows cannot be collated; collate at least one row")
        try:
            return default_collate(list(rows))
        except (RuntimeError, TypeError, KeyError) as error:
            told = str(error).splitlines()[0]
            raise DataValidationError(
                f"the default collator only stacks numbers of one shape: {told}; name a collator for these rows, "
                "register one, or pad with create_collate_fn"
            ) from error
