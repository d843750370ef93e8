"""Which rows each rank reads at each step of an epoch: a pure function of the loader's position.

All ranks share one order of rows. `FixedBatches` cuts it into batches of a fixed number of rows. `TokenBudget` cuts it
into windows, and each window into batches of similar lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from tokenloom.loaders.order.permutation import Permutation, key_of
from tokenloom.resources.tables.ragged import Ints

FILLER = -1
"""Row number of a padding row, which has no loss; fills the batch of a rank that has fewer rows than the others."""

WINDOW_ROWS = 4096
"""Rows per window of a token budget."""

Skip = tuple[int, int]
"""Skipped positions [begin, end), counted across epochs."""


class Order(Protocol):
    """Rows by position, with positions counted across epochs."""

    def span(self, begin: int, end: int) -> Ints: ...


class Place(NamedTuple):
    """A loader's position: the epoch, the rows of it that all ranks have read, and the batches read of a window."""

    epoch: int = 0
    position: int = 0
    batch: int = 0


class Step(NamedTuple):
    """The rows that one rank reads at a step, int64 [rows] with FILLER for padding rows, and the place after it."""

    rows: Ints
    after: Place


@dataclass(frozen=True)
class FixedBatches:
    """Batches of a fixed number of rows.

    Step s of an epoch covers `world_size × batch_size` positions from s × world_size × batch_size on. Each rank reads
    `batch_size` consecutive ones.

    Args:
        order: rows by position.
        rows: rows per epoch.
        batch_size: rows per rank and batch.
        drop_last: drop a last step that is not full.
        skips: positions to skip; a step ends where one begins.
    """

    order: Order
    rows: int
    batch_size: int
    drop_last: bool = False
    skips: tuple[Skip, ...] = ()

    def count(self, world_size: int, epoch: int = 0) -> int:
        """Return the number of steps in an epoch; all epochs have as many."""
        whole, rest = divmod(self.rows, self.batch_size * world_size)
        return whole + (rest > 0 and not self.drop_last)

    def steps(self, place: Place, rank: int, world_size: int) -> Iterator[Step]:
        """Yield the remaining steps of the epoch."""
        size, before, epoch = self.batch_size, place.epoch * self.rows, place.epoch
        stride, begin, span = size * world_size, place.position, self.order.span
        skips = [(first - before, last - before) for first, last in self.skips]
        while True:
            end = self.rows
            for first, last in skips:
                if first <= begin < last:
                    begin = last
                elif begin < first < end:
                    end = first
            while begin + stride <= end:
                mine = before + begin + rank * size
                begin += stride
                yield Step(span(mine, mine + size), Place(epoch, begin))
            if begin < end:
                if self.drop_last and begin + stride > self.rows:
                    return
                mine = min(begin + rank * size, end)
                rows = span(before + mine, before + min(mine + size, end))
                if len(rows) < size and (world_size > 1 or end < self.rows):
                    rows = np.concatenate([rows, np.full(size - len(rows), FILLER)])
                begin = end
                yield Step(rows, Place(epoch, begin))
            if begin >= self.rows:
                return

    def place_of(self, step: int, world_size: int) -> Place:
        """Return the place before a step; steps are counted across epochs."""
        epoch, number = divmod(step, max(self.count(world_size), 1))
        return Place(epoch, number * self.batch_size * world_size)

    def is_place(self, place: Place) -> bool:
        """Return whether a loader of this plan can be at a place."""
        return 0 <= place.position <= self.rows and place.batch == 0

    def without(self, begin: int, end: int, world_size: int) -> FixedBatches:
        """Return the same plan without the steps [begin, end)."""
        first, last = (self._running(self.place_of(step, world_size)) for step in (begin, end))
        return replace(self, skips=tuple(sorted({*self.skips, (first, last)})))

    def _running(self, place: Place) -> int:
        return place.epoch * self.rows + place.position


