"""A killed `tokenloom train` goes on as if nothing had happened: each loss, each learning rate and all weights."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from support.processes import DEADLINE
from support.soak import machine, some, sweep
from support.tiny_training import TINY, built
from support.training_runs import finish, finish_here, kill_after, losses
from tokenloom.config.dataset import load_config
from tokenloom.errors import StoreError
from tokenloom.trainer import train
from tokenloom.trainer.checkpoints import read_state
from tokenloom.trainer.log import read_log

pytestmark = machine("trainer")

STEPS = 50
KILLS = 2
REAL_STEPS = 300
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("kind", some(["mixture", "dataset"], 2))
def test_the_curve_of_a_killed_run_is_that_of_an_undisturbed_one(
    tmp_path: Path, tokenizer_folder: Path, kind: str
) -> None:
    training = {"model": {**TINY, "attention_dropout": 0.1}, "batch_size": 4, "epochs": 2, "save_steps": 7}
    training |= {"logging_steps": 1, "learning_rate": 0.01, "scheduler": "wsd", "warmup": 5}
    shared = {"keep": "all", "dataloader": {"seed": 3}}
    ragged = built(tmp_path, "ragged", tokenizer_folder, rows=100, **shared)
    if kind == "mixture":
        built(tmp_path, "weighted", tokenizer_folder, rows=60)
        mixed = {"mixture": [{"dataset": "ragged"}, {"dataset": "weighted"}], "dataloader": {"seed": 3}}
        config, settings = tmp_path / "mix.yaml", mixed
    else:
        config, settings = ragged, yaml.safe_load(ragged.read_text())

    store = tmp_path / "store"

    def declare(run: str) -> None:
        declared = settings | {"name": config.stem, "training": training | {"output_dir": str(tmp_path / run)}}
        config.write_text(yaml.safe_dump(declared, sort_keys=False), encoding="utf-8")

    declare("whole")
    finish_here(config, store)
    whole = losses(tmp_path / "whole" / "log.jsonl")
    assert len(whole) >= STEPS and whole[-1]["epoch"] == 2
    draw, log = random.Random(f"{kind}"), tmp_path / "killed" / "log.jsonl"
    declare("killed")
    arguments = ["tokenloom", "train", str(config), "--store", str(store)]
    for number in range(KILLS):
        again = ["--resume"] if number else []
        at = draw.randrange((number + 1) * len(whole) // 4, (number + 2) * len(whole) // 4)
        kill_after(at, [*arguments, *again], log, tmp_path / "killed.txt")
        built(tmp_path, "ragged", tokenizer_folder, rows=60, seed=number + 7, **shared)  # other rows, built meanwhile
        declare("killed")
    finish_here(config, store, resume=True)
    assert losses(log) == whole
    final = [tmp_path / run / "model" / "model.safetensors" for run in ("whole", "killed")]
    assert final[0].read_bytes() == final[1].read_bytes()
    last = f"checkpoint-{len(whole)}"
    states = [read_state(tmp_path / run / last, "optimizer") for run in ("whole", "killed")]
    assert repr(states[0]) == repr(states[1])


@sweep
@pytest.mark.parametrize("name", ["quickstart", "alpaca"])
def test_the_curve_of_a_killed_run_on_real_rows(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    settings = yaml.safe_load((EXAMPLES / "train_quickstart.yaml").read_text())
    if name == "quickstart":
        settings["dataset"]["name"] = str((EXAMPLES / settings["dataset"]["name"]).resolve())
    else:
        alpaca = request.getfixturevalue("real_data") / "instruct" / "alpaca_data.json"
        settings["dataset"] = {"name": str(alpaca), "val_split": 0.02}
        settings["tokenizer"] = {"train": {"vocab_size": 8000}, "max_length": 512, "special_tokens": {"eos": "</s>"}}
        del settings["prompt_template"]
    settings["training"] |= {"steps": REAL_STEPS, "save_steps": 20, "logging_steps": 1}
    config, store = tmp_path / f"{name}.yaml", tmp_path / "store"

    def arguments(run: str) -> list[str]:
        settings["training"]["output_dir"] = str(tmp_path / run)
        config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return ["tokenloom", "train", str(config), "--store", str(store)]

    finish(arguments("whole"), tmp_path / "whole.txt", seconds=3 * DEADLINE)  # evaluates, too
    draw, log = random.Random(name), tmp_path / "killed" / "log.jsonl"
    for number in range(3):
        at = draw.randrange(number * REAL_STEPS // 3 + 5, (number + 1) * REAL_STEPS // 3)
        kill_after(at, [*arguments("killed"), *(["--resume"] if number else [])], log, tmp_path / "killed.txt")
    finish([*arguments("killed"), "--resume"], tmp_path / "killed.txt", seconds=3 * DEADLINE)
    found = [
        [line for line in read_log(tmp_path / run / "log.jsonl") if "tokens_per_second" not in line]
        for run in ("whole", "killed")
    ]
    assert found[0] == found[1]
    evaluated = [line["eval_loss"] for line in found[0] if "eval_loss" in line]
    assert len(evaluated) == REAL_STEPS // 100 + 1 and evaluated == sorted(evaluated, reverse=True)
    final = [tmp_path / run / "model" / "model.safetensors" for run in ("whole", "killed")]
    assert final[0].read_bytes() == final[1].read_bytes()
    print(f"{name}: validation loss {evaluated}")


WIDTHS = {name: value for name, value in TINY.items() if name != "model_type"} | {"num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "experts": {"model": {"model_type": "mixtral", "num_local_experts": 4, **WIDTHS}},
    "grouped experts": {
        "model": {
            "model_type": "deepseek_v3",
            **dict.fromkeys(("n_routed_experts", "qk_rope_head_dim", "qk_nope_head_dim"), 4),
            **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim", "moe_intermediate_size"), 8),
            **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
            "num_experts_per_tok": 2,
            **WIDTHS,
        }
    },
    "tied": {"model": {**TINY, "tie_word_embeddings": True}},
    "adapters": {"model": TINY, "lora": {"r": 2}},
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_each_kind_resume(tmp_path: Path, tokenizer_folder: Path, kind: str) -> None:
    training = {"batch_size": 4, "steps": 4, "save_steps": 2, "learning_rate": 0.01, **MODELS[kind]}
    config = built(tmp_path, "ragged", tokenizer_folder, training={**training, "output_dir": str(tmp_path / "run")})
    store, run = str(tmp_path / "store"), tmp_path / "run"
    states, curves = [], []
    for resume in (False, True):
        trainer = train(load_config(config), store, resume=resume)
        assert trainer.model is not None
        states.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
        curves.append(losses(run / "log.jsonl"))
        shutil.rmtree(run / "checkpoint-4")
    assert curves[0] == curves[1] and len(curves[0]) == 4
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path, tokenizer_folder: Path) -> None:
    training = {"model": TINY, "batch_size": 4, "steps": 4, "eval_steps": 2, "logging_steps": 1}
    training |= {"spike_threshold": 0, "output_dir": str(tmp_path / "run")}
    dataset = {"name": "ragged.jsonl", "val_split": 0.2}
    config = built(tmp_path, "ragged", tokenizer_folder, dataset=dataset, training=training)
    logs = []
    for resume in (False, True):
        train(load_config(config), str(tmp_path / "store"), resume=resume)
        lines = [read_log(tmp_path / "run" / f"{name}.jsonl") for name in ("log", "samples")]
        logs.append([line for line in (*lines[0], *lines[1]) if "tokens_per_second" not in line])
        shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    assert logs[0] == logs[1] and len(logs[0]) > 7


def test_a_checkpoint_without_a_weight_is_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    training = {"model": TINY, "batch_size": 4, "steps": 2, "output_dir": str(tmp_path / "run")}
    config = built(tmp_path, "ragged", tokenizer_folder, training=training)
    trainer = train(load_config(config), str(tmp_path / "store"))
    file = tmp_path / "run" / "checkpoint-2" / "model.safetensors"
    weights = load_file(file)
    del weights["model.norm.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(StoreError, match=r"checkpoint-2 has no model\.norm\.weight"):
        trainer.train(resume_from_checkpoint=str(file.parent))


def test_a_run_is_not_started_over_another(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenloom.cli import main

    training = {"model": TINY, "steps": 2, "batch_size": 4, "output_dir": str(tmp_path / "run")}
    config = built(tmp_path, "ragged", tokenizer_folder, training=training)
    arguments = ["train", str(config), "--store", str(tmp_path / "store")]
    assert main(arguments) == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"checkpoint-2", "log.jsonl", "model", "run.json"}
    assert not [path for path in (tmp_path / "run").rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")]
    assert main(arguments) == 2
    assert "belongs to an earlier run; resume it (--resume)" in capsys.readouterr().err
    assert main([*arguments, "--resume", "--steps", "4"]) == 0
    assert (tmp_path / "run" / "checkpoint-4").is_dir()
    weights = tmp_path / "run" / "checkpoint-4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert main([*arguments, "--resume", "--steps", "6"]) == 4
    assert "checkpoint-4 is damaged: model.safetensors" in capsys.readouterr().err
