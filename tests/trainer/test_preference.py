"""DPO and KTO: losses and gradients equal a plain loop over rows and those of TRL's trainers."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn.functional import log_softmax, logsigmoid
from transformers import LlamaForCausalLM

from support.soak import each, machine
from support.tiny_training import TINY, Gradients, tiny_model
from tokenloom.cli import main
from tokenloom.config import TrainingConfig
from tokenloom.errors import ConfigError
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.trainer import PreferenceTrainer, TokenTrainer
from tokenloom.trainer.checkpoints import read_state
from tokenloom.trainer.log import read_log
from tokenloom.trainer.preference import mismatched

ANSWERS = ["Paris is the capital.", "Seven is one of them, and so is eleven.", "Shakespeare.", "I do not know that."]


def lines(kind: str, rows: int) -> list[dict[str, Any]]:
    made = []
    for row in range(rows):
        prompt, answers = (
            f"Question {'again ' * (row % 4)}{row}?",
            [ANSWERS[row % 4], ANSWERS[(row * 3 + 1) % 4] + " No."],
        )
        pair = {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]}
        made.append(
            pair if kind == "dpo" else {"prompt": prompt, "completion": answers[row % 2], "label": row % 3 == 0}
        )
    return made


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> dict[str, Path]:
    """The YAMLs of two built datasets, of 21 rows each."""
    folder, found = tmp_path_factory.mktemp("preference"), dict[str, Path]()
    for kind in ("dpo", "kto"):
        source = folder / f"{kind}.jsonl"
        source.write_text("".join(f"{json.dumps(line)}\n" for line in lines(kind, 21)))
        found[kind] = folder / f"{kind}.yaml"
        more = ["--tokenizer", str(tokenizer_folder), "--out", str(found[kind]), "--store", str(folder / "store")]
        assert main(["inspect", str(source), *more]) == 0
        assert main(["build", str(found[kind]), "--store", str(folder / "store")]) == 0
    return found


def opened(configs: dict[str, Path], kind: str) -> TokenDataset:
    return open_dataset(kind, store=configs[kind].parent / "store")


def pair_of_models(dataset: TokenDataset) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """A model and another one to be its reference, so that rewards are not 0."""
    return tiny_model(dataset, 1), tiny_model(dataset, 2)


def trainer(dataset: TokenDataset, folder: Path, loss: str, batch_size: int = 4, **more: Any) -> PreferenceTrainer:
    config = TrainingConfig(
        **{"loss": loss, "steps": 2, "learning_rate": 1e-30, "beta": 0.3, "max_grad_norm": 0, **more}
    )
    loader = TokenLoader(dataset, batch_size=batch_size, seed=0, padding="longest")
    made = PreferenceTrainer(tiny_model(dataset, 1), config, loader, output_dir=folder)
    made._reference = tiny_model(dataset, 2).eval()
    return made


def reward(model: Any, reference: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of one row without padding, token by token."""
    logs = [log_softmax(each(input_ids=ids[None]).logits[0].float(), -1) for each in (model, reference)]
    places = [place for place in range(1, len(ids)) if labels[place] != -100]
    return sum((logs[0][p - 1, ids[p]] - logs[1][p - 1, ids[p]].detach() for p in places), torch.zeros(()))


