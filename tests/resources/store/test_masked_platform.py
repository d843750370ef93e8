"""A process without `os.sched_getaffinity` and `fcntl`, as on Windows: builds, gc, exports and loaders work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.builds import build
from support.datasets_on_disk import write_dataset
from support.masked_platform import python_path
from support.processes import run
from tokenloom import open_dataset

_PROGRAM = """
import json, os, sys
assert not hasattr(os, "sched_getaffinity") and sys.modules["fcntl"] is None
from tokenloom import open_dataset
from tokenloom.cli import main
from tokenloom.loaders import TokenLoader

config, store, folder = sys.argv[1:]
assert main(["build", config, "--store", store]) == 0
dataset = open_dataset("small", store=store)
batches = list(TokenLoader(dataset, batch_size=8))
assert main(["gc", "--store", store, "--keep", "1", "--older-than", "0s", "--delete"]) == 0
assert main(["verify", "--store", store]) == 0
assert main(["export", config, "--store", store, "--to", "parquet", folder]) == 0
print(json.dumps([len(batches), [dataset[row]["input_ids"].tolist() for row in range(len(dataset))]]))
"""


def test_builds_gc_exports_and_loaders_work(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 100)
    command = [sys.executable, "-c", _PROGRAM, config, tmp_path / "store", tmp_path / "export"]
    done = run(command, env={**os.environ, "PYTHONPATH": python_path()}, check=True)
    batches, rows = json.loads(done.stdout.splitlines()[-1])
    assert batches == -(-100 // 8)
    build(config, tmp_path / "expected")
    expected = open_dataset("small", store=tmp_path / "expected")
    assert rows == [expected[row]["input_ids"].tolist() for row in range(len(expected))]
    assert any((tmp_path / "export").iterdir())
