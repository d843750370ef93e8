"""Batches of prompts for inference: no labels, padded on the left, so that answers follow their prompts directly."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from tokenloom.loaders.batch import Padding, PaddingPolicy
from tokenloom.resources.ragged import list_parts, ranges


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
    policy = PaddingPolicy(pad_token_id, padding, padding_side, max_length or longest, packed=False)
    width = policy.width(longest)
    if longest > width:
        raise ValueError(f"a prompt of {longest} tokens is longer than max_length {width}; prompts are never cut")
    rows = len(lengths)
    begins = np.arange(rows) * width + (width - lengths if padding_side == "left" else 0)
    target = ranges(begins, lengths)
    input_ids = np.full((rows, width), pad_token_id, np.int64)
    attention_mask = np.zeros((rows, width), np.int64)
    input_ids.reshape(-1)[target] = ids.to_numpy()
    attention_mask.reshape(-1)[target] = 1
    return {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(attention_mask)}
