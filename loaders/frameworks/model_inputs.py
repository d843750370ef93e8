"""What a model of transformers takes of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def model_inputs(batch: Mapping[str, Any], device: torch.device | str | None = None) -> dict[str, Any]:
    """What causal language models of transformers take of a batch: `input_ids`, `labels`, and `attention_mask`. Of a
    packed batch `position_ids` instead, and `use_cache` False: only without a mask and a cache do these models keep
    apart the documents of a row.

    Args:
        batch: of a loader.
        device: where tensors are moved to; None: they stay.

    Raises:
        ValueError: the batch has `loss_weights`, which they would leave out, or two sides.
    """
    if "loss_weights" in batch:
        raise ValueError(
            "models of transformers take no loss_weights: take them out of the batch first, and compute the loss from "
            "logits, labels and weights"
        )
    if "input_ids" not in batch:
        raise ValueError(
            f"a batch of {', '.join(sorted(batch))} has no input_ids: choose the side to give to the model"
        )
    packed = "position_ids" in batch
    names = ("input_ids", "position_ids" if packed else "attention_mask", "labels")
    inputs = {name: batch[name] if device is None else batch[name].to(device) for name in names}
    return {**inputs, "use_cache": False} if packed else inputs
