"""Runs Python programs in forks of one process, which has imported what is slow to import."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE

from support.paths import ROOT
from support.processes import DEADLINE, SHOWN_OF_OUTPUT, Ended, ask, started

_SERVER = """
def next_program(modules):
    import importlib, json, os, sys
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        program, folder, environment, files = json.loads(line)
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        for number, path in enumerate(files):
            os.dup2(os.open(path, os.O_RDWR), number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        return program
    return ""


exec(next_program(MODULES))
"""


class ForkedPrograms:
    """Runs programs as `python -c` does, until the `with` block ends; none sees the names of another.

    Args:
        modules: what the process imports before it forks. They must start no threads, and read no environment variables
            that programs change.
    """

    def __init__(self, *modules: str):
        command = [sys.executable, "-c", _SERVER.replace("MODULES", repr(modules))]
        self._started = started(command, cwd=ROOT, stdin=PIPE, stdout=PIPE)

    def run(
        self, program: str, folder: Path, environment: Mapping[str, str] = os.environ, seconds: float = DEADLINE
    ) -> Ended:
        """Run a program in a folder.

        Raises:
            AssertionError: it does not end in time, counted from the start of the imports for the first one.
        """
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            files = [os.devnull, out.name, err.name]
            try:
                code = ask(self._server, json.dumps([program, str(folder), dict(environment), files]), seconds)
            except AssertionError as late:
                printed = f"{out.read()}\n{err.read()}"[-SHOWN_OF_OUTPUT:]
                raise AssertionError(f"{late}; the program printed: {printed}") from None
            return Ended([], int(code), out.read(), err.read())

    def __enter__(self) -> ForkedPrograms:
        self._server = self._started.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.__exit__(None, None, None)
