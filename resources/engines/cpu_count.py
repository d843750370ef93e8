"""The number of CPU cores that this process can use."""

from __future__ import annotations

import os


def cpu_count() -> int:
    """Return the number of CPU cores available to this process, at least 1.

    Respects the CPU affinity mask where the platform has one (Linux). On macOS and Windows it is the number of cores
    of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
