"""A command whose output nobody reads, or that cannot be written, ends quietly: no traceback, no loss in silence."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.datasets_on_disk import write_dataset
from support.processes import Ended, run
from support.soak import some, sweep
from tokenloom.cli import main
from tokenloom.cli.main import UNREAD

LIGHT = ["--version", "build --help", "schema", "templates chatml", "inspect", "nosuch"]
STORED = [
    *("build small.yaml --store st", "build small.yaml --store st --json", "explain small.yaml --store st"),
    *("versions small --store st", "verify --store st", "diff small small --store st", "gc --store st"),
    *("preview small.yaml --store st", "push small.yaml --dry-run --store st", "pin small --as run --store st"),
    *(
        "inspect small.jsonl --out new.yaml --force",
        "check small.yaml",
        "export small.yaml out --to parquet --store st",
    ),
]
ENDS = {"| true": (UNREAD, ""), ">&-": (1, "Bad file descriptor"), ">/dev/full": (1, "No space left on device")}
"""How stdout ends: exit code, and what is said."""


@pytest.fixture
def bash(tmp_path: Path) -> Callable[..., Ended]:
    """Run a command with bash, which returns the exit code of `tokenloom`."""

    def ended(command: str, redirected: str, *prefix: str) -> Ended:
        line = f"{shlex.join([*prefix, sys.executable, '-m', 'tokenloom'])} {command} {redirected}"
        return run(["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], cwd=tmp_path)

    return ended


def check(ended: Ended, redirected: str) -> None:
    code, said = ENDS[redirected]
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
    *_, last = ["", *ended.stderr.splitlines()]
    assert last.startswith("error: ") and last.endswith(said) if said else "error:" not in last


@pytest.mark.parametrize("redirected", ENDS)
@pytest.mark.parametrize("command", some(LIGHT[:4], 2))
@pytest.mark.parametrize("buffered", some(["", "1"], 2))
def test_output_that_is_not_written(bash: Callable[..., Ended], command: str, redirected: str, buffered: str) -> None:
    check(bash(command, redirected, "env", f"PYTHONUNBUFFERED={buffered}"), redirected)


def test_a_wrong_command_keeps_its_exit_code(bash: Callable[..., Ended]) -> None:
    assert [bash("nosuch", redirected).returncode for redirected in ENDS] == [2, 2, 2]


def test_files_do_not_get_the_number_of_a_closed_stream(tmp_path: Path, bash: Callable[..., Ended]) -> None:
    """What a command prints never goes into a file that it writes; a closed stderr is no loss of a result."""
    write_dataset(tmp_path, 20)
    assert bash("inspect small.jsonl --out new.yaml --store st", ">&- 2>&- <&-").returncode == 1
    ended = bash("check small.yaml --json", "2>&-")
    assert ended.returncode == 0 and ended.stdout.startswith(("{", "["))
    for path in tmp_path.rglob("*.*"):
        assert path.is_dir() or b"error:" not in path.read_bytes()


@sweep
@pytest.mark.parametrize("redirected", ENDS)
@pytest.mark.parametrize("command", STORED)
def test_every_command(tmp_path: Path, bash: Callable[..., Ended], command: str, redirected: str) -> None:
    path = write_dataset(tmp_path, 20)
    assert main(["build", str(path), "--store", str(tmp_path / "st")]) == 0
    check(bash(command, redirected), redirected)
