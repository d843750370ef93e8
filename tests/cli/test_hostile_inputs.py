"""Commands on hostile inputs of every kind: each ends with a verdict, within limits on memory and CPU time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from support.command_children import CommandChildren
from support.hostile_inputs import all_inputs, declarations, folders, paths, token_files
from support.hostile_inputs.hostile_input import MIB, HostileInput
from support.processes import DEADLINE
from support.small_tokenizers import byte_level
from support.soak import SOAK

CPU_SECONDS, MEMORY = 10.0, 1024 * MIB
SHORT = (paths, folders, declarations, token_files)
QUICK = {
    "custom template: 100,000 braces",
    "hub card: a merge bomb",
    "mapping: 10,000 placeholders",
    "mds: a million empty shards",
    "megatron: a pipe for the mask",
    "path: stars",
    "saved dataset: damaged rows",
    "special file: a FIFO",
    "yaml: a merge bomb",
}
"""Inputs of the short form, from modules whose inputs are made quickly."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the server forks, and counts its threads")


@pytest.fixture
def children(tmp_path: Path) -> Iterator[CommandChildren]:
    """The server that runs commands."""
    with CommandChildren(tmp_path, HF_HUB_OFFLINE="1") as server:
        yield server


def test_every_input_ends_with_a_verdict(tmp_path: Path, children: CommandChildren) -> None:
    tokenizer = byte_level().to_str()
    faults, count = [], 0
    for hostile in all_inputs() if SOAK else chain(*(module.inputs() for module in SHORT)):
        name = f"{hostile.kind}: {hostile.name}"
        if not SOAK and name not in QUICK:
            continue
        count += 1
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "tokenizer.json").write_text(tokenizer)
        hostile.prepare(folder)
        ended = children.run(hostile.command, folder)
        if fault := hostile.fault(ended, MEMORY, CPU_SECONDS):
            faults.append(f"{name}: {fault}")
        if (folder / "run").exists() or (folder / "data" / "run").exists():
            faults.append(f"{name}: ran code")
        shutil.rmtree(folder)
    assert count >= 300 if SOAK else count == len(QUICK)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("raise ValueError('x')", "traceback"),
        ("import time; time.sleep(60)", "hang"),
        ("held = bytearray(1200 << 20)", "MiB"),
        ("import sys; print('error: a', file=sys.stderr); sys.exit(7)", "exit code 7"),
        ("import sys; sys.exit(2)", "no message"),
    ],
)
def test_the_sweep_sees_what_it_looks_for(tmp_path: Path, children: CommandChildren, program: str, fault: str) -> None:
    hostile = HostileInput("", "", lambda folder: None)
    ended = children.run(["-c", program], tmp_path, seconds=3.0 if fault == "hang" else DEADLINE)
    assert fault in hostile.fault(ended, MEMORY, CPU_SECONDS)
