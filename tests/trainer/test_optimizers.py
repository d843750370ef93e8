"""Each optimizer and scheduler goes on after a checkpoint as if there had been none; schedules have their formulas."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from support.soak import machine
from support.tiny_training import built, tiny_model, trainer_on
from tokenloom.errors import ConfigError
from tokenloom.loaders import TokenDataset, open_dataset
from tokenloom.trainer import TokenTrainer
from tokenloom.trainer.log import read_log

pytestmark = machine("trainer")

OPTIMIZERS, SCHEDULERS = ("adamw", "adafactor", "muon", "lion", "sophia"), ("linear", "cosine", "wsd", "constant")
STEPS, WARMUP = 8, 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> TokenDataset:
    folder = tmp_path_factory.mktemp("optimizers")
    built(folder, "weighted", tokenizer_folder)
    return open_dataset("weighted", store=folder / "store")


def model_of(trainer: TokenTrainer) -> torch.nn.Module:
    assert trainer.model is not None
    return trainer.model


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [*((name, "wsd") for name in OPTIMIZERS), *(("adamw", name) for name in SCHEDULERS if name != "wsd")],
)
def test_a_resumed_run_has_the_same_weights(
    dataset: TokenDataset, tmp_path: Path, optimizer: str, scheduler: str
) -> None:
    options = {"optimizer": optimizer, "scheduler": scheduler, "steps": STEPS, "warmup": WARMUP, "save_steps": 3}
    whole = trainer_on(dataset, tmp_path / "whole", **options)
    whole.train()
    trainer_on(dataset, tmp_path / "first", **options).train()  # a trainer seeds the random generators
    later = trainer_on(dataset, tmp_path / "first", tiny_model(dataset, seed=5), **options)
    later.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-3"))
    start, trained, again = (each.state_dict() for each in (tiny_model(dataset), model_of(whole), model_of(later)))
    assert all(torch.equal(value, again[name]) for name, value in trained.items())
    assert any(not torch.equal(value, start[name]) for name, value in trained.items())
    lines = [read_log(tmp_path / name / "log.jsonl") for name in ("whole", "first")]
    assert lines[0] == lines[1]


def expected_rate(scheduler: str, step: int) -> float:
    """The learning rate of a step, counted from 0, of the largest."""
    if step < WARMUP:
        return step / WARMUP
    share = (step - WARMUP) / (STEPS - WARMUP)
    if scheduler == "wsd":
        left = STEPS - step
        return 1.0 if left >= 4 else 0.5 * (1 - math.cos(math.pi * left / 4))
    return {"linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share)), "constant": 1.0}[scheduler]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedules_have_their_formulas(dataset: TokenDataset, tmp_path: Path, scheduler: str) -> None:
    options = {"scheduler": scheduler, "steps": STEPS, "warmup": WARMUP, "learning_rate": 0.5}
    if scheduler == "wsd":
        options["decay"] = 4
    trainer_on(dataset, tmp_path, tiny_model(dataset), **options).train()
    rates = [line["learning_rate"] / 0.5 for line in read_log(tmp_path / "log.jsonl")]
    assert rates == pytest.approx([expected_rate(scheduler, step) for step in range(STEPS)])


def test_arguments_that_an_optimizer_does_not_have_are_refused(dataset: TokenDataset, tmp_path: Path) -> None:
    trainer = trainer_on(dataset, tmp_path, optimizer_args={"beta": [0.9, 0.95]})
    with pytest.raises(ConfigError, match=r"optimizer_args\.beta: not an argument of adamw; did you mean betas\?"):
        trainer.create_optimizer()
