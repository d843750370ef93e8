"""Public reports of losses, gradients and evaluations that are wrong: each is rebuilt with a tiny model.

The docstring of each test names its source, what went wrong there, and what must hold here.
"""

from __future__ import annotations

import math
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from support.soak import machine
from support.stored_sequences import write_numbered
from support.tiny_training import SHAPES, Gradients, built, summed_loss, tiny_model, trainer_on
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.trainer.log import read_log

pytestmark = machine("trainer")

LOSSES = ("cross_entropy", "fused_linear_cross_entropy")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> dict[str, TokenDataset]:
    folder = tmp_path_factory.mktemp("steps")
    for shape in SHAPES:
        built(folder, shape, tokenizer_folder)
    return {shape: open_dataset(shape, store=folder / "store") for shape in SHAPES}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    """Rows of one to three tokens; those of one token, and some others, train nothing."""
    folder = tmp_path_factory.mktemp("short")
    write_numbered(folder, "short", [24], 3)
    return open_dataset("short", store=folder)


def assert_steps_are_those_of_their_batches(
    dataset: TokenDataset,
    folder: Path,
    accumulated: int,
    epochs: int,
    size: int,
    steps: list[int],
    loss: str = LOSSES[0],
) -> None:
    """Train without changing the weights, and compare the loss and the gradient of each step with those of a loop over
    its batches alone, of which there are `steps[i]` in step i.
    """
    seen = Gradients()
    options = {"steps": None, "epochs": epochs, "gradient_accumulation_steps": accumulated, "max_grad_norm": 0}
    options["loss"] = loss
    trainer = trainer_on(dataset, folder, batch_size=size, learning_rate=1e-30, **options)
    trainer.add_callback(seen)
    trainer.train()
    lines = read_log(folder / "log.jsonl")
    assert len(lines) == len(seen.steps) == len(steps)
    loader = TokenLoader(dataset, batch_size=size, seed=0, padding="longest")
    batches = chain.from_iterable(loader for _ in range(epochs))
    for line, gradients, count in zip(lines, seen.steps, steps, strict=True):
        model = tiny_model(dataset)
        total, weight = summed_loss(model, islice(batches, count))
        (total / weight).backward()
        assert line["loss"] == pytest.approx(float(total.detach() / weight), rel=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert next(batches, None) is None


def test_epochs_with_fewer_batches_than_a_step_are_trained(datasets: dict[str, TokenDataset], tmp_path: Path) -> None:
    """huggingface/transformers#14309: if an epoch has fewer batches than a step accumulates, batches at the end of an
    epoch are dropped.

    Each batch of all epochs must be in a step, of as many batches as are left.
    """
    assert_steps_are_those_of_their_batches(datasets["ragged"], tmp_path, 8, epochs=3, size=10, steps=[8, 1])


@pytest.mark.parametrize("loss", LOSSES)
def test_the_last_step_is_the_mean_of_the_batches_that_it_has(
    datasets: dict[str, TokenDataset], tmp_path: Path, loss: str
) -> None:
    """Lightning-AI/pytorch-lightning#19987: the last step of an epoch has fewer batches, but its gradient is divided by
    the number of batches that the others accumulate.

    The loss of a step must be the mean over the trained tokens that it has.
    """
    assert_steps_are_those_of_their_batches(datasets["weighted"], tmp_path, 3, 1, 4, [3, 3, 2], loss)


def test_no_gradient_is_left_for_the_next_epoch(datasets: dict[str, TokenDataset], tmp_path: Path) -> None:
    """meta-pytorch/torchtune#2745: gradients and token counts of the last batches of an epoch, which fill no step, are
    added to those of the first step of the next epoch, without being counted as its batches.

    A step that goes over the end of an epoch must have as many batches as the others.
    """
    assert_steps_are_those_of_their_batches(datasets["ragged"], tmp_path, 3, epochs=2, size=4, steps=[3] * 5 + [1])


def test_accumulated_batches_train_as_one_batch(datasets: dict[str, TokenDataset], tmp_path: Path) -> None:
    """huggingface/trl#2175: accumulating four batches of one row trains worse than one batch of four rows, since each
    batch's mean has the same weight, whatever its number of tokens.

    The weights after some steps must be the same, up to rounding.
    """
    found = []
    for size, accumulated in ((4, 1), (1, 4), (2, 2)):
        options = {"gradient_accumulation_steps": accumulated, "learning_rate": 0.01, "steps": 5}
        trainer = trainer_on(datasets["ragged"], tmp_path / str(size), batch_size=size, **options)
        trainer.train()
        lines = read_log(tmp_path / str(size) / "log.jsonl")
        found.append(([line["loss"] for line in lines], trainer.model))
    for losses, model in found[1:]:
        assert losses == pytest.approx(found[0][0], rel=1e-4)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, found[0][1].get_parameter(name), rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("loss", LOSSES)
def test_batches_without_trained_tokens_spoil_no_weights(short: TokenDataset, tmp_path: Path, loss: str) -> None:
    """NVIDIA-NeMo/Automodel#3796: a batch without trained tokens has the loss 0 / 0, and from then on all weights are
    NaN, with three of four losses.

    Its loss and its gradient must be 0, and the other steps must train.
    """
    seen = Gradients()
    trainer = trainer_on(short, tmp_path, batch_size=1, steps=24, loss=loss, learning_rate=0.01, weight_decay=0)
    trainer.add_callback(seen)
    trainer.train()
    empty = 0
    batches = TokenLoader(short, batch_size=1, seed=0, padding="longest")
    lines = [line for line in read_log(tmp_path / "log.jsonl") if "loss" in line]
    for line, gradients, batch in zip(lines, seen.steps, batches, strict=True):
        trains = bool((batch["labels"][:, 1:] != -100).any())
        empty += not trains
        assert (line["loss"] > 0) == trains and math.isfinite(line["loss"])
        assert any(bool(value.any()) for value in gradients.values()) == trains
    assert 0 < empty < 24
    assert trainer.model is not None
    assert all(bool(value.isfinite().all()) for value in trainer.model.parameters())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_rank_of_padding_rows_has_a_gradient_of_0(short: TokenDataset, tmp_path: Path, loss: str) -> None:
    """allenai/OLMo-core#657: on many ranks, one can have a batch in which nothing is trained; its loss is 0 / 0, and
    the gradients of all ranks become NaN.

    A rank that has only padding rows in the last step must have a gradient of 0 for each parameter, which the other
    ranks wait for.
    """
    loader = TokenLoader(short, 5, rank=1, world_size=4, padding="longest")
    batch = [*loader][-1]
    assert not batch["attention_mask"].any()
    trainer = trainer_on(short, tmp_path, loss=loss)
    model: Any = trainer.model
    trainer.compute_loss(model, trainer.model_inputs(batch), num_items_in_batch=torch.tensor(7.0)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_loss_leaves_its_batch_as_it_is(
    datasets: dict[str, TokenDataset], tmp_path: Path, shape: str, loss: str
) -> None:
    """NVIDIA-NeMo/Automodel#3917: a loss masks the labels of the caller in place, so that the next use of the batch,
    for example a second loss or a metric, has no labels left.

    Tensors of a batch must be the same after the loss, and a second loss of it the same as the first.
    """
    trainer, model = trainer_on(datasets[shape], tmp_path, loss=loss), None
    model = trainer.model
    assert model is not None
    batch = trainer.model_inputs(next(iter(trainer.train_loader)))
    before = {name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}
    found = [float(trainer.compute_loss(model, batch).detach()) for _ in range(2)]
    assert found[0] == found[1] > 0
    for name, value in before.items():
        assert torch.equal(batch[name], value), name


def test_an_evaluation_with_rows_that_train_nothing_has_a_loss(short: TokenDataset, tmp_path: Path) -> None:
    """meta-llama/llama-cookbook#133: if the prompt of a validation row fills the context, all its labels are masked,
    and the loss of the whole evaluation is NaN.

    The loss must be the mean over the trained tokens of all rows, with any batch size.
    """
    model = tiny_model(short)
    total, weight = summed_loss(model, TokenLoader(short, 4, shuffle="none", padding="longest"))
    for size in (1, 5, 24):
        loader = TokenLoader(short, size, shuffle="none", padding="longest")
        metrics = trainer_on(short, tmp_path / str(size), model).evaluate(loader)
        assert metrics["eval_loss"] == pytest.approx(float(total.detach()) / weight, rel=1e-5)
        assert metrics["eval_trained_tokens"] == weight


def test_packed_epochs_are_trained_to_their_end(datasets: dict[str, TokenDataset], tmp_path: Path) -> None:
    """huggingface/trl#455: with packing, the number of steps of an epoch is not that of its packed rows, and the
    training ends elsewhere than after the declared epochs.

    Each packed row must be trained as often as there are epochs, in as many steps as its batches need.
    """
    dataset, seen = datasets["packed"], list[tuple[int, ...]]()
    trainer = trainer_on(dataset, tmp_path, batch_size=2, steps=None, epochs=2)
    inputs_of = trainer.model_inputs

    def watched(batch: dict[str, Any]) -> dict[str, Any]:
        seen.extend(
            tuple(ids[mask == 1].tolist())
            for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        )
        return inputs_of(batch)

    trainer.model_inputs = watched
    trainer.train()
    rows = [tuple(dataset[number]["input_ids"].tolist()) for number in range(len(dataset))]
    assert sorted(seen) == sorted(rows * 2)
    lines = [line for line in read_log(tmp_path / "log.jsonl") if "loss" in line]
    assert len(lines) == 2 * -(-len(rows) // 2) and lines[-1]["epoch"] == 2
