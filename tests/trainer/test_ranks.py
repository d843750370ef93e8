"""Two ranks train as one rank that accumulates two batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.trained_models import SHAPES, TINY, built
from support.training_runs import finish, losses


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
