"""Downloads the chunks of the next steps in a background thread, while earlier steps are read."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from threading import Condition, Thread

import numpy as np

from tokenloom.loaders.reading.far_chunks import FarChunks
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.tables.ragged import Ints

AHEAD_BYTES = 1 << 31
"""Bytes downloaded ahead of the current step, at most a quarter of the cache."""

AHEAD_ROWS = 1 << 18
"""Rows of a rank that are looked at ahead of the current step."""


class ReadAhead:
    """Downloads chunks ahead of a loader, until the `with` block ends. Its errors are ignored: reading reports them.

    Args:
        reader: reads chunks that are downloaded.
        steps: the rows of one or more steps, int64 [rows] for each step, negative for padding rows.
    """

    def __init__(self, reader: SequenceReader, steps: Iterator[list[Ints]]):
        assert reader.far is not None
        self._far, self._chunks_of, self._steps = reader.far, reader.chunks_of, steps
        self._limit = min(AHEAD_BYTES, self._far.limit // 4)
        self._changed = Condition()
        self._groups = deque[tuple[int, int, int]]()  # the number of the last step of a group, and its bytes and rows
        self._read, self._bytes, self._rows, self._ended = 0, 0, 0, False

    def __enter__(self) -> ReadAhead:
        Thread(target=self._run, name="tokenloom-read-ahead", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def step_read(self) -> None:
        """Report that the next step was read."""
        with self._changed:
            self._read += 1
            if self._groups and self._groups[0][0] <= self._read:
                _, size, rows = self._groups.popleft()
                self._bytes, self._rows = self._bytes - size, self._rows - rows
                self._changed.notify()

    def _run(self) -> None:
        with suppress(Exception):  # whoever reads the chunk raises it
            self._download()

    def _download(self) -> None:
        known = np.full(len(self._far.sizes), -1, np.int64)  # bytes downloaded before each chunk; -1: not yet
        downloaded, last = 0, 0
        for steps in self._steps:
            rows, last = np.concatenate(steps), last + len(steps)
            chunks, first = np.unique(self._chunks_of(rows[rows >= 0]), return_index=True)
            chunks = chunks[np.argsort(first)]
            evicted = downloaded - known[chunks] > self._far.limit // 2  # perhaps
            new = chunks[(known[chunks] < 0) | evicted]
            size = int(self._far.sizes[new].sum())
            if not self._wait(last, size, len(rows)):
                return
            known[new] = downloaded
            downloaded += size
            if size:
                self._far.download(new)

    def _wait(self, last: int, size: int, rows: int) -> bool:
        """Wait until a group of steps is not too far ahead. Return False if the block ended."""
        with self._changed:
            while not self._ended:
                near = self._bytes + size <= self._limit and self._rows + rows <= AHEAD_ROWS
                if near or not self._groups:
                    self._groups.append((last, size, rows))
                    self._bytes, self._rows = self._bytes + size, self._rows + rows
                    return True
                self._changed.wait()
        return False


def warn_if_too_small(far: FarChunks, needed: int, shuffle: str) -> None:
    """Warn if the cache holds less than twice the bytes that an order reads at the same time."""
    if 2 * needed > far.limit:
        block = ", or use shuffle='block'" if shuffle == "full" else ""
        warnings.warn(
            f"shuffle={shuffle!r} reads {needed / 1e6:,.0f} MB of chunks at the same time, but the cache holds "
            f"{far.limit / 1e6:,.0f} MB, so that chunks are downloaded several times per epoch; set "
            f"TOKENLOOM_CACHE_SIZE to at least {math.ceil(2 * needed / 1e6)}MB{block}",
            stacklevel=3,
        )
