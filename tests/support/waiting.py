"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 600
"""Maximum number of seconds to wait."""

FIRST, SLOWEST = 0.05, 1.0
"""Seconds between the first two reads, and the most between two: frequent reads slow down what is awaited."""


def until(read: Callable[[], T], fits: Callable[[T], object] = bool) -> T:
    """Read until what is read fits, and return it."""
    deadline, pause = time.monotonic() + SECONDS, FIRST
    while not fits(found := read()):
        assert time.monotonic() < deadline, f"waited {SECONDS} s; last read: {found}"
        time.sleep(pause)
        pause = min(1.2 * pause, SLOWEST)
    return found
