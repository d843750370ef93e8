"""Two ranks train as one rank that accumulates two batches; sharded ones hold a part of everything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from support.trained_models import SHAPES, TINY, built
from support.training_runs import finish, losses
from tokenloom.trainer.json_lines import read_log


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


@pytest.mark.parametrize(
    ("shape", "more"),
    [*((shape, {}) for shape in SHAPES), ("ragged", {"loss": "fused_linear_cross_entropy", "optimizer": "lion"})],
)
def test_sharded_ranks_train_evaluate_and_resume(
    tmp_path: Path, tokenizer_folder: Path, shape: str, more: dict[str, str]
) -> None:
    training = {"model": TINY, "batch_size": 2, "steps": 6, "learning_rate": 0.01, "logging_steps": 1, **more}
    training |= {"eval_steps": 3, "save_steps": 3, "strategy": "fsdp"}
    dataset = {"name": f"{shape}.jsonl", "val_split": 0.2}
    config = built(tmp_path, shape, tokenizer_folder, rows=100, dataset=dataset)
    declared = yaml.safe_load(config.read_text())

    def run(name: str, ranks: int, *more: str) -> Path:
        settings = training | {"output_dir": str(tmp_path / name), "gradient_accumulation_steps": 2 // ranks}
        config.write_text(yaml.safe_dump(declared | {"training": settings}), encoding="utf-8")
        arguments = ["support.sharded_training", str(config), str(tmp_path / "store"), str(tmp_path / name), *more]
        finish(arguments, tmp_path / f"{name}.txt", ranks)
        return tmp_path / name

    one, two = run("one", 1), run("two", 2)
    for folder, name in ((folder, name) for folder in (one, two) for name in ("loss", "eval_loss")):
        values = {each: [line[name] for line in read_log(each / "log.jsonl") if name in line] for each in (one, folder)}
        assert len(values[one]) == (6 if name == "loss" else 3)
        assert values[folder] == pytest.approx(values[one], rel=2e-5)
    assert read_log(one / "samples.jsonl")[0] == read_log(two / "samples.jsonl")[0]
    for rank in (0, 1):
        held = json.loads((tmp_path / f"two-{rank}.json").read_text())
        assert [name for name in held["wrapped"] if "DecoderLayer" in name] == ["FSDPLlamaDecoderLayer"] * 2
        everything = [*held["parameters"].values(), *(each for state in held["optimizer"] for each in state.values())]
        assert len(everything) >= 2 * len(held["parameters"]) > 20
        for each in everything:
            assert each["class"] == "DTensor" and each["placements"] == ["S(0)"], each
            assert abs(2 * each["part"][0] - each["whole"][0]) <= 1
    last = losses(two / "log.jsonl")
    weights = (two / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(two / "checkpoint-6")
    shutil.rmtree(two / "model")
    run("two", 2, "resume")
    assert losses(two / "log.jsonl") == last
    assert (two / "model" / "model.safetensors").read_bytes() == weights
