"""Settings of training that conflict with others are named, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.config import TrainingConfig

CONFLICTS: list[tuple[dict[str, Any], str]] = [
    ({"min_lr_ratio": 0.1}, "training.min_lr_ratio has no effect with scheduler: linear; set cosine or wsd"),
    ({"decay": 0.1}, "training.decay has no effect with scheduler: linear; set scheduler: wsd"),
    ({"beta": 0.1}, "training.beta has no effect with loss: cross_entropy; set dpo or kto"),
    ({"loss": "dpo", "z_loss": 0.1}, "training.z_loss has no effect with loss: dpo"),
    ({"loss": "kto", "label_smoothing": 0.1}, "training.label_smoothing has no effect with loss: kto"),
    ({"loss": "kto", "batch_size": 1}, "training.loss kto compares rows of a batch; set a batch_size of at least 2"),
    (
        {"strategy": "fsdp", "optimizer": "sophia"},
        "training.optimizer sophia cannot be sharded; set adamw, lion or muon, or strategy: ddp",
    ),
    (
        {"strategy": "fsdp", "loss": "dpo"},
        "training.strategy fsdp cannot shard the reference of dpo; set lora, or strategy: ddp",
    ),
    ({"early_stopping_patience": 2}, "training.early_stopping_patience needs evaluations; set eval_steps"),
    ({"eval_samples": 2}, "training.eval_samples needs evaluations; set eval_steps"),
    ({"steps": 3, "epochs": 2.0}, "training.epochs has no effect with steps; set one of them"),
    ({"batch_size": 2, "token_budget": 64}, "training.batch_size has no effect with token_budget; set one of them"),
]


@pytest.mark.parametrize(("settings", "message"), CONFLICTS)
def test_conflicts_are_named(settings: dict[str, Any], message: str) -> None:
    assert [" ".join(found) for found in TrainingConfig(**settings).contradictions()] == [message]


@pytest.mark.parametrize(
    "settings", [{}, {"strategy": "fsdp", "optimizer": "muon"}, {"strategy": "fsdp", "loss": "kto", "lora": {"r": 2}}]
)
def test_settings_without_a_conflict(settings: dict[str, Any]) -> None:
    assert not list(TrainingConfig(**settings).contradictions())
