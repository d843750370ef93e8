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

_running: dict[int, object] = {}
"""What each thread renders. Whoever removes an entry decides how its rendering ends."""
_lock = threading.Lock()
_watching = False


def start(rendering: object) -> int:
    """Start the clock of a rendering, a distinct object, in this thread. Return the thread's number."""
    thread = threading.get_ident()
    _running[thread] = rendering
    if not _watching:
        _start_watch()
    return thread


def stop(thread: int) -> None:
    """Stop the clock of a rendering that has not raised a `DeadlineError`.

    Raises:
        DeadlineError: the deadline has passed.
    """
    while _running.pop(thread, None) is None:
        time.sleep(1)  # the exception is on its way


def _start_watch() -> None:
    global _watching
    with _lock:
        if not _watching:
            _watching = True
            threading.Thread(target=_watch, name="tokenloom-deadline", daemon=True).start()


def _watch() -> None:
    """Count each rendering's seconds by this thread's own, which stand still while the process is stopped."""
    ages: dict[object, int] = {}
    while True:
        time.sleep(1)
        current = dict(_running)
        ages = {rendering: ages.get(rendering, 0) + 1 for rendering in current.values()}
        for thread, rendering in current.items():
            if ages[rendering] < SECONDS:
                continue
            ended = _running.pop(thread, None)
            if ended is rendering:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeadlineError))
            elif ended is not None:
                _running[thread] = ended  # the next one, which waits for this if it has ended, too


def _forget() -> None:
    """Start over in a forked process, which has no threads but its own."""
    global _watching, _lock
    _running.clear()
    _watching, _lock = False, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
