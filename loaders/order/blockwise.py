"""An order computed in blocks of positions, so that reading a few positions at a time costs no more per position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenloom.resources.tables.ragged import Ints

BLOCK = 8192
"""Positions computed at once; their arrays fit into a core's cache."""

KEPT = 4
"""Number of computed blocks that are kept."""


class BlockwiseOrder(ABC):
    """A pure function from positions to rows. `end` is the number of positions; None: unlimited."""

    end: int | None = None

    def __init__(self, block: int = BLOCK):
        self._block = block
        self._kept: dict[int, Ints] = {}
        self._last: tuple[int, int, Ints] = (0, 0, np.zeros(0, np.int64))

    @abstractmethod
    def take(self, positions: Ints) -> Ints:
        """Return the rows at some positions: int64 [m, …] for int64 [m]."""

    def span(self, begin: int, end: int) -> Ints:
        """Return `take` of the positions [begin, end), as a read-only array. The last few blocks are kept."""
        first, last, values = self._last
        if first <= begin <= end <= last:
            return values[begin - first : end - first]
        if not 0 <= begin <= end or (self.end is not None and end > self.end):
            raise IndexError(f"positions {begin} to {end} are outside the order, which ends at {self.end}")
        numbers = range(begin // self._block, max(-(-end // self._block), begin // self._block + 1))
        parts = [self._of_block(number, begin, end) for number in numbers]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _of_block(self, number: int, begin: int, end: int) -> Ints:
        """Return the values of the positions in [begin, end) that belong to a block."""
        first = number * self._block
        values = self._kept.get(number)
        if values is None:
            last = first + self._block if self.end is None else min(first + self._block, self.end)
            values = self.take(np.arange(first, last))
            values.setflags(write=False)
            kept = list(self._kept.items())[1 - KEPT :]
            self._kept = dict([*kept, (number, values)])  # replaced, not changed: threads can share an order
        self._last = first, first + len(values), values
        return values[max(begin - first, 0) : end - first]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}, "_last": (0, 0, np.zeros(0, np.int64))}


def groups(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each distinct value in ascending order, with the indices that hold it, int64 [members]."""
    if not len(values):
        return
    least, most = int(values.min()), int(values.max())
    if least == most:
        yield least, np.arange(len(values))
        return
    small = (values - least).astype(np.uint16) if most - least < 1 << 16 else values  # uint16 uses a radix sort
    order = np.argsort(small, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
        yield int(values[places[0]]), places
