"""Runs of `tokenloom train` and of torchrun in processes of their own, which can be killed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.processes import DEADLINE, run, started
from tokenloom import DataPipeline
from tokenloom.config.dataset import load_config
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log


def finish(arguments: list[str], printed: Path, ranks: int = 1, seconds: float | None = None) -> None:
    """Run `python -m ARGUMENTS` to the end, on some ranks.

    Args:
        seconds: the deadline; by default `DEADLINE` per rank: each imports the libraries, and they share the cores.
    """
    seconds = ranks * DEADLINE if seconds is None else seconds
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
    command = [sys.executable, "-m", *torchrun, *arguments]
    run(command, seconds=seconds, check=True, log=printed, env=_environment())


def kill_after(lines: int, arguments: list[str], log: Path, printed: Path) -> None:
    """Start a run and kill it once its log has so many lines."""
    with started([sys.executable, "-m", *arguments], log=printed, env=_environment()) as process:
        deadline = time.monotonic() + DEADLINE
        while len(read_log(log)) < lines:
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < deadline, printed.read_text()
            time.sleep(0.002)  # a step takes a few milliseconds


def _environment() -> dict[str, str]:
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own}


def losses(log: Path) -> list[dict[str, Any]]:
    """Return the lines of the steps of a log."""
    return [line for line in read_log(log) if "loss" in line]


def finish_here(config: Path, store: Path, **options: Any) -> None:
    """Build and train as `tokenloom train` does, but in this process."""
    DataPipeline.from_config(config, store).unwrap().build().unwrap()
    train(load_config(config), str(store), **options)


def assert_two_ranks_train_as_one(pairs: Sequence[tuple[Path, Path]], printed: Path, steps: int) -> None:
    """Train the first config of each pair here, the second on two ranks, and compare the losses of all steps.

    The configs of a pair differ in their folder, and in that two ranks accumulate half as many batches. All are trained
    on the store beside them; the ranks train one config after the other in one launch.
    """
    for one, _ in pairs:
        train(load_config(one), str(one.parent / "store"))
    finish(["support.rank_training", *(str(two) for _, two in pairs)], printed, ranks=2)
    for pair in pairs:
        logs = [losses(_folder_of_run(config) / "log.jsonl") for config in pair]
        found = [[line["loss"] for line in log] for log in logs]
        assert len(set(found[0])) == steps, found[0]
        assert found[1] == pytest.approx(found[0], rel=2e-5), pair


def _folder_of_run(config: Path) -> Path:
    training = load_config(config).training
    assert training is not None and training.output_dir is not None
    return Path(training.output_dir)
