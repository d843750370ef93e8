"""Progress of a build, reported after every chunk, and as lines of a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """State of a stage after one more chunk: chunks done so far, how many of them were reused, and their rows.

    `total` is the number of chunks that the stage will have, if it is known.
    """

    stage: str
    chunks: int
    reused: int
    rows: int
    total: int | None = None


OnProgress = Callable[[Progress], None]


class ProgressLog:
    """Logs the progress of a build: one line for the last stage that is at work, at most every few seconds.

    Args:
        log: receives the lines.
        every: seconds between two lines, and before the first.
        clock: returns the time in seconds.
    """

    def __init__(self, log: Callable[[str], None], every: float = 10.0, clock: Callable[[], float] = time.monotonic):
        self._log, self._every, self._clock = log, every, clock
        self._last = clock()
        self._started: dict[str, tuple[float, Progress]] = {}

    def __call__(self, progress: Progress) -> None:
        """Log a line if it is time."""
        now = self._clock()
        started, first = self._started.setdefault(progress.stage, (now, progress))
        if now - self._last < self._every:
            return
        self._last = now
        of = f" of {progress.total:,}" if progress.total is not None else ""
        parts = [f"{progress.stage}: chunk {progress.chunks:,}{of}", f"{progress.reused:,} reused"]
        seconds, chunks = now - started, progress.chunks - first.chunks
        if seconds > 0 and chunks:
            parts.append(f"{(progress.rows - first.rows) / seconds:,.0f} rows/s")
            if progress.total is not None:
                parts.append(f"about {(progress.total - progress.chunks) * seconds / chunks:,.0f} s left")
        self._log(", ".join(parts))
