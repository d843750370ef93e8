"""Batches of prompts for inference: no labels, padded on the left, so that answers follow their prompts directly."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tokenloom.loaders.collation.batch import Padding
from tokenloom.loaders.collation.output_schema import OutputSchema
from tokenloom.loaders.collation.row_columns import RowColumn
from tokenloom.loaders.collation.row_padding import RowPadding
from tokenloom.loaders.token_loader import to_tensors
from tokenloom.resources.tables.ragged import list_parts


def collate_prompts(
    prompts: pa.Table,
    pad_token_id: int,
    padding: Padding = "longest",
    padding_side: Literal["left", "right"] = "left",
    max_length: int | None = None,
) -> dict[str, Any]:
    """One batch of all rows of a table that `PromptEngine.prompt_only` made.

    Args:
        padding: `longest`, a multiple, or `max_length`.
        max_length: the width for `max_length`.

    Returns:
        int64 tensors [rows, width] `input_ids` and `attention_mask`.

    Raises:
        ValueError: a prompt is longer than `max_length`; prompts are never cut.
    """
    offsets, ids = list_parts(prompts["input_ids"])
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=1))
    limit = max_length or longest
    if padding == "max_length" and longest > limit:
        raise ValueError(f"a prompt of {longest} tokens is longer than max_length {limit}; prompts are never cut")
    side = RowPadding(padding, padding_side, limit if padding == "max_length" else None)
    columns = {"input_ids": RowColumn(ids.to_numpy(), lengths)}
    return to_tensors(side.padded(columns, "input_ids", "attention_mask", OutputSchema.default(pad_token_id)))
