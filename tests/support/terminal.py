"""Runs the `tokenloom` command as a user would."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from tokenloom.cli import main

TOKENLOOM = Path(sys.executable).parent / "tokenloom"

Ended = subprocess.CompletedProcess[str]


def run(*arguments: object, folder: Path, **environment: str) -> Ended:
    command = [str(TOKENLOOM), *map(str, arguments)]
    env = {**os.environ, **_variables(folder), **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def run_here(*arguments: object, folder: Path, **environment: str) -> Ended:
    """Run a command in this process, which saves the imports: for what a command does, not for how it starts."""
    with mock.patch.dict(os.environ, {**_variables(folder), **environment}):
        return _ended(list(map(str, arguments)), folder)


class CommandProcess:
    """One process that runs commands one after the other, until the `with` block ends.

    Args:
        environment: all environment variables of the process, which libraries read when they are imported.
    """

    def __init__(self, environment: Mapping[str, str]):
        program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        program += "from support.terminal import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, folder: Path) -> Ended:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, str(folder)]) + "\n")
        self._process.stdin.flush()
        return subprocess.CompletedProcess(arguments, *json.loads(self._process.stdout.readline()))

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


def serve() -> None:
    """Run the commands of stdin, a line of JSON each, and print how each ended."""
    for line in sys.stdin:
        arguments, folder = json.loads(line)
        done = _ended(arguments, Path(folder))
        print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)


def _ended(arguments: list[str], folder: Path) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as ended:  # of argparse, for a wrong option
            code = ended.code if isinstance(ended.code, int) else 1
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def _variables(folder: Path) -> dict[str, str]:
    return {"TOKENLOOM_STORE": str(folder / "store"), "COLUMNS": "100"}
