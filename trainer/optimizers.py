"""Builds optimizers by name, from torch and pytorch-optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tokenloom.config.training import TrainingConfig
from tokenloom.errors import ConfigError, did_you_mean, missing_package


def build_optimizer(config: TrainingConfig, model: nn.Module, decayed: set[str]) -> torch.optim.Optimizer:
    """Return the optimizer that a config names, over the trained parameters of a model.

    Args:
        decayed: names of the parameters that get weight decay.

    Raises:
        ConfigError: the optimizer has no such argument.
        ModuleNotFoundError: pytorch-optimizer is needed and not installed.
    """
    kind, options = _KINDS[config.optimizer](), {name: _tuples(value) for name, value in config.optimizer_args.items()}
    known = set(inspect.signature(kind).parameters) - {"params", "lr", "weight_decay", "kwargs"}
    if unknown := [name for name in options if name not in known]:
        name = f"training.optimizer_args.{unknown[0]}"
        message = f"{name}: not an argument of {config.optimizer}{did_you_mean(unknown[0], known)}"
        raise ConfigError.at(name, message)
    muon = config.optimizer == "muon"
    matrices = _matrices(model) if muon else set[int]()
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((name in decayed, id(parameter) in matrices), []).append(parameter)
    given: list[dict[str, Any]] = []
    for (decays, is_matrix), parameters in groups.items():
        group = {"params": parameters, "lr": config.learning_rate, "weight_decay": config.weight_decay * decays}
        given.append({**group, "use_muon": is_matrix} if muon else group)
    if muon:  # updates of the size of AdamW's, so that one learning rate fits both
        options = {"use_adjusted_lr": True, **options}
    return kind(given, **options)


def _matrices(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that Muon trains: matrices, but not those of embeddings and output layer."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # pyright: ignore[reportCallIssue]
    apart = [module for module in model.modules() if isinstance(module, nn.Embedding) or module is head]
    outside = {id(parameter) for module in apart for parameter in module.parameters()}
    return {id(parameter) for parameter in model.parameters() if parameter.ndim == 2 and id(parameter) not in outside}


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _library(name: str) -> Any:
    try:
        import pytorch_optimizer  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise missing_package(error.name or "pytorch_optimizer", f"training.optimizer {name.lower()}") from None
    return getattr(pytorch_optimizer, name)


def _sophia() -> Any:
    class Sophia(_library("SophiaH")):
        """Sophia-G (https://arxiv.org/abs/2305.14342): every `update_period` steps it asks `estimate` for the diagonal
        of the Gauss-Newton matrix, a tensor per parameter, in the order of the groups."""

        estimate: Callable[[], list[torch.Tensor]]

        def step(self, closure: Any = None) -> Any:
            due = self.param_groups[0].get("step", 0) % self.update_period == 0
            return super().step(closure, hessian=self.estimate() if due else None)

    return Sophia


_KINDS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: torch.optim.AdamW,
    "adafactor": lambda: torch.optim.Adafactor,
    "muon": lambda: _library("Muon"),
    "lion": lambda: _library("Lion"),
    "sophia": _sophia,
}
