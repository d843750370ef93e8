"""Waiting for what other processes do."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

from support.processes import DEADLINE, is_late

T = TypeVar("T")

FIRST, SLOWEST = 0.05, 1.0
"""Seconds between the first two reads, and the most between two: frequent reads slow down what is awaited."""


def listens(port: int) -> bool:
    """Whether a process of this machine accepts connections at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def until(read: Callable[[], T], fits: Callable[[T], object] = bool, seconds: float = DEADLINE) -> T:
    """Read until what is read fits, and return it; fail at the deadline."""
    since, pause = time.monotonic(), FIRST
    while not fits(found := read()):
        assert not is_late(since, seconds), f"waited {seconds:g} s; last read: {found}"
        time.sleep(pause)
        pause = min(1.2 * pause, SLOWEST)
    return found
