"""The script of docs/train/torchrun.md, as its commands start it: on one process, two processes, and two nodes."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from support.paths import QUICKSTART, ROOT
from support.processes import run_together
from support.soak import machine
from tokenloom import DataPipeline

pytestmark = machine("ranks")

LINE = re.compile(r"rank (\d) step (\d+) read (\w{8}), (\d+) trained")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("torchrun") / "store"
    DataPipeline.from_config(QUICKSTART, store=store).unwrap().build().unwrap()
    return store


def trained(folder: Path, store: Path, *commands: tuple[str, ...], steps: int = 15) -> list[tuple[int, int, str, int]]:
    """Run the script by commands at the same time; returns rank, step, digest and trained tokens of each line."""
    page = (ROOT / "docs" / "train" / "torchrun.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    folder.mkdir(exist_ok=True)
    (folder / "train_ddp.py").write_text(script.replace(", 15, 16", f", {steps}, 16"))
    environment = {**os.environ, "TOKENLOOM_STORE": str(store), "OMP_NUM_THREADS": "1"}
    ended = run_together([[*command, "train_ddp.py"] for command in commands], cwd=folder, env=environment)
    assert [done.returncode for done in ended] == [0] * len(ended), ended
    printed = "".join(done.stdout for done in ended)
    return sorted((int(rank), int(step), digest, int(tokens)) for rank, step, digest, tokens in LINE.findall(printed))


def test_two_nodes_share_each_global_batch_and_one_process_goes_on(tmp_path: Path, store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    node = ("1", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "x")
    alone = (sys.executable,)
    expected = trained(tmp_path / "alone", store, alone, steps=30)
    shared = trained(tmp_path / "nodes", store, (*TORCHRUN, *node), (*TORCHRUN, *node))
    then = trained(tmp_path / "nodes", store, alone)
    assert [(rank, step) for rank, step, _, _ in shared] == [(rank, step) for rank in (0, 1) for step in range(15)]
    assert len({digest for _, _, digest, _ in shared}) == 30
    assert [tokens for _, _, _, tokens in shared] == [tokens for _, _, _, tokens in expected[:15]] * 2
    assert [(digest, tokens) for _, _, digest, tokens in then] == [(digest, n) for _, _, digest, n in expected[15:]]
