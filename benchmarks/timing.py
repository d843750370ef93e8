"""How long something takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median_seconds(run: Callable[[], object], runs: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median over some runs, in seconds by the clock; `time.process_time` counts the CPU's time."""

    def once() -> float:
        started = clock()
        run()
        return clock() - started

    return statistics.median(once() for _ in range(runs))
