"""Runs of `tokenloom train` and of torchrun in processes of their own, which can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tokenloom import DataPipeline
from tokenloom.config.dataset import load_config
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log


def start(arguments: list[str], printed: Path, ranks: int = 1) -> subprocess.Popen[bytes]:
    """Start `python -m ARGUMENTS`, on some ranks."""
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment = os.environ | paths | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with printed.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *torchrun, *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
        )


def finish(arguments: list[str], printed: Path, ranks: int = 1, seconds: int = 300) -> None:
    """Run `python -m ARGUMENTS` to the end."""
    run = start(arguments, printed, ranks)
    assert run.wait(seconds) == 0, printed.read_text()


def kill_after(lines: int, arguments: list[str], log: Path, printed: Path) -> None:
    """Start a run and kill it once its log has so many lines."""
    run = start(arguments, printed)
    deadline = time.monotonic() + 300
    while len(read_log(log)) < lines:
        assert run.poll() is None, printed.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    run.kill()
    run.wait(60)


def losses(log: Path) -> list[dict[str, Any]]:
    """Return the lines of the steps of a log."""
    return [line for line in read_log(log) if "loss" in line]


def finish_here(config: Path, store: Path, **options: Any) -> None:
    """Build and train as `tokenloom train` does, but in this process."""
    DataPipeline.from_config(config, store).unwrap().build().unwrap()
    train(load_config(config), str(store), **options)
