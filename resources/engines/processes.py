"""A pure function in processes of its own, for work that holds Python's lock.

Workers are plain child processes that are sent pickles through a pipe, tables in them as Arrow IPC. They import nothing
of the program's main module, hold nothing of this process, and end when the pipe closes: so a script needs no
`if __name__ == "__main__"`, and no worker outlives its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, BinaryIO

import pyarrow as pa

PATIENCE = 1.0
"""Seconds of work done in this process before workers are started: about what starting them costs."""

_START = "import sys; sys.path[:] = {!r}; from tokenloom.resources.engines.processes import serve; serve()"
_READY = "ready"


class Processes:
    """`function`, computed in worker processes as soon as enough work has shown up and they are ready.

    Until then the calling thread computes. It may be called from many threads at once; what it raises is what
    `function` raised.

    Args:
        function: pure, and picklable, as its arguments and results are.
        count: worker processes.
    """

    def __init__(self, function: Callable[[Any], Any], count: int):
        self._function, self._count = function, count
        self._lock = Lock()
        self._worked = 0.0
        self._starting: list[Thread] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._closed = False

    def __call__(self, argument: Any) -> Any:
        """`function` of the argument."""
        try:
            worker = self._idle.get_nowait()
        except Empty:
            return self._here(argument)
        try:
            done, result = worker.ask(argument)
        except (EOFError, OSError, ValueError):  # it was killed, or closed; nothing is lost but its time
            worker.close()
            if self._closed:
                raise
            return self._here(argument)
        self._idle.put(worker)
        if not done:
            raise result
        return result

    def close(self) -> None:
        """End the workers, those still at work too."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.close()

    def _here(self, argument: Any) -> Any:
        started = time.perf_counter()
        result = self._function(argument)
        with self._lock:
            self._worked += time.perf_counter() - started
            if self._worked >= PATIENCE and not self._starting:
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
        with contextlib.suppress(EOFError, OSError, ValueError):  # it does not start: the work goes on here
            if worker.ask(self._function) == (True, _READY):
                self._idle.put(worker)


class _Worker:
    """One child process."""

    def __init__(self) -> None:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent, which then closes the pipe
        )

    def ask(self, message: Any) -> tuple[bool, Any]:
        """Whether it was done, and the result or what was raised.

        Raises:
            EOFError, OSError, ValueError: the process is gone.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _send(self._process.stdin, message)
        return _receive(self._process.stdout)

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._process.wait()


def serve() -> None:
    """What a worker does: receive a function, then apply it to all that comes, until the pipe closes."""
    receiving, sending = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    with contextlib.suppress(EOFError, BrokenPipeError):
        function = _receive(receiving)
        _send(sending, (True, _READY))
        while True:
            argument = _receive(receiving)
            try:
                answer = True, function(argument)
            except Exception as error:
                answer = False, _portable(error)
            _send(sending, answer)


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same, if it cannot be sent."""
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
        raise EOFError("the other process is gone")
    return data
