"""How long something takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median_seconds(run: Callable[[], object], runs: int) -> float:
    """The median over some runs, in seconds by the clock."""

    def once() -> float:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(runs))
