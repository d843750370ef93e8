"""Programs that tests start. Each has a deadline, and what it starts ends with it.

`run` runs one to its end. `started` is for one that is asked, signalled or killed meanwhile.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from support.soak import SOAK

DEADLINE = 600 if SOAK else 60
"""Seconds that tests wait for a process, on an idle machine; see `is_late`."""

SHOWN_OF_COMMAND, SHOWN_OF_OUTPUT = 200, 2000
"""Characters of each in messages."""

Ended = subprocess.CompletedProcess[str]


class Process(subprocess.Popen[str]):
    log: Path | None = None
    """The file that has its output, if it is not captured."""


def run(
    command: Sequence[object],
    *,
    seconds: float = DEADLINE,
    input: str | None = None,
    check: bool = False,
    log: Path | None = None,
    **options: Any,
) -> Ended:
    """Run a program to its end.

    Args:
        seconds: after which it is killed.
        input: what it reads from stdin, which is empty by default.
        check: fail if its exit status is not 0.
        log: where to append its output, instead of capturing it. Processes that outlive the program hold no pipe then.
        options: of `subprocess.Popen`; stdout and stderr are captured by default.

    Returns:
        Its exit status and output; with `log`, the content of that file is its stdout.

    Raises:
        AssertionError: it does not end in time, or fails the check; names the end of its output.
    """
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if log is None:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with started(command, log=log, **options) as process:
        done = finish(process, seconds, input)
        if check and done.returncode:
            printed = _end(done.stdout, done.stderr)
            raise AssertionError(f"{_named(process)} ended with status {done.returncode}; its last output: {printed}")
        return done


def run_together(commands: Sequence[Sequence[object]], *, seconds: float = DEADLINE, **options: Any) -> list[Ended]:
    """Run programs at the same time to their end, as `run` does."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        running = [stack.enter_context(started(command, **options)) for command in commands]
        return [finish(process, max(0.0, deadline - time.monotonic())) for process in running]


@contextmanager
def started(command: Sequence[object], *, log: Path | None = None, **options: Any) -> Iterator[Process]:
    """Start a program in a process group of its own. When the block ends, what still runs of the group is killed."""
    with ExitStack() as stack:
        if log is not None:
            file = stack.enter_context(log.open("ab"))
            options = {"stdout": file, "stderr": subprocess.STDOUT, **options}
        options.setdefault("stdin", subprocess.DEVNULL)
        process = Process([*map(str, command)], text=True, start_new_session=True, **options)
        process.log = log
    try:
        yield process
    finally:
        kill(process)
        process.wait(DEADLINE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):  # it did not read all of its input
                    stream.close()


def is_late(since: float, seconds: float) -> bool:
    """Whether a wait that began at `since`, of `time.monotonic`, has taken too long.

    On a machine with more work than cores, it may take as many times longer: a test must not fail because others run.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return time.monotonic() - since >= seconds * max(1.0, load)


def finish(process: Process, seconds: float = DEADLINE, input: str | None = None) -> Ended:
    """Wait until a program ends, as `run` does."""
    since, pause = time.monotonic(), seconds
    while True:
        try:
            out, err = process.communicate(input, pause)
            break
        except subprocess.TimeoutExpired:
            input, pause = None, 1.0  # it has been sent
            if is_late(since, seconds):
                _fail(process, seconds)
    return Ended(process.args, process.returncode, out or _logged(process), err or "")


def next_line(process: Process, seconds: float = DEADLINE) -> str:
    """Return the next line that a program prints, or "" at its end; kill it and fail at the deadline."""
    assert process.stdout is not None
    since, read, late = time.monotonic(), threading.Event(), threading.Event()

    def end() -> None:
        while not read.wait(min(seconds, 1.0)):
            if is_late(since, seconds):
                late.set()
                kill(process)
                return

    watcher = threading.Thread(target=end)
    watcher.start()
    try:
        line = process.stdout.readline()
    finally:
        read.set()
        watcher.join()
    if late.is_set():
        _fail(process, seconds, line)
    return line


def ask(process: Process, request: str, seconds: float = DEADLINE) -> str:
    """Send a line to a program, and return the next one that it prints, as `next_line` does; fail at its end, too."""
    assert process.stdin is not None
    process.stdin.write(f"{request}\n")
    process.stdin.flush()
    answer = next_line(process, seconds)
    if not answer:
        raise AssertionError(f"{_named(process)} ended without an answer")
    return answer


def kill(process: Process) -> None:
    """Kill a program, its group, and its descendants in other groups, of which none has when it has ended."""
    if process.poll() is None:
        for descendant in _descendants(process.pid):
            with suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):  # none is left; macOS refuses those that have ended
        os.killpg(process.pid, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    """The processes that a process has started, and theirs; none where there is no `/proc`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    found = [process]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


def _fail(process: Process, seconds: float, printed: str = "") -> NoReturn:
    kill(process)
    try:
        rest = process.communicate(timeout=1)
    except subprocess.TimeoutExpired as held:  # a process that is neither in its group nor its descendant has its pipes
        rest = held.stdout, held.stderr
    last = _end(printed, *rest, _logged(process))
    raise AssertionError(f"{_named(process)} did not end within {seconds:g} s; its last output: {last}")


def _logged(process: Process) -> str:
    return process.log.read_text(errors="replace") if process.log else ""


def _named(process: Process) -> str:
    command = shlex.join(map(str, process.args if isinstance(process.args, list) else [process.args]))
    return command if len(command) <= SHOWN_OF_COMMAND else f"{command[:SHOWN_OF_COMMAND]}…"


def _end(*printed: str | bytes | None) -> str:
    texts = [part.decode(errors="replace") if isinstance(part, bytes) else part for part in printed if part]
    return "\n".join(texts)[-SHOWN_OF_OUTPUT:].strip() or "none"
