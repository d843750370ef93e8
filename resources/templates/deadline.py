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
"""The rendering threads, by a token of each rendering. Whoever removes a token decides how the rendering ends."""
_lock = threading.Lock()
_watching = False


def start() -> object:
    """Start the clock of a rendering in this thread, and return its token."""
    token = object()
    _running[token] = threading.get_ident()
    if not _watching:
        _start_watch()
    return token


def stop(token: object) -> None:
    """Stop the clock of a rendering.

    Raises:
        DeadlineError: the deadline has passed.
    """
    while _running.pop(token, None) is None:
        time.sleep(1)  # until the exception, which is on its way, arrives


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
        seconds = {token: seconds.get(token, 0) + 1 for token in list(_running)}
        for token in [token for token, count in seconds.items() if count >= SECONDS]:
            thread = _running.pop(token, None)
            if thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeadlineError))


def _forget() -> None:
    """Start over in a forked process, which has no threads but its own."""
    global _watching, _lock
    _running.clear()
    _watching, _lock = False, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