class TokenBudget:
    """Batches of at most `budget` tokens, padding included.

    The rows of each window are sorted by length and cut into batches, and the batches are shuffled. Ranks take them in
    turn. Batches of padding alone complete the last step of a window.

    Args:
        order: rows by position.
        rows: rows per epoch.
        budget: maximum tokens per rank and batch, padding included.
        lengths: returns the number of tokens of each row, int64 [n] for int64 [n].
        key: parts of the key that shuffles the batches.
        width: returns the padded width of a batch given its longest row, int64 [n] for int64 [n].
    """

    def __init__(
        self,
        order: Order,
        rows: int,
        budget: int,
        lengths: Callable[[Ints], Ints],
        key: Sequence[object],
        width: Callable[[Ints], Ints],
    ):
        self.order, self.rows, self.budget = order, rows, budget
        self._lengths, self._key, self._width = lengths, tuple(key), width
        self._last: tuple[int, int, list[Ints]] = (-1, -1, [])
        self._counts: dict[int, list[int]] = {}

    def batches(self, epoch: int, position: int) -> list[Ints]:
        """Return the batches of all ranks in the window that begins at a position."""
        if self._last[:2] != (epoch, position):
            self._last = (epoch, position, self._cut(epoch, position))
        return self._last[2]

    def _cut(self, epoch: int, position: int) -> list[Ints]:
        end, before = min(position + WINDOW_ROWS, self.rows), epoch * self.rows
        rows = self.order.span(before + position, before + end)
        lengths = self._lengths(rows)
        by_length = np.argsort(lengths, kind="stable")
        rows, lengths = rows[by_length], lengths[by_length]
        padded = self._width(lengths)
        if padded[-1] > self.budget:
            raise ValueError(
                f"a row of {lengths[-1]} tokens, padded to {padded[-1]}, does not fit into token_budget {self.budget}; "
                "raise the budget, or shorten rows with tokenizer.max_length"
            )
        bounds = [0]
        while bounds[-1] < len(rows):
            begin = bounds[-1]
            fits = padded[begin : begin + self.budget] * np.arange(1, len(padded[begin : begin + self.budget]) + 1)
            bounds.append(begin + int(np.searchsorted(fits, self.budget, side="right")))
        shuffled = Permutation(len(bounds) - 1, key_of(*self._key, epoch, position))(np.arange(len(bounds) - 1))
        batches = [rows[begin:end] for begin, end in pairwise(bounds)]
        return [batches[number] for number in shuffled.tolist()]

    def steps(self, place: Place, rank: int, world_size: int) -> Iterator[Step]:
        """Yield the remaining steps of the epoch."""
        position, batch = place.position, place.batch
        while position < self.rows:
            batches = self.batches(place.epoch, position)
            next_window = min(position + WINDOW_ROWS, self.rows)
            while batch < len(batches):
                rows = batches[batch + rank] if batch + rank < len(batches) else np.full(1, FILLER)
                batch += world_size
                after = Place(place.epoch, position, batch)
                yield Step(rows, after if batch < len(batches) else Place(place.epoch, next_window))
            position, batch = next_window, 0

    def _batches_per_window(self, epoch: int) -> list[int]:
        if epoch not in self._counts:
            begins = range(0, self.rows, WINDOW_ROWS)
            self._counts = {epoch: [len(self._cut(epoch, begin)) for begin in begins]}
        return self._counts[epoch]

    def count(self, world_size: int, epoch: int = 0) -> int:
        """Return the number of steps in an epoch; epochs can have a few more or fewer than others."""
        return sum(-(-batches // world_size) for batches in self._batches_per_window(epoch))

    def is_place(self, place: Place) -> bool:
        """Return whether a loader of this plan can be at a place."""
        if place.position == self.rows:
            return place.batch == 0
        starts = 0 <= place.position < self.rows and place.position % WINDOW_ROWS == 0
        return starts and 0 <= place.batch < len(self.batches(place.epoch, place.position))

    def place_of(self, step: int, world_size: int) -> Place:
        """Return the place before a step; steps are counted across epochs."""
        epoch = 0
        while True:
            for window, batches in enumerate(self._batches_per_window(epoch)):
                steps = -(-batches // world_size)
                if step < steps:
                    return Place(epoch, window * WINDOW_ROWS, step * world_size)
                step -= steps
            epoch += 1
