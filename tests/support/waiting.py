"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 600
"""Maximum number of seconds to wait."""


def until(read: Callable[[], T], fits: Callable[[T], object] = bool) -> T:
    """Read until what is read fits, and return it."""
    deadline = time.monotonic() + SECONDS
    while not fits(found := read()):
        assert time.monotonic() < deadline, f"waited {SECONDS} s; last read: {found}"
        time.sleep(0.1)
    return found
