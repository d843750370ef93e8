"""Training: Hugging Face's `Trainer` with exact data. Needs the extra `train`; nothing else of tokenloom imports it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokenloom.errors import missing_package

if TYPE_CHECKING:
    from tokenloom.config.sections import LoraConfig, TrainingConfig
    from tokenloom.trainer.checkpoints import CheckpointManager
    from tokenloom.trainer.losses import CrossEntropy
    from tokenloom.trainer.preference import PreferenceTrainer
    from tokenloom.trainer.run import train
    from tokenloom.trainer.token_trainer import TokenTrainer

__all__ = [
    "CheckpointManager",
    "CrossEntropy",
    "LoraConfig",
    "PreferenceTrainer",
    "TokenTrainer",
    "TrainingConfig",
    "train",
]

_HOMES = {
    "CheckpointManager": "tokenloom.trainer.checkpoints",
    "CrossEntropy": "tokenloom.trainer.losses",
    "LoraConfig": "tokenloom.config.sections",
    "PreferenceTrainer": "tokenloom.trainer.preference",
    "TokenTrainer": "tokenloom.trainer.token_trainer",
    "TrainingConfig": "tokenloom.config.sections",
    "train": "tokenloom.trainer.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenloom.trainer' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tokenloom"):
            raise
        raise missing_package(error.name, "tokenloom.trainer") from None
