"""Batches of prompts for inference: no labels, and padded on the left, so that answers directly follow prompts."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tokenloom.loaders.collation.output_schema import OutputSchema
from tokenloom.loaders.collation.row_columns import RowColumn
from tokenloom.loaders.collation.row_padding import RowPadding
from tokenloom.loaders.reading.batch import Padding, to_tensors
from tokenloom.resources.tables.ragged import list_parts


def collate_prompts(
    prompts: pa.Table,
    pad_token_id: int,
    padding: Padding = "longest",
    padding_side: Literal["left", "right"] = "left",
    max_length: int | None = None,
) -> dict[str, Any]:
    """Return one batch of all prompts in a table of `PromptEngine.prompt_only`.

    Args:
        prompts: the table, with a list column `input_ids`.
        pad_token_id: fills `input_ids`.
        padding: `longest`: to the longest prompt; `max_length`; or an integer: to a multiple of it.
        padding_side: the side on which prompts are padded.
        max_length: the width for `padding="max_length"`; None: that of the longest prompt.

    Returns:
        int64 tensors `input_ids` and `attention_mask`, [rows, width].

    Raises:
        ValueError: a prompt is longer than `max_length`; prompts are never truncated.
    """
    offsets, ids = list_parts(prompts["input_ids"])
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=1))
    limit = max_length or longest
    if padding == "max_length" and longest > limit:
        raise ValueError(
            f"a prompt has {longest} tokens, more than max_length {limit}; prompts are never truncated, so raise "
            "max_length"
        )
    side = RowPadding(padding, padding_side, limit if padding == "max_length" else None)
    columns = {"input_ids": RowColumn(ids.to_numpy(), lengths)}
    return to_tensors(side.padded(columns, "input_ids", "attention_mask", OutputSchema.default(pad_token_id)))
