"""What a model of transformers takes of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def model_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What causal language models of transformers take of a batch: `input_ids`, `labels`, and `attention_mask`, or, of
    a packed one, `position_ids`, by which these models keep documents apart only where they are given no mask.

    Raises:
        ValueError: the batch has `loss_weights`, which they would leave out, or two sides.
    """
    if "loss_weights" in batch:
        raise ValueError(
            "models of transformers take no loss_weights: take them out of the batch first, and compute the loss from "
            "logits, labels and weights"
        )
    if "input_ids" not in batch:
        raise ValueError(f"a batch of {', '.join(sorted(batch))} has no input_ids: choose the side to give to the model")
    marks = "position_ids" if "position_ids" in batch else "attention_mask"
    return {name: batch[name] for name in ("input_ids", marks, "labels")}
