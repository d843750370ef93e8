"""Runs the `tokenloom` command as a user would."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE
from unittest import mock

from support import processes
from support.processes import Ended, ask, started
from tokenloom.cli import main

TOKENLOOM = Path(sys.executable).parent / "tokenloom"


def run(*arguments: object, folder: Path, **environment: str) -> Ended:
    env = {**os.environ, **_variables(folder), **environment}
    return processes.run([TOKENLOOM, *arguments], cwd=folder, env=env)


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
        self._started = started([sys.executable, "-c", program], env=environment, stdin=PIPE, stdout=PIPE)

    def run(self, *arguments: str, folder: Path) -> Ended:
        return Ended(arguments, *json.loads(ask(self._server, json.dumps([arguments, str(folder)]))))

    def __enter__(self) -> CommandProcess:
        self._server = self._started.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.__exit__(None, None, None)


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
    return Ended(arguments, code, out.getvalue(), err.getvalue())


def _variables(folder: Path) -> dict[str, str]:
    return {"TOKENLOOM_STORE": str(folder / "store"), "COLUMNS": "100"}
