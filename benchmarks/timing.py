"""Timing of a function."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median_seconds(run: Callable[[], object], runs: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median over some runs, in seconds of `clock`; `time.process_time` counts CPU time."""

    def once() -> float:
        started = clock()
        run()
        return clock() - started

    return statistics.median(once() for _ in range(runs))
