"""Which rows each rank reads at each step of an epoch: a pure function of where the loader stands.

Rows stand in one order for all ranks. `FixedBatches` deals them out a batch after the other; `TokenBudget` seals
windows of that order and deals out the batches that it makes of each.
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
"""Stands for a row of padding, without loss, where a rank has fewer rows than the others."""

WINDOW_ROWS = 4096
"""Rows of which batches of a token budget are made at once."""

Skip = tuple[int, int]
"""Running positions [begin, end) that are left out."""


class Order(Protocol):
    """Rows at running positions."""

    def span(self, begin: int, end: int) -> Ints: ...


class Place(NamedTuple):
    """Where a loader stands: rows of the epoch that are done with, and of a window's batches so many."""

    epoch: int = 0
    position: int = 0
    batch: int = 0


class Step(NamedTuple):
    """What one rank reads at a step, int64 [rows] with FILLER where it has none, and where the loader stands then."""

    rows: Ints
    after: Place


@dataclass(frozen=True)
class FixedBatches:
    """Batches of so many rows: step s of an epoch holds positions [s × world_size × batch_size, …), and each rank in
    turn a part of them.

    Args:
        rows: of an epoch.
        drop_last: leave out a last step that is not full.
        skips: what is left out; a step ends where one begins.
    """

    order: Order
    rows: int
    batch_size: int
    drop_last: bool = False
    skips: tuple[Skip, ...] = ()

    def count(self, world_size: int) -> int:
        """Steps of a whole epoch."""
        whole, rest = divmod(self.rows, self.batch_size * world_size)
        return whole + (rest > 0 and not self.drop_last)

    def steps(self, place: Place, rank: int, world_size: int) -> Iterator[Step]:
        """The steps of the rest of an epoch."""
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
        """Where a loader stands before a step; steps count on through epochs."""
        epoch, number = divmod(step, max(self.count(world_size), 1))
        return Place(epoch, number * self.batch_size * world_size)

    def without(self, begin: int, end: int, world_size: int) -> FixedBatches:
        """The same plan, leaving out the steps [begin, end)."""
        first, last = (self._running(self.place_of(step, world_size)) for step in (begin, end))
        return replace(self, skips=tuple(sorted({*self.skips, (first, last)})))

    def _running(self, place: Place) -> int:
        return place.epoch * self.rows + place.position


class TokenBudget:
    """Batches of at most `budget` tokens, padding counted. The rows of a window are sorted by length, cut into batches,
    and these shuffled; ranks take them in turn, and batches of padding alone fill the window's last step.

    Args:
        rows: of an epoch.
        lengths: tokens of rows, int64 [n] for int64 [n].
        key: of what the batches' order is drawn with.
        width: the lengths that rows are padded to whose longest have so many tokens, int64 [n] for int64 [n].
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
        """The batches of the window that begins at a position, of all ranks."""
        if self._last[:2] != (epoch, position):
            self._last = (epoch, position, self._made(epoch, position))
        return self._last[2]

    def _made(self, epoch: int, position: int) -> list[Ints]:
        end, before = min(position + WINDOW_ROWS, self.rows), epoch * self.rows
        rows = self.order.span(before + position, before + end)
        lengths = self._lengths(rows)
        by_length = np.argsort(lengths, kind="stable")
        rows, lengths = rows[by_length], lengths[by_length]
        padded = self._width(lengths)
        if padded[-1] > self.budget:
            raise ValueError(
                f"a row of {lengths[-1]} tokens, padded to {padded[-1]}, does not fit into token_budget {self.budget}; "
                "raise it, or shorten rows by tokenizer.max_length"
            )
        bounds = [0]
        while bounds[-1] < len(rows):
            begin = bounds[-1]
            fits = padded[begin : begin + self.budget] * np.arange(1, len(padded[begin : begin + self.budget]) + 1)
            bounds.append(begin + int(np.searchsorted(fits, self.budget, side="right")))
        shuffled = Permutation(len(bounds) - 1, key_of(*self._key, epoch, position))(np.arange(len(bounds) - 1))
        made = [rows[begin:end] for begin, end in pairwise(bounds)]
        return [made[number] for number in shuffled.tolist()]

    def steps(self, place: Place, rank: int, world_size: int) -> Iterator[Step]:
        """The steps of the rest of an epoch."""
        position, batch = place.position, place.batch
        while position < self.rows:
            made = self.batches(place.epoch, position)
            following = min(position + WINDOW_ROWS, self.rows)
            while batch < len(made):
                rows = made[batch + rank] if batch + rank < len(made) else np.full(1, FILLER)
                batch += world_size
                after = Place(place.epoch, position, batch)
                yield Step(rows, after if batch < len(made) else Place(place.epoch, following))
            position, batch = following, 0

    def _steps_of_windows(self, epoch: int) -> list[int]:
        """Batches of each window of an epoch."""
        if epoch not in self._counts:
            begins = range(0, self.rows, WINDOW_ROWS)
            self._counts = {epoch: [len(self._made(epoch, begin)) for begin in begins]}
        return self._counts[epoch]

    def count(self, world_size: int) -> int:
        """Steps of the first epoch; later ones may have some more or less."""
        return sum(-(-batches // world_size) for batches in self._steps_of_windows(0))

    def place_of(self, step: int, world_size: int) -> Place:
        """Where a loader stands before a step; steps count on through epochs."""
        epoch = 0
        while True:
            for window, batches in enumerate(self._steps_of_windows(epoch)):
                steps = -(-batches // world_size)
                if step < steps:
                    return Place(epoch, window * WINDOW_ROWS, step * world_size)
                step -= steps
            epoch += 1
