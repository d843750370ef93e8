"""Training on trees is training on their texts: the same losses, step by step, and the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer, Trainer, TrainingArguments

from support.reasoning_chats import built_chats
from support.soak import machine
from support.tiny_training import TINY, tiny_model, trainer_on
from support.training_runs import assert_two_ranks_train_as_one, losses
from tokenloom.config.dataset import load_config
from tokenloom.config.sections import TrainingConfig
from tokenloom.errors import ConfigError
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.loaders.trainer import TokenLoaderMixin
from tokenloom.trainer import train
from tokenloom.trainer.log import generated_samples
from tokenloom.trainer.run import build_model

pytestmark = machine("trainer")

ROWS = 12
TRAINING = {"model": TINY, "learning_rate": 0.01, "logging_steps": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    for packing in ("none", "tree"):
        built_chats(folder, packing, packing, tokenizer_folder, ROWS)
    built_chats(folder, "many", "tree", tokenizer_folder, 60)
    for packing in ("none", "tree"):
        built_chats(folder, f"plain-{packing}", packing, tokenizer_folder, ROWS, weights=False)
    return folder


def opened(folder: Path, name: str) -> TokenDataset:
    return open_dataset(name, store=folder / "store")


def declared(folder: Path, name: str, run: Path, **training: Any) -> Path:
    """Return the YAML of a dataset with the settings of a run."""
    settings = yaml.safe_load((folder / f"{name}.yaml").read_text())
    path = run.with_suffix(".yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    settings["training"] = {**TRAINING, "output_dir": str(run), **training}
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


def test_trees_have_fewer_tokens_of_the_same_weight(folder: Path) -> None:
    plain, trees = (next(iter(TokenLoader(opened(folder, name), 100, padding="longest"))) for name in ("none", "tree"))
    assert trees["attention_mask"].sum() < 0.7 * plain["attention_mask"].sum()
    assert trees["loss_weights"].sum() == plain["loss_weights"].sum() > 100


@pytest.mark.parametrize(
    ("settings", "accumulated"),
    [
        ({"attention": "sdpa"}, 1),
        ({"attention": "eager", "z_loss": 0.01}, 1),
        ({"gradient_checkpointing": True}, 2),
        ({"loss": "fused_linear_cross_entropy", "lora": {"r": 2}}, 3),
    ],
    ids=["sdpa", "eager", "checkpointing", "fused"],
)
def test_the_losses_of_all_steps_are_those_of_texts(
    folder: Path, tmp_path: Path, settings: dict[str, Any], accumulated: int
) -> None:
    """Each step has all rows: as texts in one batch, and as trees in one or several."""
    pytest.importorskip("peft") if "lora" in settings else None
    count = len(opened(folder, "tree"))
    assert count >= 3
    size = -(-count // accumulated)
    sizes = {"none": {"batch_size": 100}, "tree": {"batch_size": size, "gradient_accumulation_steps": accumulated}}
    for name, of_batch in sizes.items():
        config = declared(folder, name, tmp_path / name, steps=6, **of_batch, **settings)
        train(load_config(config), str(folder / "store"))
    plain, trees = ([line["loss"] for line in losses(tmp_path / name / "log.jsonl")] for name in sizes)
    assert trees == pytest.approx(plain, rel=1e-5)
    assert len(plain) == 6 and plain[-1] < (1 if "lora" in settings else 0.97) * plain[0]
    file = "adapter_model.safetensors" if "lora" in settings else "model.safetensors"
    plain, trees = (load_file(tmp_path / name / "model" / file) for name in sizes)
    for name, weight in plain.items():
        torch.testing.assert_close(trees[name], weight, rtol=1e-3, atol=1e-4, msg=name)


def test_a_resumed_run_is_that_of_an_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = declared(folder, "tree", run, epochs=4, batch_size=2, save_steps=3)
    store = str(folder / "store")
    train(load_config(config), store)
    shutil.copytree(run, tmp_path / "whole")
    for late in [path for path in run.glob("checkpoint-*") if path.name != "checkpoint-3"]:
        shutil.rmtree(late)
    shutil.rmtree(run / "model")
    train(load_config(config), store, resume=True)
    assert losses(run / "log.jsonl") == losses(tmp_path / "whole" / "log.jsonl")
    assert len(losses(run / "log.jsonl")) > 4
    files = [each / "model" / "model.safetensors" for each in (run, tmp_path / "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_have_the_losses_of_one_that_accumulates(folder: Path, tmp_path: Path, strategy: str) -> None:
    shutil.copytree(folder / "store", tmp_path / "store")
    assert len(opened(folder, "many")) >= 8  # so that no step is at the end of an epoch
    options = {"batch_size": 1, "steps": 4, "strategy": strategy, "save_steps": 2, "gradient_checkpointing": True}
    one = declared(folder, "many", tmp_path / "one", gradient_accumulation_steps=2, **options)
    two = declared(folder, "many", tmp_path / "two", **options)
    assert_two_ranks_train_as_one([(one, two)], tmp_path / "printed.txt", steps=4)


@pytest.mark.parametrize("attention", ["sdpa", "flex_attention"])
def test_evaluation_is_that_of_texts(folder: Path, tmp_path: Path, attention: str) -> None:
    found = []
    for name in ("none", "tree"):
        dataset = opened(folder, name)
        model = tiny_model(dataset)
        if name == "tree":
            model.set_attn_implementation(attention)
        loader = TokenLoader(dataset, 2, padding="longest", padding_side="left")
        with torch.compiler.set_stance("force_eager"):
            metrics = trainer_on(dataset, tmp_path / name, model).evaluate(loader)
        found.append([metrics["eval_loss"], metrics["eval_trained_tokens"]])
    assert found[1] == pytest.approx(found[0], rel=1e-6)


class PlainTrainer(TokenLoaderMixin, Trainer):
    """Has the model's own loss, the mean over trained tokens."""


