"""Each benchmark runs; their sizes here are too small to measure anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.processes import run
from support.soak import sweep

FOLDER = Path(__file__).parents[1] / "benchmarks"
SMALL = {
    "build.py": "--rows 400 --runs 1",
    "collation.py": "--rows 400 --runs 1",
    "engines.py": "--chunks 40 --runs 1",
    "far_reading.py": "--chunks 8 --runs 1 --milliseconds 1",
    "far_store.py": "--rows 400 --runs 1 --milliseconds 1",
    "incremental.py": "--rows 400",
    "order.py": "--batches 50 --runs 1",
    "packing.py": "--rows 400 --runs 1",
    "prompts.py": "--rows 400 --runs 1 thinking.jinja",
    "raw.py": "--rows 400 --edits 2",
    "readers.py": "--megabytes 40 --rate 200 --milliseconds 1 --runs 1",
    "reading.py": "--tokens 3000000 --runs 1",
    "resume.py": "--rows 20000 --runs 1",
    "step.py": "--tokens 3000000 --runs 1 --steps 5 --milliseconds 1",
    "tokens.py": "--rows 400 --runs 1",
    "training.py": "--tokens 3000000 --runs 1 --steps 5 --milliseconds 1",
    "tree_training.py": "--rows 4 --runs 1 --hidden 16 --layers 1",
}
SCALE = (
    "--chunks 3000 --objects 8 --rows 20 --runs 1",
    "--simulated --ranks 16 --places 3",
    "--plan --rows 2000 --nodes 2 --cores 4 --ranks 16 1000 --places 1",
)
"""Arguments; `loading.py` runs peers, which the development environment does not have."""


@sweep
@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize(("script", "arguments"), [*SMALL.items(), *(("scale.py", mode) for mode in SCALE)])
def test_a_benchmark_runs(script: str, arguments: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent)}
    assert run([sys.executable, FOLDER / script, *arguments.split()], cwd=FOLDER, env=environment, check=True).stdout
