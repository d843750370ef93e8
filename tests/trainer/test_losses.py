"""The loss and the gradients of a step are those of a plain loop over its documents."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from support.soak import pairs
from support.tiny_training import SHAPES, TINY, Gradients, built, summed_loss, tiny_model, trainer_on
from tokenloom.errors import ConfigError
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.trainer import CrossEntropy, losses
from tokenloom.trainer.log import read_log
from tokenloom.trainer.losses import trained_tokens

LOSSES = ("cross_entropy", "fused_linear_cross_entropy")
SETTINGS: tuple[dict[str, float], ...] = ({}, {"z_loss": 0.01, "label_smoothing": 0.1})


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> dict[str, TokenDataset]:
    folder = tmp_path_factory.mktemp("losses")
    for shape in SHAPES:
        built(folder, shape, tokenizer_folder)
    return {shape: open_dataset(shape, store=folder / "store") for shape in SHAPES}


@pytest.mark.parametrize(("shape", "accumulated", "loss", "settings"), pairs(SHAPES, [1, 2], LOSSES, SETTINGS))
def test_a_step_is_that_of_a_plain_loop(
    shape: str,
    accumulated: int,
    loss: str,
    settings: dict[str, float],
    datasets: dict[str, TokenDataset],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "CHUNK", 7)
    dataset, seen = datasets[shape], Gradients()
    options = {"gradient_accumulation_steps": accumulated, "max_grad_norm": 0, "loss": loss, **settings}
    trainer = trainer_on(dataset, tmp_path, batch_size=2, steps=2, learning_rate=1e-30, **options)
    trainer.add_callback(seen)
    trainer.train()
    lines = read_log(tmp_path / "log.jsonl")

    batches, packed = iter(TokenLoader(dataset, batch_size=2, seed=0, padding="longest")), False
    for line, gradients in zip(lines, seen.steps, strict=True):
        model = tiny_model(dataset)
        step = list(islice(batches, accumulated))
        packed |= any("position_ids" in batch and (batch["position_ids"] == 0).sum() > 2 for batch in step)
        total, weight = summed_loss(model, step, settings.get("z_loss", 0), settings.get("label_smoothing", 0))
        (total / weight).backward()
        assert line["loss"] == pytest.approx(float(total.detach() / weight), rel=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert packed == (shape == "packed")


def expert_model(dataset: TokenDataset) -> MixtralForCausalLM:
    torch.manual_seed(0)
    widths = {name: value for name, value in TINY.items() if name != "model_type"}
    more = {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.5, "num_key_value_heads": 2}
    return MixtralForCausalLM(MixtralConfig(vocab_size=dataset.vocab_size, **widths, **more))


def test_the_loss_that_balances_experts_is_added(datasets: dict[str, TokenDataset], tmp_path: Path) -> None:
    dataset, seen = datasets["weighted"], Gradients()
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0, "learning_rate": 1e-30, "steps": 1}
    trainer = trainer_on(dataset, tmp_path, expert_model(dataset), batch_size=2, **options)
    trainer.add_callback(seen)
    trainer.train()
    model, batches = expert_model(dataset), islice(TokenLoader(dataset, batch_size=2, seed=0, padding="longest"), 2)
    total, balance, weight = torch.zeros(()), torch.zeros(()), 0.0
    for batch in batches:
        loss, count = summed_loss(model, [batch])
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        total, weight = total + loss, weight + count
        balance = balance + model(**inputs).aux_loss * count
    expected = total / weight + 0.5 * balance / weight
    expected.backward()
    assert read_log(tmp_path / "log.jsonl")[0]["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(seen.steps[0][name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    with pytest.raises(ConfigError, match="cannot balance its experts; set loss: cross_entropy"):
        trainer_on(dataset, tmp_path / "fused", expert_model(dataset), loss="fused_linear_cross_entropy")


def test_rows_without_trained_tokens_have_no_loss(datasets: dict[str, TokenDataset], tmp_path: Path) -> None:
    dataset = datasets["ragged"]
    trainer, model = trainer_on(dataset, tmp_path), tiny_model(dataset)
    batch = trainer.model_inputs(next(iter(TokenLoader(dataset, batch_size=2, padding="longest"))))
    batch["labels"] = torch.full_like(batch["labels"], -100)
    loss = trainer.compute_loss(model, batch, num_items_in_batch=torch.tensor(0.0))
    loss.backward()
    assert loss == 0 and all(value.grad is None or not value.grad.any() for value in model.parameters())


def test_the_last_token_predicts_nothing_and_the_first_is_not_predicted() -> None:
    labels = torch.tensor([[5, 6, -100, 7], [8, -100, -100, 9]])
    where, targets, _ = trained_tokens(labels)
    assert where.tolist() == [[True, False, True, False], [False, False, True, False]]
    assert targets.tolist() == [6, 7, 9]


@pytest.mark.parametrize("weighted", [False, True])
def test_fused_values_are_those_of_logits(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK", 8)
    loss, head = CrossEntropy(z_loss=0.01, label_smoothing=0.1), nn.Linear(16, 50)
    targets = torch.randint(50, (37,))
    weights = torch.rand(37) if weighted else None
    found = []
    for fused in (False, True):
        torch.manual_seed(1)
        hidden = torch.randn(37, 16, requires_grad=True)
        head.zero_grad()
        value = (
            loss.of_hidden(hidden, head, targets, weights) if fused else loss.of_logits(head(hidden), targets, weights)
        )
        value.sum().backward()
        found.append((value.detach(), hidden.grad, head.weight.grad.clone(), head.bias.grad.clone()))  # pyright: ignore[reportOptionalMemberAccess]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_models_that_change_their_logits_are_refused(datasets: dict[str, TokenDataset], tmp_path: Path) -> None:
    model = tiny_model(datasets["ragged"])
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match="sets final_logit_softcapping"):
        trainer_on(datasets["ragged"], tmp_path, model, loss="fused_linear_cross_entropy")
