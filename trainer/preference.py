"""Training on preferences, against a frozen copy of the initial model: DPO on pairs, KTO on rated answers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, logsigmoid, pad

from tokenloom.errors import ConfigError
from tokenloom.trainer.losses import IGNORED, trained_tokens
from tokenloom.trainer.token_trainer import TokenTrainer

SIDES = ("chosen", "rejected")


class PreferenceTrainer(TokenTrainer):
    """`TokenTrainer` for pairs (`loss: dpo`) and rated answers (`loss: kto`).

    The loss of a step is the sum over its pairs, or its rated answers, on all ranks and in all accumulated batches,
    divided by their number. The reference is a copy of the model as it is given, before a checkpoint is loaded; with
    LoRA, the model without its adapters.

    - DPO (https://arxiv.org/abs/2305.18290): `-log sigmoid(beta * (r(chosen) - r(rejected)))`, where r is the
      log-probability of an answer's trained tokens minus the reference's. `label_smoothing` is the share of pairs
      that are taken to be swapped.
    - KTO (https://arxiv.org/abs/2402.01306): `1 - sigmoid(beta * (r - z))` for desirable answers and
      `1 - sigmoid(beta * (z - r))` for others, where z is the mean r, at least 0, of each prompt with the answer of the
      row before it in the batch.
    """

    losses = ("dpo", "kto")

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any):
        super().__init__(model, *args, **kwargs)
        if self.train_loader.images:
            message = f"training.loss: {self.config.loss} does not train on rows with images; set loss: cross_entropy"
            raise ConfigError.at("training.loss", message)
        adapted = hasattr(model, "disable_adapter")
        self._reference: Any = None if adapted else deepcopy(self.model).eval().requires_grad_(False)  # pyright: ignore[reportOptionalMemberAccess]

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return `input_ids`, `attention_mask` and `labels`, [rows, length], of all chosen answers, then all rejected
        ones; for KTO, of each row, and its `label`."""
        if any(name.endswith("loss_weights") for name in batch):
            message = "training.loss: tokens with weights cannot be trained with dpo and kto; remove the weights"
            raise ConfigError.at("training.loss", message)
        names = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}
        if self.config.loss == "kto":
            return {name: batch[name] for name in (*names, "label")}
        width = max(batch[f"{side}_input_ids"].shape[1] for side in SIDES)

        def both(name: str, padding: int) -> torch.Tensor:
            sides = [batch[f"{side}_{name}"] for side in SIDES]
            return torch.cat([pad(side, (0, width - side.shape[1]), value=padding) for side in sides])

        return {name: both(name, padding) for name, padding in names.items()}

    def weight_of(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        return self._real(inputs).sum(dtype=torch.float64)

    def _real(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return which pairs or rated answers are no padding, bool."""
        trained = (inputs["labels"][:, 1:] != IGNORED).any(1)
        # chosen answers are the first half of the rows, rejected ones the second
        return torch.stack(trained.chunk(2)).any(0) if self.config.loss == "dpo" else trained

    def _loss_sum(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        losses, _ = self._losses_and_margins(model, inputs)
        self._row_losses = losses.detach()
        return losses.sum()

    def _losses_and_margins(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each pair or rated answer, float32, and its reward margin, above 0 where it is right."""
        beta, smoothing, real = self.config.beta, self.config.label_smoothing, self._real(inputs)
        rewards = self._rewards(model, inputs)
        if self.config.loss == "dpo":
            chosen, rejected = rewards.chunk(2)
            margins = beta * (chosen - rejected)
            losses = -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)
        else:
            with torch.no_grad():
                shuffled = self._rewards(model, mismatched(inputs, self.train_loader.dataset.dataset.max_length))  # pyright: ignore[reportAttributeAccessIssue]
            # padding rows have no trained token, and so a reward of 0
            base = shuffled.sum() / real.sum().clamp(min=1)
            if self.accelerator.num_processes > 1:
                base = self.accelerator.reduce(base, "mean")
            sign = 2 * inputs["label"].to(rewards.dtype) - 1
            margins = beta * sign * (rewards - base.clamp(min=0))  # pyright: ignore[reportAttributeAccessIssue]
            losses = 1 - margins.sigmoid()
        return losses * real, margins.detach()

    def _rewards(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the log-probability of each row's trained tokens minus the reference's, float32 [rows]."""
        own = log_probabilities(model, inputs)
        unwrapped: Any = self.accelerator.unwrap_model(model)  # pyright: ignore[reportArgumentType]
        base = contextlib.nullcontext() if self._reference is not None else unwrapped.disable_adapter()
        with torch.no_grad(), base:
            other = log_probabilities(self._reference or unwrapped, inputs)
        return own - other

    def _evaluated(self, inputs: dict[str, Any]) -> torch.Tensor:
        model: Any = self.model_wrapped
        losses, margins = self._losses_and_margins(model, inputs)
        real = self._real(inputs)
        return torch.stack([losses.sum(), real.sum(), ((margins > 0) & real).sum()]).double()

    def _metrics(self, sums: list[float]) -> dict[str, float]:
        loss, count, right = sums
        return {"loss": loss / count, "accuracy": right / count} if count else {}


def log_probabilities(model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Return the summed log-probability of each row's trained tokens, float32 [rows]."""
    where, targets, _ = trained_tokens(inputs["labels"])
    output: Any = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    losses = cross_entropy(output.logits[where].float(), targets, reduction="none")
    return -losses.new_zeros(len(where)).index_add(0, where.nonzero()[:, 0], losses)


def mismatched(inputs: dict[str, Any], max_length: int) -> dict[str, Any]:
    """Join each row's prompt with the answer of the row before it; the first row gets the last row's answer.

    Padding rows, which have no trained token and come last, stay without one.

    Args:
        max_length: longest row.
    """
    ids, mask, labels = inputs["input_ids"], inputs["attention_mask"], inputs["labels"]
    trained, places = labels != IGNORED, torch.arange(ids.shape[1], device=ids.device)
    real = trained[:, 1:].any(1)
    first, end = mask.argmax(1), (mask * (places + 1)).amax(1)
    begin = torch.where(real, trained.int().argmax(1), end)
    rows = torch.arange(len(ids), device=ids.device)
    # real rows come first: the modulus makes the last of them the first one's
    before = torch.where(real, (rows - 1) % real.sum().clamp(min=1), rows)
    prompts, lengths = begin - first, begin - first + end[before] - begin[before]
    # a long prompt with another row's long answer can exceed what the model takes
    width = min(max(int(lengths.max()), 1), max_length)
    offsets = torch.arange(width, device=ids.device)
    is_prompt, is_row = offsets < prompts[:, None], offsets < lengths[:, None]
    source = torch.where(is_prompt, rows[:, None], before[:, None])
    place = torch.where(is_prompt, first[:, None] + offsets, begin[before][:, None] + offsets - prompts[:, None])
    place = place.clamp(0, ids.shape[1] - 1)
    given = is_row & ~is_prompt
    return {
        "input_ids": torch.where(is_row, ids[source, place], 0),
        "attention_mask": is_row.to(mask.dtype),
        "labels": torch.where(given, labels[source, place], IGNORED),
    }
