"""The inputs of a transformers model in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def model_inputs(batch: Mapping[str, Any], device: torch.device | str | None = None) -> dict[str, Any]:
    """Return the inputs that causal language models of transformers take from a batch.

    These are `input_ids`, `labels` and `attention_mask`. For a packed batch, they are `input_ids`, `labels`,
    `position_ids` and `use_cache=False`: only without a mask and a cache do these models keep the documents of a row
    apart.

    Args:
        batch: a batch of a loader.
        device: device to move the tensors to; None: they stay where they are.

    Raises:
        ValueError: the batch has `loss_weights`, which these models would ignore, or consists of pairs.
    """
    if "loss_weights" in batch:
        raise ValueError(
            "models of transformers ignore loss_weights: remove them from the batch, and compute the loss from logits, "
            "labels and weights"
        )
    if "input_ids" not in batch:
        raise ValueError(
            f"a batch with {', '.join(sorted(batch))} has no input_ids: for pairs, pass the columns of one side"
        )
    packed = "position_ids" in batch
    names = ("input_ids", "position_ids" if packed else "attention_mask", "labels")
    inputs = {name: batch[name] if device is None else batch[name].to(device) for name in names}
    return {**inputs, "use_cache": False} if packed else inputs
