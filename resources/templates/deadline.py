"""A deadline for each rendering, for work that the sandbox does not count.

The sandbox refuses rows by counted work, which is the same on every machine. This is the backstop: a thread ends a
rendering that takes `SECONDS`, and the build fails without storing a result for the chunk.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

from tokenloom.errors import DeadlineError

SECONDS = 300
"""Seconds that one rendering can take; the most work that is counted takes a few."""

_running: dict[object, int] = {}
"""The threads that render, by the clock of each rendering. Whoever removes a clock decides how its rendering ends."""
_lock = threading.Lock()
_watching = False


class Clock:
    """A context in which this thread renders one row.

    Raises:
        DeadlineError: the row takes `SECONDS`.
    """

    def __enter__(self) -> None:
        _running[self] = threading.get_ident()
        if not _watching:
            _start_watch()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while kind is not DeadlineError and _running.pop(self, None) is None:
            time.sleep(1)  # the exception is on its way


def _start_watch() -> None:
    global _watching
    with _lock:
        if not _watching:
            _watching = True
            threading.Thread(target=_watch, name="tokenloom-deadline", daemon=True).start()


def _watch() -> None:
    """Count each rendering's seconds by this thread's own, which stand still while the process is stopped."""
    seconds: dict[object, int] = {}
    while True:
        time.sleep(1)
        seconds = {clock: seconds.get(clock, 0) + 1 for clock in list(_running)}
        for clock in [clock for clock, count in seconds.items() if count >= SECONDS]:
            thread = _running.pop(clock, None)
            if thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeadlineError))


def _forget() -> None:
    """Start over in a forked process, which has no threads but its own."""
    global _watching, _lock
    _running.clear()
    _watching, _lock = False, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
