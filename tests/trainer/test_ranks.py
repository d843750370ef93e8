"""Two ranks train as one rank that accumulates two batches; sharded ones hold a part of everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.trained_models import SHAPES, TINY, built
from support.training_runs import finish, losses
from tokenloom.config.dataset import load_config
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log


@pytest.mark.parametrize("shape", SHAPES)
def test_two_ranks_have_the_losses_of_one_that_accumulates(tmp_path: Path, tokenizer_folder: Path, shape: str) -> None:
    training = {"model": TINY, "batch_size": 2, "steps": 6, "learning_rate": 0.01, "logging_steps": 1}
    config = built(tmp_path, shape, tokenizer_folder, rows=80)  # six steps are within one epoch
    declared, found = yaml.safe_load(config.read_text()), {}
    for ranks in (1, 2):
        run = training | {"output_dir": str(tmp_path / f"{ranks}"), "gradient_accumulation_steps": 2 // ranks}
        config.write_text(yaml.safe_dump(declared | {"training": run}), encoding="utf-8")
        arguments = ["tokenloom.trainer", str(config), "--store", str(tmp_path / "store")]
        finish(arguments, tmp_path / f"{ranks}.txt", ranks)
        found[ranks] = [line["loss"] for line in losses(tmp_path / f"{ranks}" / "log.jsonl")]
    assert len(found[1]) == 6 and found[2] == pytest.approx(found[1], rel=2e-5)
    assert len(set(found[1])) == 6, json.dumps(found)


TIED = {"model": {**TINY, "tie_word_embeddings": True}, "loss": "fused_linear_cross_entropy", "optimizer": "muon"}


@pytest.mark.parametrize(
    ("shape", "more"), [("ragged", {}), ("packed", TIED), ("weighted", {"optimizer": "lion", "precision": "bf16"})]
)
def test_sharded_ranks_train_evaluate_and_resume(
    tmp_path: Path, tokenizer_folder: Path, shape: str, more: dict[str, Any]
) -> None:
    training = {"model": TINY, "batch_size": 2, "steps": 6, "learning_rate": 0.01, "eval_steps": 3, "save_steps": 3}
    dataset = {"name": f"{shape}.jsonl", "val_split": 0.2}
    config, store = built(tmp_path, shape, tokenizer_folder, rows=100, dataset=dataset), tmp_path / "store"
    declared = yaml.safe_load(config.read_text())
    for ranks in (1, 2):
        run = training | {"strategy": "fsdp", "gradient_accumulation_steps": 2 // ranks, **more}
        run["output_dir"] = str(tmp_path / f"{ranks}")
        config.write_text(yaml.safe_dump(declared | {"training": run}), encoding="utf-8")
        if ranks == 1:
            train(load_config(config), str(store))
    arguments = ["support.sharded_training", str(config), str(store), str(tmp_path / "2"), "6"]
    finish(arguments, tmp_path / "2.txt", ranks=2)
    one, two = ([*read_log(tmp_path / f"{ranks}" / "log.jsonl")] for ranks in (1, 2))
    for name, count in (("loss", 6), ("eval_loss", 3)):
        values = [[line[name] for line in lines if name in line] for lines in (one, two)]
        assert len(values[0]) == count
        assert values[1] == pytest.approx(values[0], rel=2e-3 if "precision" in more else 2e-5)
    first = [read_log(tmp_path / f"{ranks}" / "samples.jsonl")[0] for ranks in (1, 2)]
    assert first[0] == first[1] and first[0]["step"] == 0
    for rank in (0, 1):
        held = json.loads((tmp_path / f"2-{rank}.json").read_text())
        assert [name for name in held["wrapped"] if "DecoderLayer" in name] == ["FSDPLlamaDecoderLayer"] * 2
        assert len(held["optimizer"]) >= len(held["parameters"]) > 15
        for each in (*held["parameters"], *held["optimizer"]):
            assert (each["class"], each["placements"]) == ("DTensor", ["S(0)"])
            assert abs(2 * each["part"][0] - each["whole"][0]) <= 1
    before = tmp_path / "2-before"
    assert losses(before / "log.jsonl") == losses(tmp_path / "2" / "log.jsonl")
    weights = [folder / "model" / "model.safetensors" for folder in (before, tmp_path / "2")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
