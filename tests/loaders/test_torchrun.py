"""A killed run of torchrun resumes from its last checkpoint as if it had not been interrupted."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.loaded_rows import settings, write_rows
from support.paths import EXAMPLES
from support.processes import DEADLINE, Process, finish, started
from support.soak import machine
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("ranks")

SCRIPT = EXAMPLES / "train.py"
ROWS, GLOBAL_BATCH, EVERY = 133, 8, 4
STEPS_OF_AN_EPOCH = -(-ROWS // GLOBAL_BATCH)

Line = dict[str, Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    path = tmp_path_factory.mktemp("torchrun")
    write_rows(path / "rows.jsonl", ROWS)
    config = write_config(path, "data", dataset={"name": "rows.jsonl"}, **settings(tokenizer_folder))
    list(Build(PipelineConfig.from_file(config), ArtifactStore(path / "store")).run_all())
    return path / "store"


@contextmanager
def training(store: Path, folder: Path, ranks: int, steps: int) -> Iterator[Process]:
    """Start the training script on a number of ranks, and kill it when the block ends.

    Checkpoints and `metrics.jsonl` go to the folder.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    options = ["--checkpoint-every", EVERY, "--batch-size", GLOBAL_BATCH, "--steps", steps, "--store", store]
    places = ["--checkpoints", folder, "--metrics", folder / "metrics.jsonl"]
    command = [sys.executable, *torchrun, SCRIPT, "data", *options, *places]
    folder.mkdir(exist_ok=True)
    with started(command, log=folder / "printed", env=os.environ | {"OMP_NUM_THREADS": "1"}) as run:
        yield run


def lines(folder: Path) -> list[Line]:
    path = folder / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def trained(store: Path, folder: Path, ranks: int, steps: int) -> list[Line]:
    with training(store, folder, ranks, steps) as run:
        done = finish(run)
        assert done.returncode == 0, done.stdout
    return lines(folder)


def trained_until_killed(store: Path, folder: Path) -> list[Line]:
    """Run 2 ranks without end, and kill them after at least 10 steps."""
    with training(store, folder, 2, 10**6) as run:
        deadline = time.monotonic() + DEADLINE
        while len(lines(folder)) < 10:
            assert run.poll() is None and time.monotonic() < deadline, (folder / "printed").read_text()
            time.sleep(0.005)
    return lines(folder)


def test_a_killed_run_goes_on_from_its_last_checkpoint(store: Path, tmp_path: Path) -> None:
    killed = trained_until_killed(store, tmp_path / "killed")
    last = max(int(path.parent.name.removeprefix("step-")) for path in tmp_path.glob("killed/step-*/.metadata"))
    assert last % STEPS_OF_AN_EPOCH and last <= len(killed)
    steps = last + STEPS_OF_AN_EPOCH
    undisturbed = trained(store, tmp_path / "undisturbed", 2, steps)

    assert [line["step"] for line in undisturbed] == list(range(1, steps + 1))
    assert len({line["digest"] for line in undisturbed}) == steps
    assert undisturbed[-1]["loss"] < undisturbed[0]["loss"] - 1
    for epoch in range(steps // STEPS_OF_AN_EPOCH):
        assert sum(line["rows"] for line in undisturbed if line["epoch"] == epoch) == ROWS
    assert killed[:steps] == undisturbed[: len(killed)]

    for ranks in (2, 1):
        folder = tmp_path / f"resumed on {ranks}"
        shutil.copytree(tmp_path / "killed", folder, ignore=shutil.ignore_patterns("metrics.jsonl"))
        half = shutil.copytree(sorted(folder.glob("step-*"))[0], folder / "step-99999999", dirs_exist_ok=True)
        (half / ".metadata").unlink(missing_ok=True)
        resumed = trained(store, folder, ranks, steps)
        if ranks == 2:
            assert resumed == undisturbed[last:]
        for line, right in zip(resumed, undisturbed[last:], strict=True):
            assert {**line, "loss": 0} == {**right, "loss": 0}
            assert line["loss"] == pytest.approx(right["loss"], rel=0.01)
