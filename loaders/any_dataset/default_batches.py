"""Batches of samples without a collate function: rows of tokens are padded, everything else is stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.loaders.collation.collate import create_collate_fn
from tokenloom.loaders.collation.collators.default import DefaultCollator
from tokenloom.loaders.collation.output_schema import OutputSchema
from tokenloom.loaders.collation.row_columns import column_names
from tokenloom.loaders.collation.row_padding import Side

_COLUMNS = OutputSchema.default()


@dataclass(frozen=True)
class DefaultBatches:
    """Pads dicts with `input_ids` to the longest row of the batch, and stacks other samples as torch does.

    Of a dict's columns, those in `OutputSchema.default` that are as long as its `input_ids` are padded, and the others
    are stacked.

    Args:
        pad_token_id: fills `input_ids`; `attention_mask` is 0 and `labels` are -100 there.
        padding_side: the side on which rows are padded.

    Raises:
        DataValidationError: when called with samples that cannot be stacked.
    """

    pad_token_id: int = 0
    padding_side: Side = "right"

    def __call__(self, samples: Sequence[Any]) -> Any:
        first, stacked = samples[0], DefaultCollator()
        ids = first.get("input_ids") if isinstance(first, Mapping) else None
        if not hasattr(ids, "__len__") or isinstance(ids, str) or getattr(ids, "ndim", 1) != 1:
            return stacked(samples)
        names = column_names(samples)
        lengths = _lengths(samples, "input_ids")
        padded = [name for name in names if name in _COLUMNS and _lengths(samples, name) == lengths]
        collate = create_collate_fn(self.pad_token_id, padding_side=self.padding_side)
        batch = collate([{name: row[name] for name in padded} for row in samples])
        others = [name for name in names if name not in padded]
        return batch | stacked([{name: row[name] for name in others} for row in samples]) if others else batch


def _lengths(rows: Sequence[Mapping[str, Any]], name: str) -> list[int] | None:
    """Return the length of each row's value, or None if the values are not lists."""
    try:
        return [len(row[name]) for row in rows]
    except TypeError:
        return None
