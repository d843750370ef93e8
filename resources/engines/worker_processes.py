"""Worker processes that run a pure function, for work that holds the GIL.

Workers are plain child processes that exchange pickles with this process through pipes; tables are pickled as Arrow
IPC. They do not import the program's main module, so scripts need no `if __name__ == "__main__"`. They inherit no
state, and exit when the pipe closes, so no worker outlives its parent, even one that is killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, BinaryIO

import pyarrow as pa

from tokenloom.errors import DeadlineError

START_AFTER_SECONDS = 1.0
"""Seconds of work done in this process before workers are started: about the cost of starting them."""

_START = "import sys; sys.path[:] = {!r}; from tokenloom.resources.engines.worker_processes import serve; serve()"
_READY = "ready"
HANG_SECONDS = 300
"""CPU seconds after which a worker is killed in which no second Python thread could run."""


class WorkerProcesses:
    """A callable that computes `function` in worker processes.

    Workers are started once the work exceeds `START_AFTER_SECONDS`; until they are ready, the calling thread computes.
    Thread-safe. Raises what `function` raises, and `DeadlineError` if a call hangs.

    Args:
        function: pure and picklable, as are its arguments and results.
        count: number of worker processes.
    """

    def __init__(self, function: Callable[[Any], Any], count: int):
        self._function, self._count = function, count
        self._lock = Lock()
        self._seconds = 0.0
        self._starting: list[Thread] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._closed = False

    def __call__(self, argument: Any) -> Any:
        try:
            worker = self._idle.get_nowait()
        except Empty:
            return self._compute_here(argument)
        try:
            succeeded, result = worker.request(argument)
        except (EOFError, OSError, ValueError):  # the worker was killed or closed: compute again here
            worker.close()
            if self._closed:
                raise
            if worker.has_hung:
                raise DeadlineError(f"a worker process did nothing else for {HANG_SECONDS} s") from None
            return self._compute_here(argument)
        self._idle.put(worker)
        if not succeeded:
            raise result
        return result

    def close(self) -> None:
        """Kill all workers, including busy ones."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.close()

    def _compute_here(self, argument: Any) -> Any:
        started = time.perf_counter()
        result = self._function(argument)
        with self._lock:
            self._seconds += time.perf_counter() - started
            # short work ends before workers would be ready
            if self._seconds >= START_AFTER_SECONDS and not self._starting:
                self._starting = [Thread(target=self._start, daemon=True) for _ in range(self._count)]
                for thread in self._starting:
                    thread.start()
        return result

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                return
            worker = _Worker()
            self._workers.append(worker)
        with contextlib.suppress(EOFError, OSError, ValueError):  # a worker that fails to start is not used
            if worker.request(self._function) == (True, _READY):
                self._idle.put(worker)


class _Worker:
    def __init__(self) -> None:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to the parent only, which then closes the pipe
        )

    def request(self, message: Any) -> tuple[bool, Any]:
        """Send a message and return (True, result) or (False, exception raised); an EOFError, OSError or ValueError if
        the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _send(self._process.stdin, message)
        return _receive(self._process.stdout)

    @property
    def has_hung(self) -> bool:
        """Whether the process ended itself because of a call that held the GIL."""
        return self._process.returncode == -signal.SIGPROF

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._process.wait()


def serve() -> None:
    """Run a worker: receive a function, then answer each argument received, until the pipe closes."""
    receiving, sending = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to stderr: stdout carries the answers
    Thread(target=_postpone_end, daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        function = _receive(receiving)
        _send(sending, (True, _READY))
        while True:
            argument = _receive(receiving)
            try:
                answer = True, function(argument)
            except Exception as error:
                answer = False, portable(error)
            _send(sending, answer)


def _postpone_end() -> None:
    """Have the kernel end this process after `HANG_SECONDS`, and postpone that for as long as this thread can run."""
    while True:
        # a call that holds the GIL keeps this thread from running, and then the kernel ends the process
        signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
        time.sleep(1)


def portable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with the same text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not isinstance(value, pa.Table):
            return NotImplemented
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_table(value)
        return _table, (sink.getvalue().to_pybytes(),)


def _table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _send(pipe: BinaryIO | Any, message: Any) -> None:
    data = io.BytesIO()
    _Pickler(data, pickle.HIGHEST_PROTOCOL).dump(message)
    pipe.write(len(data.getbuffer()).to_bytes(8, "little"))
    pipe.write(data.getbuffer())
    pipe.flush()


def _receive(pipe: BinaryIO | Any) -> Any:
    return pickle.loads(_read(pipe, int.from_bytes(_read(pipe, 8), "little")))


def _read(pipe: BinaryIO | Any, count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError("the other process has ended")
    return data