def plain_loss(batch: dict[str, Any], model: Any, reference: Any, beta: float, smoothing: float) -> torch.Tensor:
    def rows(side: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        masks = batch[f"{side}attention_mask"].bool()
        return [
            (batch[f"{side}input_ids"][at][mask], batch[f"{side}labels"][at][mask]) for at, mask in enumerate(masks)
        ]

    if "chosen_labels" in batch:
        total = torch.zeros(())
        for chosen, rejected in zip(rows("chosen_"), rows("rejected_"), strict=True):
            margin = beta * (reward(model, reference, *chosen) - reward(model, reference, *rejected))
            total = total - (1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
        return total
    given, shifted = rows(""), []
    for at, (ids, labels) in enumerate(given):
        other_ids, other_labels = given[at - 1]
        begin, other = int((labels != -100).int().argmax()), int((other_labels != -100).int().argmax())
        ids = torch.cat([ids[:begin], other_ids[other:]])
        shifted.append(reward(model, reference, ids, torch.cat([labels[:begin], other_labels[other:]])).detach())
    base = torch.stack(shifted).mean().clamp(min=0)
    total = torch.zeros(())
    for (ids, labels), desirable in zip(given, batch["label"], strict=True):
        margin = reward(model, reference, ids, labels) - base
        total = total + 1 - torch.sigmoid(beta * (margin if desirable else -margin))
    return total


@pytest.mark.parametrize(("given", "accumulated"), each([("dpo", 0.0), ("dpo", 0.2), ("kto", 0.0)], [1, 2]))
def test_a_step_is_that_of_a_plain_loop(
    given: tuple[str, float], accumulated: int, configs: dict[str, Path], tmp_path: Path
) -> None:
    loss, smoothing = given
    dataset, seen = opened(configs, loss), Gradients()
    more: dict[str, Any] = {"label_smoothing": smoothing} if smoothing else {}
    made = trainer(dataset, tmp_path, loss, gradient_accumulation_steps=accumulated, **more)
    made.add_callback(seen)
    made.train()
    batches = iter(TokenLoader(dataset, batch_size=4, seed=0, padding="longest"))
    found = [line["loss"] for line in read_log(tmp_path / "log.jsonl") if "loss" in line]
    assert len(found) == 2
    for value, gradients in zip(found, seen.steps, strict=True):
        model, reference = pair_of_models(dataset)
        step = list(islice(batches, accumulated))
        total = sum((plain_loss(batch, model, reference, 0.3, smoothing) for batch in step), torch.zeros(()))
        total = total / (4 * accumulated)
        total.backward()
        assert value == pytest.approx(float(total.detach()), rel=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_losses_and_gradients_are_those_of_trl(loss: str, configs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.kto_trainer import KTOTrainer

    dataset = opened(configs, loss)
    batch = next(iter(TokenLoader(dataset, batch_size=4, seed=0, padding="longest")))
    ours = trainer(dataset, tmp_path / "ours", loss)
    inputs = ours.model_inputs(batch)
    value = ours.compute_loss(ours.model, inputs)  # pyright: ignore[reportArgumentType]
    value.backward()

    model, reference = pair_of_models(dataset)
    settings: dict[str, Any] = {"output_dir": str(tmp_path / "trl"), "beta": 0.3, "bf16": False, "report_to": "none"}
    settings |= {"gradient_checkpointing": False, "per_device_train_batch_size": 4}
    tokenizer = AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    given = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    given["completion_mask"] = (inputs["labels"] != -100).long()
    if loss == "dpo":
        rows = Dataset.from_list([{"prompt": "a", "chosen": " b", "rejected": " c"}])
        arguments = DPOConfig(**settings)
        theirs: Any = DPOTrainer(model, reference, arguments, train_dataset=rows, processing_class=tokenizer)
    else:
        rows = Dataset.from_list([{"prompt": "a", "completion": " b", "label": True}] * 4)
        arguments = KTOConfig(**settings, loss_type="kto", train_sampling_strategy="sequential")
        theirs = KTOTrainer(model, reference, arguments, train_dataset=rows, processing_class=tokenizer)
        shifted = mismatched(inputs, dataset.max_length)
        given |= {f"KL_{name}": shifted[name] for name in ("input_ids", "attention_mask")}
        given |= {"KL_completion_mask": (shifted["labels"] != -100).long(), "label": inputs["label"]}
    expected = theirs.compute_loss(theirs.model, given)
    expected.backward()
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    gradients = dict(theirs.model.named_parameters())
    for name, parameter in ours.model.named_parameters():  # pyright: ignore[reportOptionalMemberAccess]
        torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("side", ["left", "right"])
def test_mismatched_rows_have_the_answer_of_the_row_before(side: str) -> None:
    rows = [([1, 2, 3], [4, 5]), ([6], [7]), ([8, 9], [10, 11, 12]), ([], [])]
    width = 6
    inputs = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, answer in rows:
        values = {"input_ids": prompt + answer, "attention_mask": [1] * len(prompt + answer)}
        values["labels"] = [-100] * len(prompt) + answer
        for name, empty in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
            fill = [empty] * (width - len(values[name]))
            inputs[name].append(fill + values[name] if side == "left" else values[name] + fill)
    found = mismatched({name: torch.tensor(value) for name, value in inputs.items()}, max_length=5)
    ids, mask, labels = (found[name].tolist() for name in ("input_ids", "attention_mask", "labels"))
    real = [[value for value, used in zip(*row, strict=True) if used] for row in zip(ids, mask, strict=True)]
    assert real == [[1, 2, 3, 10, 11], [6, 4, 5], [8, 9, 7], []]  # the first is cut to the longest row
    assert [[label for label in row if label != -100] for row in labels] == [[10, 11], [4, 5], [7], []]


def runs(config: Path, folder: Path, *more: str, **training: Any) -> None:
    declared = yaml.safe_load(config.read_text()) | {
        "training": {"model": TINY, "batch_size": 4, "learning_rate": 0.01, "output_dir": str(folder), **training}
    }
    declared["dataset"]["val_split"] = 0.2
    changed = config.with_name(f"trained_{config.name}")
    changed.write_text(yaml.safe_dump(declared | {"name": f"trained_{config.stem}"}, sort_keys=False))
    assert main(["train", str(changed), "--store", str(config.parent / "store"), *more]) == 0


@machine("trainer")
@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_a_run_resumes_with_its_reference_and_learns(loss: str, configs: dict[str, Path], tmp_path: Path) -> None:
    training = {"loss": loss, "epochs": 6, "eval_steps": 6, "save_steps": 5, "scheduler": "constant"}
    runs(configs[loss], tmp_path / "whole", **training)
    runs(configs[loss], tmp_path / "parts", "--steps", "7", **training)
    runs(configs[loss], tmp_path / "parts", "--resume", **training)
    logs = [read_log(tmp_path / run / "log.jsonl") for run in ("whole", "parts")]
    losses = [[line["loss"] for line in log if "loss" in line] for log in logs]
    assert losses[0] == losses[1] and len(losses[0]) > 7
    states = [tmp_path / run / "model" / "model.safetensors" for run in ("whole", "parts")]
    assert states[0].read_bytes() == states[1].read_bytes()
    evaluated = [line for line in logs[0] if "eval_loss" in line]
    assert evaluated[0]["step"] == 0 and evaluated[-1]["eval_loss"] != evaluated[0]["eval_loss"]
    assert 0 <= evaluated[-1]["eval_accuracy"] <= 1
    assert losses[0][0] == pytest.approx(0.6931 if loss == "dpo" else 0.5, abs=1e-4)  # the reference is the model
    assert losses[0][-1] < losses[0][0]
    assert read_state(tmp_path / "whole" / f"checkpoint-{len(losses[0])}", "optimizer")


def test_lora_is_compared_with_the_model_without_adapters(configs: dict[str, Path], tmp_path: Path) -> None:
    training = {"loss": "dpo", "steps": 3, "lora": {"r": 2}}
    runs(configs["dpo"], tmp_path / "run", **training)
    losses = [line["loss"] for line in read_log(tmp_path / "run" / "log.jsonl") if "loss" in line]
    assert losses[0] == pytest.approx(0.6931, abs=1e-4) and losses[-1] != losses[0]


@pytest.mark.parametrize(("kind", "loss", "remedy"), [("dpo", "cross_entropy", "set dpo"), ("kto", "dpo", "set kto")])
def test_a_loss_that_does_not_fit_the_rows(
    kind: str, loss: str, remedy: str, configs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        runs(configs[kind], tmp_path / "run", loss=loss, steps=1)
    assert remedy in capsys.readouterr().err
    with pytest.raises(ConfigError, match="TokenTrainer computes cross_entropy"):
        config = TrainingConfig(loss="dpo")
        TokenTrainer(tiny_model(opened(configs, "dpo")), config, TokenLoader(opened(configs, "dpo"), 2))