def test_a_plain_trainer_gets_the_masks_of_its_model(folder: Path, tmp_path: Path) -> None:
    found = []
    for name in ("plain-none", "plain-tree"):
        dataset = opened(folder, name)
        loader = TokenLoader(dataset, 100, padding="longest")
        options: Any = {"use_cpu": True, "report_to": "none", "logging_steps": 1, "save_strategy": "no", "max_steps": 3}
        trainer = PlainTrainer(tiny_model(dataset), TrainingArguments(str(tmp_path), **options), train_loader=loader)
        trainer.train()
        found.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
    assert len(found[0]) == 3 and found[1] == pytest.approx(found[0], rel=1e-4)


def test_samples_continue_a_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt before the first trained token of a tree is that of one of its texts."""
    monkeypatch.setattr("tokenloom.trainer.log.NEW_TOKENS", 2)
    plain, trees = opened(folder, "none"), opened(folder, "tree")
    tokenizer: Any = AutoTokenizer.from_pretrained(plain.tokenizer_path)
    model = tiny_model(plain).eval()
    texts = [*generated_samples(model, tokenizer, {"rows": plain}, len(plain))]
    found = [*generated_samples(model, tokenizer, {"rows": trees}, len(trees))]
    answers = {text["prompt"]: text["expected"] for text in texts}
    assert len(found) == len(trees) and len(answers) > len(trees)
    for sample in found:
        assert sample["expected"] and sample["expected"] == answers[sample["prompt"]]


REFUSED = [
    (
        {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1},
        "mamba has layers of linear_attention, which no mask divides",
    ),
    ({"model_type": "bloom", "hidden_size": 16, "n_layer": 1, "n_head": 2}, r"bloom computes distances .* \(ALiBi\)"),
    (
        {
            "model_type": "gpt_neo",
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["local"], 2]],
        },
        "gpt_neo is not among the models that are known to take masks of trees",
    ),
    (
        {**TINY, "model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
        "qwen3_next has layers of linear_attention, which no mask divides",
    ),
    (
        {**TINY, "model_type": "gemma3_text", "use_bidirectional_attention": True},
        r"gemma3_text lets tokens see later ones \(use_bidirectional_attention\)",
    ),
]


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=[model["model_type"] for model, _ in REFUSED])
def test_models_that_do_not_take_trees_are_refused_by_name(
    folder: Path, tmp_path: Path, model: dict[str, Any], message: str
) -> None:
    dataset = opened(folder, "tree")
    built = build_model(TrainingConfig(model=model), dataset)
    start = r"training\.attention: the dataset has trees \(length\.packing: tree\), but "
    with pytest.raises(ConfigError, match=f"{start}{message}.*; build the dataset with another length.packing"):
        trainer_on(dataset, tmp_path, built)
    trainer_on(opened(folder, "none"), tmp_path, built)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (
            "flash_attention_2",
            r"flash_attention_2 does not take masks of trees \(length\.packing: tree\); set flex, sdpa",
        ),
        ("flex", "FlexAttention has no gradients on CPUs; set sdpa"),
    ],
)
def test_attention_that_cannot_is_refused(folder: Path, attention: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"training\.attention: {message}"):
        build_model(TrainingConfig(model=TINY, attention=attention), opened(folder, "tree"))


def test_experts_cannot_be_balanced_on_trees(folder: Path, tmp_path: Path) -> None:
    model = {**TINY, "model_type": "mixtral", "num_local_experts": 2, "output_router_logits": True}
    dataset = opened(folder, "tree")
    built = build_model(TrainingConfig(model={**model, "num_key_value_heads": 2}), dataset)
    with pytest.raises(
        ConfigError, match=r"training\.loss: a model cannot balance its experts on trees; set its output"
    ):
        trainer_on(dataset, tmp_path, built)
