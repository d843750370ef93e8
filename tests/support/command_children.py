"""Runs `tokenloom` commands in processes of their own, and reports how each ended and what it took.

A server imports the package once and forks a process per command, before any pool of threads exists. Run as a script,
which finds no other module of this folder: one request per line of stdin, one outcome per line of stdout, both as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

ADDRESS_SPACE = 6 << 30
"""Most address space of a process in bytes: far more than any command needs, less than would harm the machine."""
SHOWN = 1 << 16
ALONE = {"jemalloc_bg_thd"}
"""Threads that a fork does not need: jemalloc stops its own before a fork and starts it again."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        code: the exit status, or -1 if a signal ended the process.
        signal: the number of that signal, or 0.
        late: whether it was killed because it had not ended in time.
        cpu: CPU seconds of the process and of the workers that it waited for, without imports.
        peak: the largest resident memory of one of these processes in bytes.
        out, err: the start of its output.
    """

    code: int
    signal: int
    late: bool
    cpu: float
    peak: int
    out: str
    err: str


class CommandChildren:
    """The server.

    Args:
        folder: takes the output of the running command.
        variables: more environment variables of the commands.
    """

    def __init__(self, folder: Path, **variables: str):
        given = {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "default", "RUST_BACKTRACE": "0", **variables}
        from support.processes import started

        self._folder = str(folder)
        self._started = started([sys.executable, __file__], stdin=PIPE, stdout=PIPE, env={**os.environ, **given})

    def run(self, arguments: Sequence[str], cwd: Path, seconds: float | None = None) -> Ended:
        """Run `tokenloom` with the arguments in a folder, or Python with `-c`.

        Args:
            seconds: until the server kills it; `processes.DEADLINE` by default.
        """
        from support.processes import DEADLINE, ask

        seconds = DEADLINE if seconds is None else seconds
        request = json.dumps([list(arguments), str(cwd), self._folder, seconds])
        return Ended(**json.loads(ask(self._server, request, seconds + DEADLINE)))

    def __enter__(self) -> CommandChildren:
        self._server = self._started.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.__exit__(None, None, None)


def _serve() -> None:
    import tokenizers  # noqa: F401

    found = set(_threads())
    assert found <= ALONE, f"a fork would lose threads: {found}"
    for line in sys.stdin:
        print(json.dumps(asdict(_ended(*json.loads(line)))), flush=True)


def _threads() -> Iterator[str]:
    """Yield the names of the other threads of this process."""
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != os.getpid():
            yield (task / "comm").read_text().strip()


def _ended(arguments: list[str], cwd: str, folder: str, seconds: float) -> Ended:
    paths = [os.path.join(folder, name) for name in ("out", "err")]  # noqa: PTH118
    child = os.fork()
    if not child:
        _command(arguments, cwd, paths)
    late = threading.Event()

    def end() -> None:
        late.set()
        os.killpg(child, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    _, status, usage = os.wait4(child, 0)
    timer.cancel()
    timer.join()
    with contextlib.suppress(ProcessLookupError):  # nothing that the command started outlives it
        os.killpg(child, signal.SIGKILL)
    out, err = (Path(path).read_bytes()[:SHOWN].decode(errors="replace") for path in paths)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    code = -1 if killed else os.WEXITSTATUS(status)
    cpu = usage.ru_utime + usage.ru_stime
    return Ended(code, killed, late.is_set(), round(cpu, 2), usage.ru_maxrss * 1024, out, err)


def _command(arguments: list[str], cwd: str, paths: list[str]) -> Any:
    """Become the command; never returns."""
    code = 99
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        for number, path in zip((1, 2), paths, strict=True):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(cwd)
        sys.argv = ["tokenloom", *arguments]
        from tokenloom.cli.main import main

        try:
            if arguments[0] == "-c":
                exec(arguments[1], {})
            code = main(arguments) if arguments[0] != "-c" else 0
        except SystemExit as error:  # argparse
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        _join_threads()
        os._exit(code)


def _join_threads() -> None:
    """Wait for threads as the interpreter's end does: one that never ends is a hang of the command."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


if __name__ == "__main__":
    _serve()
