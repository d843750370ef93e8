"""The loss: cross-entropy of each trained token, from logits or, in chunks, from the last hidden states.

A batch's loss is the sum. The trainer divides the sums of a step by the total weight of its trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tokenloom.errors import ConfigError

IGNORED = -100

CHUNK = 1024
"""Tokens whose logits a fused loss holds at once."""

_SCALES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Settings of models that change the logits after the output layer."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy with label smoothing and z-loss.

    The loss of a token is `(1 - s) * -log p[target] + s * mean(-log p) + z * log(Z)**2`, with the partition function Z
    (the z-loss of PaLM, https://arxiv.org/abs/2204.02311).

    Args:
        z_loss: z.
        label_smoothing: s.
    """

    z_loss: float = 0.0
    label_smoothing: float = 0.0

    def of_logits(
        self, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the loss of each token, times its weight, float32 [tokens].

        Args:
            logits: [tokens, vocabulary].
            targets: int64 [tokens], without ignored ones.
            weights: float32 [tokens].
        """
        logits = logits.float()
        losses = cross_entropy(logits, targets, reduction="none", label_smoothing=self.label_smoothing)
        if self.z_loss:
            losses = losses + self.z_loss * logits.logsumexp(-1).square()
        return losses if weights is None else losses * weights

    def of_hidden(
        self, hidden: torch.Tensor, head: nn.Linear, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what `of_logits` returns for `head(hidden)`, with the logits of `CHUNK` tokens in memory at a time.

        On CUDA, Liger's kernel computes it if liger_kernel is installed and tokens have no weights; it returns the sum
        alone, [1].

        Args:
            hidden: [tokens, width].
            head: the output layer.
        """
        if weights is None and hidden.is_cuda and (kernel := _liger()) is not None:
            options = {"reduction": "sum", "lse_square_scale": self.z_loss, "label_smoothing": self.label_smoothing}
            return kernel(**options)(head.weight, hidden, targets, head.bias)[None]

        def of_chunk(start: int) -> torch.Tensor:
            part = slice(start, start + CHUNK)
            logits = nn.functional.linear(hidden[part], head.weight, head.bias)
            return self.of_logits(logits, targets[part], None if weights is None else weights[part])

        parts: list[Any] = [
            # logits are computed again in the backward pass instead of kept
            checkpoint(of_chunk, start, use_reentrant=False, preserve_rng_state=False)
            for start in range(0, len(hidden) or 1, CHUNK)  # of no token, too, a loss with a gradient
        ]
        return torch.cat([hidden.new_zeros(0, dtype=torch.float32), *parts])


def trained_tokens(
    labels: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return where a batch is trained, bool [rows, length], and the target and weight of each of these tokens.

    The model's output at a position predicts the next token. Loaders give the first token of each document of a packed
    row the label -100, so no document predicts another.

    Args:
        labels: int64 [rows, length], not shifted, -100 where nothing is trained.
        weights: float32 [rows, length], or None.
    """
    # the label of a token is the target of the position before it
    where = nn.functional.pad(labels[:, 1:] != IGNORED, (0, 1))
    after = where.roll(1, 1)  # the last position is never trained, so nothing is rolled around
    return where, labels[after], None if weights is None else weights[after]


def total_weight(batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the weight of all trained tokens of a batch, float64 scalar: their number, if they have no weights."""
    weights = batch.get("loss_weights")
    trained = batch["labels"][:, 1:] != IGNORED
    return (trained if weights is None else weights[:, 1:] * trained).sum(dtype=torch.float64)


def router_weight(model: Any, loss: str) -> float:
    """Return the weight of the loss that balances a model's experts: 0 unless its config has `output_router_logits`.

    Raises:
        ConfigError: the model has such a loss, and `loss` is not cross_entropy, or its weight is not known.
    """
    if not getattr(getattr(model, "config", None), "output_router_logits", False):
        return 0.0
    weight = getattr(model, "router_aux_loss_coef", getattr(model, "aux_loss_coef", None))
    if loss != "cross_entropy" or weight is None:
        reason = f"with {loss}, " if weight is not None else "without router_aux_loss_coef, "
        remedy = "set loss: cross_entropy, or " if weight is not None else "set "
        message = f"training.loss: {reason}a model cannot balance its experts; {remedy}its output_router_logits: false"
        raise ConfigError.at("training.loss", message)
    return float(weight)


class FusedHead:
    """Lets a transformers model return the loss without computing the logits of the whole batch.

    While `targets` are set, the output layer passes the hidden states through, and the model's loss function computes
    the loss from them, inside the model's `forward`, as wrappers for several ranks need it.

    Attributes:
        losses: the loss of each token of the last batch, as `CrossEntropy.of_hidden` returns it, detached.

    Raises:
        ConfigError: the model has no linear output layer, or changes the logits after it.
    """

    def __init__(self, model: Any, loss: CrossEntropy):
        head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        settings: Any = getattr(model, "config", None)
        text = settings.get_text_config() if hasattr(settings, "get_text_config") else None
        scales = {name: getattr(settings, name, getattr(text, name, None)) for name in _SCALES_LOGITS}
        scaled = [name for name, value in scales.items() if value not in (None, 0, 1)]
        if getattr(type(head), "forward", None) is not nn.Linear.forward or scaled:
            reason = f"sets {scaled[0]}" if scaled else "has no linear output layer"
            message = f"training.loss: the model {reason}, so its loss cannot be fused; set loss: cross_entropy"
            raise ConfigError.at("training.loss", message)
        self._loss, self._head, self._targets = loss, head, None
        self.losses = torch.zeros(0)
        # on the instance: the layer's weights stay where wrappers and optimizers look for them
        self._compute = head.forward
        head.forward = self._hidden_or_logits  # pyright: ignore[reportAttributeAccessIssue]
        model.loss_function = self._sum

    def __call__(self, model: nn.Module, inputs: dict[str, Any], labels: torch.Tensor, weights: Any) -> torch.Tensor:
        self._targets = trained_tokens(labels, weights)
        try:
            return model(**inputs, labels=labels).loss
        finally:
            self._targets = None

    def _hidden_or_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._targets else self._compute(hidden)

    def _sum(self, logits: torch.Tensor, **_: Any) -> torch.Tensor:
        assert self._targets is not None
        where, targets, weights = self._targets
        losses = self._loss.of_hidden(logits[where], self._head, targets, weights)
        self.losses = losses.detach()
        return losses.sum()


def _liger() -> Any:
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return LigerFusedLinearCrossEntropyLoss
