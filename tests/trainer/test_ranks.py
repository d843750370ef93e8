"""Two ranks train as one rank that accumulates two batches; sharded ones hold a part of everything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.soak import machine
from support.tiny_training import SHAPES, TINY, built
from support.training_runs import assert_two_ranks_train_as_one, finish, losses
from tokenloom.config.dataset import load_config
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log

pytestmark = machine("ranks")

TRAINING = {"model": TINY, "batch_size": 2, "steps": 6, "learning_rate": 0.01}
SHARDED = {"strategy": "fsdp", "eval_steps": 3, "save_steps": 3}
TIED = {"model": {**TINY, "tie_word_embeddings": True}, "loss": "fused_linear_cross_entropy", "optimizer": "muon"}
MORE: dict[str, dict[str, Any]] = {"ragged": {}, "packed": TIED, "weighted": {"optimizer": "lion", "precision": "bf16"}}


def configs(folder: Path, tokenizer_folder: Path, shape: str, settings: dict[str, Any], **dataset: Any) -> list[Path]:
    """Build a dataset of a shape, and return the YAMLs that train on it with one rank and with two.

    `folder/SHAPE-RANKS` is the folder of a run. A second rank takes the place of a second batch that is accumulated.
    """
    built_from = built(folder, shape, tokenizer_folder, rows=100, dataset={"name": f"{shape}.jsonl", **dataset})
    declared = yaml.safe_load(built_from.read_text())
    paths = []
    for ranks in (1, 2):
        run = {"output_dir": str(folder / f"{shape}-{ranks}"), "gradient_accumulation_steps": 2 // ranks}
        paths.append(folder / f"{shape}-{ranks}.yaml")
        text = yaml.safe_dump({**declared, "name": shape, "training": {**settings, **run}})
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def test_two_ranks_have_the_losses_of_one_that_accumulates(tmp_path: Path, tokenizer_folder: Path) -> None:
    settings = {**TRAINING, "logging_steps": 1}
    pairs = [configs(tmp_path, tokenizer_folder, shape, settings) for shape in SHAPES]
    assert_two_ranks_train_as_one([(one, two) for one, two in pairs], tmp_path / "printed.txt", steps=6)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    folder, of_two = tmp_path_factory.mktemp("sharded"), []
    for shape in SHAPES:
        settings = {**TRAINING, **SHARDED, **MORE[shape]}
        one, two = configs(folder, tokenizer_folder, shape, settings, val_split=0.2)
        train(load_config(one), str(folder / "store"))
        of_two.append(str(two))
    finish(["support.rank_training", *of_two], folder / "printed.txt", ranks=2)
    return folder


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


def test_a_run_moves_between_whole_and_sharded_models(tmp_path: Path, tokenizer_folder: Path) -> None:
    settings = {**TRAINING, "steps": 9, "save_steps": 3, "weight_decay": 0.1, "logging_steps": 1}
    one, two = configs(tmp_path, tokenizer_folder, "ragged", settings)
    train(load_config(one), str(tmp_path / "store"))
    moved = tmp_path / "ragged-2"
    shutil.copytree(tmp_path / "ragged-1", moved)
    for name in ("model", "checkpoint-6", "checkpoint-9"):
        shutil.rmtree(moved / name)
    declared = yaml.safe_load(two.read_text())
    two.write_text(yaml.safe_dump(declared | {"training": declared["training"] | {"strategy": "fsdp"}}))
    arguments = ["tokenloom.trainer", str(two), "--store", str(tmp_path / "store"), "--resume"]
    finish(arguments, tmp_path / "printed.txt", ranks=2)
    for name in ("model", "checkpoint-9"):
        shutil.rmtree(moved / name)
    config = load_config(one)
    assert config.training is not None
    training = config.training.model_copy(update={"output_dir": str(moved)})
    train(config.model_copy(update={"training": training}), str(tmp_path / "store"), resume=True)
    found = [[line["loss"] for line in losses(tmp_path / run / "log.jsonl")] for run in ("ragged-1", "ragged-2")]
    assert found[1] == pytest.approx(found[0], rel=2e-5) and len(found[0]) == 9
    changed = [line["changed"]["ranks"] for line in read_log(moved / "log.jsonl") if "changed" in line]
    assert changed == [[1, 2], [2, 1]]
