"""Two ranks train as one rank that accumulates two batches; sharded ones hold a part of everything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.trained_models import SHAPES, TINY, built
from support.training_runs import finish, losses
from tokenloom.config.dataset import load_config
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log

TRAINING = {"model": TINY, "batch_size": 2, "steps": 6, "learning_rate": 0.01}
SHARDED = {"strategy": "fsdp", "eval_steps": 3, "save_steps": 3}
TIED = {"model": {**TINY, "tie_word_embeddings": True}, "loss": "fused_linear_cross_entropy", "optimizer": "muon"}
MORE: dict[str, dict[str, Any]] = {"ragged": {}, "packed": TIED, "weighted": {"optimizer": "lion", "precision": "bf16"}}


def trained(folder: Path, tokenizer_folder: Path, training: Mapping[str, Mapping[str, Any]], **dataset: Any) -> Path:
    """Train on a dataset of each shape with one rank, here, and with two, which take one shape after the other.

    `folder/SHAPE-RANKS` is the folder of a run. A second rank takes the place of a second batch that is accumulated.
    """
    configs = []
    for shape, settings in training.items():
        source = {"name": f"{shape}.jsonl", **dataset}
        config = built(folder, shape, tokenizer_folder, rows=100, dataset=source)
        declared = yaml.safe_load(config.read_text())
        for ranks in (1, 2):
            run = {"output_dir": str(folder / f"{shape}-{ranks}"), "gradient_accumulation_steps": 2 // ranks}
            config.write_text(yaml.safe_dump(declared | {"training": {**settings, **run}}), encoding="utf-8")
            if ranks == 1:
                train(load_config(config), str(folder / "store"))
        configs.append(config)
    finish(["support.rank_training", *map(str, configs)], folder / "printed.txt", ranks=2)
    return folder


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    training = {shape: {**TRAINING, "logging_steps": 1} for shape in SHAPES}
    return trained(tmp_path_factory.mktemp("replicated"), tokenizer_folder, training)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    training = {shape: {**TRAINING, **SHARDED, **MORE[shape]} for shape in SHAPES}
    return trained(tmp_path_factory.mktemp("sharded"), tokenizer_folder, training, val_split=0.2)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_ranks_have_the_losses_of_one_that_accumulates(replicated: Path, shape: str) -> None:
    logs = [losses(replicated / f"{shape}-{ranks}" / "log.jsonl") for ranks in (1, 2)]
    one, two = ([line["loss"] for line in log] for log in logs)
    assert len(one) == 6 and two == pytest.approx(one, rel=2e-5)
    assert len(set(one)) == 6, one


@pytest.mark.parametrize("shape", SHAPES)
def test_sharded_ranks_train_evaluate_and_resume(sharded: Path, shape: str) -> None:
    runs = [sharded / f"{shape}-{ranks}" for ranks in (1, 2)]
    one, two = ([*read_log(run / "log.jsonl")] for run in runs)
    for name, count in (("loss", 6), ("eval_loss", 3)):
        values = [[line[name] for line in lines if name in line] for lines in (one, two)]
        assert len(values[0]) == count
        assert values[1] == pytest.approx(values[0], rel=2e-3 if "precision" in MORE[shape] else 2e-5)
    first = [read_log(run / "samples.jsonl")[0] for run in runs]
    assert first[0] == first[1] and first[0]["step"] == 0
    for rank in (0, 1):
        held = json.loads((sharded / f"{shape}-2-{rank}.json").read_text())
        assert [name for name in held["wrapped"] if "DecoderLayer" in name] == ["FSDPLlamaDecoderLayer"] * 2
        assert len(held["optimizer"]) >= len(held["parameters"]) > 15
        for each in (*held["parameters"], *held["optimizer"]):
            assert (each["class"], each["placements"]) == ("DTensor", ["S(0)"])
            assert abs(2 * each["part"][0] - each["whole"][0]) <= 1
    before = sharded / f"{shape}-2-before"
    assert losses(before / "log.jsonl") == losses(runs[1] / "log.jsonl")
    weights = [folder / "model" / "model.safetensors" for folder in (before, runs[1])]
    assert weights[0].read_bytes() == weights[1].read_bytes()
