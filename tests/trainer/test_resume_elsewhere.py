"""A run goes on with other ranks and other batches: each row once, and schedule, evaluations and checkpoints at the
places in the data at which an undisturbed run has them.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.processes import DEADLINE, kill, started
from support.soak import SOAK, machine, sweep
from support.tiny_training import TINY, built
from support.traced_training import traced_train, trained_rows
from support.training_runs import finish, losses
from tokenloom.config.dataset import load_config
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log

pytestmark = machine("ranks")

ROWS = 101
MODEL = {**TINY, "num_hidden_layers": 1}
BASE: dict[str, Any] = {
    "model": MODEL,
    "learning_rate": 0.01,
    "save_steps": 1,
    "logging_steps": 1,
    "spike_threshold": 0,
}
CASES: dict[str, dict[str, Any]] = {
    "epoch": {"epochs": 1, "batch_size": 4},
    "epochs": {"epochs": 3, "batch_size": 4, "scheduler": "cosine", "warmup": 3},
    "accumulated": {"epochs": 2, "batch_size": 4, "gradient_accumulation_steps": 3},
    "fraction": {"epochs": 1.5, "batch_size": 4, "scheduler": "wsd", "decay": 0.3},
    "steps": {"steps": 30, "batch_size": 4},
    "budget": {"epochs": 2, "token_budget": 96},
}
OTHER = {"batch_size": [4, 8, 2, 4], "gradient_accumulation_steps": [3, 1, 2, 3]}
RANKS = (1, 2, 3, 1)


def configs(folder: Path, tokenizer_folder: Path, part: int, run: str = "run") -> list[Path]:
    """Write a YAML for each case, with the batches of a part of its run."""
    source = folder / "ragged.yaml"
    if not source.exists():
        built(folder, "ragged", tokenizer_folder, rows=ROWS, keep="all")
    declared = yaml.safe_load(source.read_text())
    paths = []
    for name, training in CASES.items():
        changed = {setting: values[part] for setting, values in OTHER.items() if setting in training}
        output = {"output_dir": str(folder / f"{run}-{name}")}
        paths.append(folder / f"{name}.yaml")
        text = yaml.safe_dump({**declared, "name": "ragged", "training": {**BASE, **training, **changed, **output}})
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def cut(run: Path, step: int) -> None:
    """Leave of a run what it has once its checkpoint of a step is written."""
    shutil.rmtree(run / "model", ignore_errors=True)
    for checkpoint in run.glob("checkpoint-*"):
        if int(checkpoint.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(checkpoint)


def factor(training: dict[str, Any], step: float, total: int) -> float:
    """Return the learning rate at a step of the undisturbed run, as a part of its maximum."""
    warmup, share = training.get("warmup", 0), 0.0
    if step < warmup:
        return step / warmup
    share = min((step - warmup) / (total - warmup), 1.0)
    if training.get("scheduler") == "cosine":
        return 0.5 * (1 + math.cos(math.pi * share))
    if training.get("scheduler") == "wsd":
        decay = math.ceil(training["decay"] * total)
        left = min(max(total - step, 0) / decay, 1.0)
        return 0.5 * (1 - math.cos(math.pi * left))
    return 1 - share


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """The runs of all cases, undisturbed, and on 1, 2, 3 and 1 ranks in turn, with other batches on each."""
    folder, draw = tmp_path_factory.mktemp("moved"), random.Random(7)
    for config in configs(folder, tokenizer_folder, 0, "whole"):
        traced_train(config, folder / "whole", 0)
    for part, ranks in enumerate(RANKS):
        paths = configs(folder, tokenizer_folder, part)
        if ranks == 1:
            for config in paths:
                traced_train(config, folder / "rows", part)
        else:
            arguments = ["support.traced_training", str(folder / "rows"), str(part), *map(str, paths)]
            finish(arguments, folder / f"{ranks}.txt", ranks=ranks)
        for name in CASES if part < len(RANKS) - 1 else ():
            begins = [line["step"] for line in read_log(folder / f"run-{name}" / "log.jsonl") if "changed" in line]
            cut(folder / f"run-{name}", max(begins, default=1) + draw.randrange(3))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_each_row_of_each_epoch_is_trained_once(moved: Path, name: str) -> None:
    whole, parts = (trained_rows(moved / folder, name) for folder in ("whole", "rows"))
    assert [*parts] == [*range(1, len(parts) + 1)] and all(parts.values()), "a step without data"
    counts = [Counter(row for rows in run.values() for row in rows) for run in (whole, parts)]
    epochs = CASES[name].get("epochs", 0)
    if epochs == int(epochs) and epochs:
        assert counts[0] == counts[1] and set(counts[1].values()) == {epochs} and len(counts[1]) == ROWS
    else:  # the last step is full
        assert max(counts[1].values()) - min(counts[1].values()) <= 1
        assert 0 <= counts[1].total() - counts[0].total() < max(len(rows) for rows in parts.values())
    run = moved / f"run-{name}"
    assert (run / "model" / "model.safetensors").is_file()
    assert [line["step"] for line in losses(run / "log.jsonl")] == [*parts]
    changed = [line for line in read_log(run / "log.jsonl") if "changed" in line]
    assert [line["changed"]["ranks"] for line in changed] == [[1, 2], [2, 3], [3, 1]]
    before = (run / "log.jsonl").read_bytes()
    train(load_config(moved / f"{name}.yaml"), str(moved / "store"), resume=True)  # it is finished
    assert (run / "log.jsonl").read_bytes() == before
    if name != "budget":
        assert all(len(line["changed"]["rows_per_step"]) == 2 for line in changed[:2])


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_is_where_it_would_be_undisturbed(moved: Path, name: str) -> None:
    whole, parts = (trained_rows(moved / folder, name) for folder in ("whole", "rows"))
    logs = [losses(moved / f"{run}-{name}" / "log.jsonl") for run in ("whole", "run")]
    training, total = CASES[name], len(whole)
    rates = [[line["learning_rate"] / 0.01 for line in log] for log in logs]
    assert rates[0] == pytest.approx([factor(training, step, total) for step in range(total)])
    read = 0
    for step, rate in enumerate(rates[1], 1):
        if "batch_size" in training:
            stride = training["batch_size"]
            epoch, position = divmod(read, ROWS)
            at = epoch * -(-ROWS // stride) + position / stride
            expected = factor(training, at / training.get("gradient_accumulation_steps", 1), total)
            assert rate == pytest.approx(expected, abs=1e-9), (step, read)
        else:  # between the rates of the steps of the undisturbed run that have read less and more
            done, passed = 0, 0
            while passed < total and done + len(whole[passed + 1]) <= read:
                passed, done = passed + 1, done + len(whole[passed + 1])
            assert factor(training, passed + 1, total) - 1e-9 <= rate <= factor(training, passed, total) + 1e-9, step
        read += len(parts[step])


def test_evaluations_and_checkpoints_are_at_the_same_places(tmp_path: Path, tokenizer_folder: Path) -> None:
    settings = {"epochs": 2, "save_steps": 5, "eval_steps": 4, "eval_samples": 0, "model": MODEL, "spike_threshold": 0}
    settings |= {"output_dir": str(tmp_path / "run"), "logging_steps": 7}
    dataset = {"name": "ragged.jsonl", "val_split": 0.2}
    config = built(tmp_path, "ragged", tokenizer_folder, rows=80, keep="all", dataset=dataset)
    declared = yaml.safe_load(config.read_text())

    def declare(batch: int) -> None:
        text = yaml.safe_dump(declared | {"training": settings | {"batch_size": batch}})
        config.write_text(text, encoding="utf-8")

    declare(4)
    traced_train(config, tmp_path / "rows", 0)
    rows = sum(map(len, trained_rows(tmp_path / "rows", "ragged").values())) // 2
    cut(tmp_path / "run", 10)
    declare(3)  # a step is three quarters of one
    traced_train(config, tmp_path / "rows", 1)
    parts = trained_rows(tmp_path / "rows", "ragged")
    places, read = {0: 0.0}, 0
    for step, found in parts.items():
        read += len(found)
        epoch, position = divmod(read, rows)
        places[step] = epoch * -(-rows // 4) + position / 4
    for interval, found in (
        (
            4,
            [line["step"] for line in read_log(tmp_path / "run" / "log.jsonl") if "eval_loss" in line and line["step"]],
        ),
        (5, sorted(int(path.name[11:]) for path in (tmp_path / "run").glob("checkpoint-*"))),
    ):
        due = [step for step in parts if places[step] // interval > places[step - 1] // interval]
        assert found == sorted({*due, len(parts)})


def _launch(config: Path, ranks: int, session: int, folder: Path) -> list[str]:
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
    return [sys.executable, "-m", *torchrun, "support.traced_training", str(folder), str(session), str(config)]


@pytest.mark.parametrize("kind", ["rows", pytest.param("budget", marks=sweep)])
def test_a_run_that_is_killed_and_moved_at_any_moment(tmp_path: Path, tokenizer_folder: Path, kind: str) -> None:
    kills = 40 if SOAK else 3
    rows, epochs = 700 if SOAK else 200, 2
    draw, config = random.Random(kind), built(tmp_path, "ragged", tokenizer_folder, rows=rows, keep="all")
    declared, run, traced = yaml.safe_load(config.read_text()), tmp_path / "run", tmp_path / "rows"
    settings = {**BASE, "epochs": epochs, "save_steps": 3, "output_dir": str(run)}
    settings |= {"model": {**MODEL, "attention_dropout": 0.1}}
    sizes = [(ranks, batch) for ranks, batch in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 4), (3, 2)) for _ in range(2)]

    def declare(batch: int) -> None:
        size = {"batch_size": batch} if kind == "rows" else {"token_budget": 96}
        config.write_text(yaml.safe_dump(declared | {"training": settings | size}), encoding="utf-8")

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    log, previous, before = run / "log.jsonl", None, list[dict[str, Any]]()
    for number in range(kills):
        size = sizes[number % len(sizes)]
        declare(size[1])
        begin, printed = len(losses(log)), tmp_path / f"{number}.txt"
        at = begin + draw.randint(1, 2 * epochs * rows // (2 * kills + 2) // (size[0] * size[1]) + 4)
        with started(_launch(config, size[0], number, traced), log=printed, env=environment) as process:
            deadline = time.monotonic() + size[0] * DEADLINE
            lines: list[dict[str, Any]] = []
            while process.poll() is None and (not lines or lines[-1]["step"] < at or lines == before):
                assert time.monotonic() < deadline, printed.read_text()
                time.sleep(0.002)
                lines = losses(log)
            assert process.poll() in (None, 0), printed.read_text()
            kill(process)
        if previous == size:
            assert_same_losses(before, losses(log))
        previous, before = size, losses(log)
    declare(sizes[kills % len(sizes)][1])
    finish([*_launch(config, 1, kills, traced)[2:]], tmp_path / "last.txt", seconds=3 * DEADLINE)
    parts = trained_rows(traced, "ragged")
    counts = Counter(row for found in parts.values() for row in found)
    assert set(counts.values()) == {epochs} and len(counts) == rows
    assert [line["step"] for line in losses(log)] == [*parts] and all(parts.values())
    assert (run / "model").is_dir()
    state = json.loads((run / f"checkpoint-{len(parts)}" / "trainer_state.json").read_text())
    assert state["global_step"] == state["max_steps"] == len(parts)
    rates = [line["learning_rate"] for line in losses(log)]
    assert rates == sorted(rates, reverse=True) and rates[0] == 0.01


def assert_same_losses(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Check that steps which were trained twice by the same ranks have the same losses."""
    first = {line["step"]: line for line in before}
    for line in after:
        if line["step"] in first:
            assert line == first[line["step"]]
