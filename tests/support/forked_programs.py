"""Runs Python programs in forks of one process, which has imported what is slow to import."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.paths import ROOT

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
        self._server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(
        self, program: str, folder: Path, environment: Mapping[str, str] = os.environ, seconds: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a folder.

        Raises:
            TimeoutError: it takes longer than `seconds`.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            files = [os.devnull, out.name, err.name]
            self._server.stdin.write(json.dumps([program, str(folder), dict(environment), files]) + "\n")
            self._server.stdin.flush()
            if not select.select([self._server.stdout], [], [], seconds)[0]:
                self._server.kill()
                raise TimeoutError(f"the program did not end within {seconds} s: {err.read()}")
            code = int(self._server.stdout.readline())
            return subprocess.CompletedProcess([], code, out.read(), err.read())

    def __enter__(self) -> ForkedPrograms:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=60)
