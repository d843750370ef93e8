"""Progress of a build, reported after every chunk, and as lines of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass

from tokenloom.assets.stage.definition import InputChunk


@dataclass(frozen=True)
class Progress:
    """State of a stage after one more chunk: chunks done so far, how many of them were reused, and their rows.

    `total` is the number of chunks that the stage will have, if it is known; `estimated`: about that many. `retried` is
    how often the build computed a chunk again because a machine or the store was away, and `trouble` says which chunk
    it was the last time, and why.
    """

    stage: str
    chunks: int
    reused: int
    rows: int
    total: int | None = None
    estimated: bool = False
    retried: int = 0
    trouble: str = ""

    @property
    def done(self) -> str:
        """The chunks done, and of how many, such as `12 of about 300`."""
        if self.total is None:
            return f"{self.chunks:,}"
        return f"{self.chunks:,} of {'about ' if self.estimated else ''}{self.total:,}"


OnProgress = Callable[[Progress], None]


ESTIMATE_AFTER = 3.0
"""Seconds of work after which it is worthwhile to look how large a source is."""


class Expected:
    """Input chunks of a stage, and how many there will be: their number, or for a source that is cut while it is read,
    an estimate from the bytes that the chunks so far were cut from.

    Args:
        source_bytes: returns the bytes of the source, if they are known.
    """

    def __init__(self, chunks: Iterable[InputChunk], source_bytes: Callable[[], int | None]):
        self._chunks, self._source_bytes = chunks, source_bytes
        self._count = len(chunks) if isinstance(chunks, Sized) else None
        self._started, self._cut, self._bytes = time.monotonic(), 0, 0
        self._all: int | None = None

    def __iter__(self) -> Iterator[InputChunk]:
        before: InputChunk | None = None
        for chunk in self._chunks:
            self._cut += 1
            if before is None or chunk.runs != before.runs:  # else another split of the same bytes
                self._bytes = self._bytes + chunk.size if chunk.size > 0 and self._bytes >= 0 else -1
            before = chunk
            yield chunk

    def total(self) -> tuple[int | None, bool]:
        """Return how many chunks there will be, or None, and whether that is an estimate."""
        if self._count is not None:
            return self._count, False
        if self._bytes <= 0 or time.monotonic() - self._started < ESTIMATE_AFTER:
            return None, False
        if self._all is None:
            self._all = self._source_bytes() or 0
        return (max(self._cut, round(self._cut * self._all / self._bytes)), True) if self._all else (None, False)


class Pace:
    """Describes how fast a stage is, since its first chunk that was seen, and how long it will take.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._started: dict[str, tuple[float, Progress]] = {}

    def __call__(self, progress: Progress) -> list[str]:
        """Return what is known: rate, time left, and chunks that were computed again."""
        now = self._clock()
        started, first = self._started.setdefault(progress.stage, (now, progress))
        seconds, chunks, parts = now - started, progress.chunks - first.chunks, []
        if seconds > 0 and chunks:
            parts.append(f"{(progress.rows - first.rows) / seconds:,.0f} rows/s")
            if progress.total is not None:
                parts.append(f"about {(progress.total - progress.chunks) * seconds / chunks:,.0f} s left")
        return [*parts, f"{progress.retried:,} retried"] if progress.retried else parts


class ProgressLog:
    """Logs the progress of a build: one line for the last stage that is at work, at most every few seconds.

    Args:
        log: receives the lines.
        every: seconds between two lines, and before the first.
        clock: returns the time in seconds.
    """

    def __init__(self, log: Callable[[str], None], every: float = 10.0, clock: Callable[[], float] = time.monotonic):
        self._log, self._every, self._clock = log, every, clock
        self._last, self._retried = clock(), 0
        self._pace = Pace(clock)

    def __call__(self, progress: Progress) -> None:
        """Log a line if it is time, and one about a chunk that is computed again."""
        now, pace = self._clock(), self._pace(progress)
        if progress.retried > self._retried:
            self._retried = progress.retried
            self._log(f"{progress.stage}: {progress.trouble}")
        if now - self._last < self._every:
            return
        self._last = now
        self._log(", ".join([f"{progress.stage}: chunk {progress.done}", f"{progress.reused:,} reused", *pace]))
