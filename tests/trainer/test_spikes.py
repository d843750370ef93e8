"""A loss spike is traced to the raw rows of its batches, over epochs, mixtures, ranks and interruptions."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from support.soak import machine
from support.tiny_training import TINY, built, tiny_model, trainer_on
from support.training_runs import finish, finish_here, losses
from tokenloom import DataPipeline
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.trainer.log import SpikeTrace, mean_by_row, read_log

pytestmark = machine("trainer")


def noise(draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_letters + string.digits, k=60))


def planted(config: Path, rows: int, count: int = 50) -> set[int]:
    """Replace the answers of some rows by noise and the others by one sentence; return the lines of the former."""
    source, draw = config.with_suffix(".jsonl"), random.Random(5)
    bad = set(draw.sample(range(rows), count))
    lines = [{"q": f"question {row}", "a": noise(draw) if row in bad else "the answer is yes"} for row in range(rows)]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return {row + 1 for row in bad}


@pytest.mark.parametrize(("packing", "count"), [("none", 50), ("best_fit", 12)])
def test_planted_rows_are_named(
    tmp_path: Path, tokenizer_folder: Path, packing: str, count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    rows, training = 700, {"model": {**TINY, "hidden_size": 32}, "learning_rate": 0.01, "epochs": 2, "batch_size": 4}
    if packing != "none":
        training |= {"batch_size": 1, "epochs": 3}
    training |= {"output_dir": str(tmp_path / "run"), "logging_steps": 7, "save_steps": 10**6}
    config = built(tmp_path, "ragged", tokenizer_folder, rows=rows, keep="all", training=training)
    bad = planted(config, rows, count)
    if packing != "none":
        declared = yaml.safe_load(config.read_text())
        config.write_text(yaml.safe_dump(declared | {"length": {"packing": packing}}), encoding="utf-8")
    finish_here(config, tmp_path / "store")
    spikes = read_log(tmp_path / "run" / "spikes.jsonl")
    in_spikes = {_number(place) for spike in spikes for row in spike["rows"] for place in row["places"]}
    assert bad <= in_spikes
    assert "rows with the highest loss: ragged.jsonl:" in "".join(capfd.readouterr())
    log = {line["step"]: line["loss"] for line in losses(tmp_path / "run" / "log.jsonl")}
    for spike in spikes:
        assert spike["loss"] == log[spike["step"]] > spike["usual"]
        values = [row["loss"] for row in spike["rows"]]
        assert values == sorted(values, reverse=True)
        if spike["loss"] > 1:  # a rare number in a question is a small spike of its own
            assert bad & {_number(place) for place in spike["rows"][0]["places"]}, spike  # the first one is to blame


def _number(place: str) -> int:
    return int(place.rpartition(":")[2])


def test_a_resumed_run_has_the_spikes_of_an_undisturbed_one(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows, training = 300, {"model": {**TINY, "hidden_size": 32}, "learning_rate": 0.01, "batch_size": 4, "steps": 150}
    found = []
    for run in ("whole", "parts"):
        settings = training | {"output_dir": str(tmp_path / run), "save_steps": 40, "logging_steps": 9}
        config = built(tmp_path, "ragged", tokenizer_folder, rows=rows, keep="all", training=settings)
        planted(config, rows)
        for part in ({},) if run == "whole" else ({"steps": 90}, {"resume": True}):
            finish_here(config, tmp_path / "store", **part)
        found.append(read_log(tmp_path / run / "spikes.jsonl"))
    assert len(found[0]) > 5
    # the schedules of the two runs differ until step 90, and so do their losses a little; the rows are the same
    names = [{spike["step"]: sorted(row["places"][0] for row in spike["rows"]) for spike in run} for run in found]
    common = names[0].keys() & names[1].keys()
    assert len(common) > 3 and all(names[0][step] == names[1][step] for step in common)


def test_ranks_write_the_rows_of_all_ranks(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows, training = 300, {"model": {**TINY, "hidden_size": 32}, "learning_rate": 0.01, "batch_size": 2, "epochs": 1}
    training |= {"output_dir": str(tmp_path / "run"), "logging_steps": 5}
    config = built(tmp_path, "ragged", tokenizer_folder, rows=rows, keep="all", training=training)
    planted(config, rows, 10)
    store = tmp_path / "store"
    DataPipeline.from_config(config, store).unwrap().build().unwrap()
    finish(["tokenloom.trainer", str(config), "--store", str(store)], tmp_path / "printed.txt", ranks=2)
    loader = TokenLoader(open_dataset("ragged", store=store), 2, seed=0, rank=0, world_size=2)
    spikes = read_log(tmp_path / "run" / "spikes.jsonl")
    assert spikes
    for spike in spikes:
        expected = {(rank, row.row) for rank in (0, 1) for row in loader.trace(spike["step"] - 1, rank)}
        assert {(row["rank"], row["row"]) for row in spike["rows"]} == expected


def spikes_of(values: list[float], folder: Path, dataset: Any, threshold: float = 6.0) -> list[int]:
    trace = SpikeTrace(TokenLoader(dataset, 2), folder / "spikes.jsonl", threshold)
    trace.start([], 0, write=True)
    return [step for step, value in enumerate(values) if trace.check(step, value, [], [], write=True) is not None]


def test_a_spike_is_far_above_the_steps_before(tmp_path: Path, tokenizer_folder: Path) -> None:
    built(tmp_path, "ragged", tokenizer_folder)
    dataset = open_dataset("ragged", store=tmp_path / "store")
    quiet = (2 + 0.1 * np.random.default_rng(0).standard_normal(200)).tolist()
    assert spikes_of(quiet, tmp_path, dataset) == []
    assert spikes_of([*quiet[:10], 9.0, *quiet], tmp_path, dataset) == []  # too early to know
    assert spikes_of([*quiet, 3.0, *quiet, 1.0, *quiet], tmp_path, dataset) == [200]
    assert spikes_of([*quiet, 3.0], tmp_path, dataset, threshold=0) == []
    nan = float("nan")
    assert spikes_of([*quiet, nan, nan, nan], tmp_path, dataset) == [200]
    assert spikes_of([*np.linspace(11, 2, 300)], tmp_path, dataset) == []
    assert len(spikes_of([*quiet, *[8.0] * 500], tmp_path, dataset)) <= 40  # a new level becomes the usual one


def test_losses_of_rows_are_means_over_their_tokens() -> None:
    where = torch.tensor([[True, True, False], [False, False, False], [False, True, False]])
    found = mean_by_row(torch.tensor([1.0, 2.0, 5.0]), where)
    assert found is not None and found.tolist() == [1.5, 0.0, 5.0]
    assert mean_by_row(torch.tensor([8.0]), where) is None


def test_rates_are_logged_and_mfu_where_the_peak_is_known(tmp_path: Path, tokenizer_folder: Path) -> None:
    built(tmp_path, "ragged", tokenizer_folder)
    dataset = open_dataset("ragged", store=tmp_path / "store")
    for peak in (None, 0.001):
        model = tiny_model(dataset)
        trainer_on(dataset, tmp_path / f"{peak}", model, logging_steps=1, peak_tflops=peak).train()
        rates = [line for line in read_log(tmp_path / f"{peak}" / "log.jsonl") if "loss" not in line]
        assert len(rates) == 3 and all(rate["tokens_per_second"] > 0 for rate in rates)
        assert all(("mfu" in rate) == (peak is not None) for rate in rates)
