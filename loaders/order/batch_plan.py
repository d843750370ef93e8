"""Which rows each rank reads at each step of an epoch: a pure function of the loader's position.

All ranks share one order of rows. `FixedBatches` cuts it into batches of a fixed number of rows. `TokenBudget` cuts it
into windows, and each window into batches of similar lengths, which ranks take in turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import index
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenloom.errors import StoreError
from tokenloom.loaders.order.row_order import Permutation, key_of
from tokenloom.resources.tables.ragged import Ints

LARGEST_COUNT = (1 << 31) - 1
"""Largest number of rows, batches, workers or steps that an argument can ask for."""

POSITIONS = 1 << 62
"""Positions that a loader can count: those of all epochs together are int64, with room for a block after the last."""

_SHOWN = 24


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an argument that must be an integer, also one of NumPy, as an int.

    Args:
        name: the argument's name, for the message.
        least, most: limits; None: no limit.

    Raises:
        ValueError: the value is not an integer, or is out of range.
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is not None and (least is None or number >= least) and (most is None or number <= most):
        return number
    limits = "" if least is None else f" of at least {least}"
    if number is not None and most is not None and number > most:
        limits += f" and at most {most}"
    raise ValueError(f"{name} must be an integer{limits}, got {short(value)}")


def epoch_number(value: Any, rows: int) -> int:
    """Return an epoch's number as an int.

    Args:
        rows: rows per epoch.

    Raises:
        ValueError: it is not an integer, is below 0, or its positions cannot be counted.
    """
    return integer("epoch", value, 0, POSITIONS // max(rows, 1) - 1)


def short(value: Any) -> str:
    """Return a value for a message, in at most 24 characters or so; of a container, only its type."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if value is not None and not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = repr(value[: 2 * _SHOWN]) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…"


FILLER = -1
"""Row number of a padding row, which has no loss; fills the batch of a rank that has fewer rows than the others."""

WINDOW_ROWS = 4096
"""Rows per window of a token budget."""

WINDOWS_AT_ONCE = 32
"""Windows of which batches are counted at once; their arrays take about 8 MB."""

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

    def _stretches(self, place: Place) -> Iterator[tuple[int, int]]:
        """Yield the positions [begin, end) that are left of an epoch, stretch by stretch between the skips."""
        begin, before = place.position, place.epoch * self.rows
        skips = [(first - before, last - before) for first, last in self.skips]
        while begin < self.rows:
            end = self.rows
            for first, last in skips:
                # a skip around `begin` moves it on; one that begins later ends the stretch
                if first <= begin < last:
                    begin = last
                elif begin < first < end:
                    end = first
            if begin < end:
                yield begin, end
            begin = max(begin, end)

    def left(self, place: Place, world_size: int) -> int:
        """Return the number of steps that are left of an epoch at a place."""
        stride, number = self.batch_size * world_size, 0
        for begin, end in self._stretches(place):
            whole, rest = divmod(end - begin, stride)
            number += whole
            # a step cut short by a skip is read; only one that the epoch has no rows for is dropped
            if rest and self.drop_last and end - rest + stride > self.rows:
                break
            number += rest > 0
        return number

    def steps(self, place: Place, rank: int, world_size: int) -> Iterator[Step]:
        """Yield the remaining steps of the epoch."""
        size, before, epoch = self.batch_size, place.epoch * self.rows, place.epoch
        stride, span = size * world_size, self.order.span
        for begin, end in self._stretches(place):
            while begin + stride <= end:
                mine = before + begin + rank * size
                begin += stride
                yield Step(span(mine, mine + size), Place(epoch, begin))
            if begin < end:
                if self.drop_last and begin + stride > self.rows:
                    return
                mine = min(begin + rank * size, end)
                rows = span(before + mine, before + min(mine + size, end))
                # all ranks get batches of one size at a step; alone, the last of an epoch can be short
                if len(rows) < size and (world_size > 1 or end < self.rows):
                    rows = np.concatenate([rows, np.full(size - len(rows), FILLER)])
                yield Step(rows, Place(epoch, end))

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

    The rows of each window are sorted by length and cut into batches, and the batches are shuffled. Ranks take the
    batches of an epoch in turn, from window to window, so that their sequence does not depend on the number of ranks.
    Batches of padding alone complete the last step of the epoch.

    Args:
        order: rows by position.
        rows: rows per epoch.
        budget: maximum tokens per rank and batch, padding included.
        lengths: returns the number of tokens of each row, int64 [n] for int64 [n].
        digest: returns the digest that shuffles the batches of a window, given the position of its end, counted across
            epochs.
        seed: shuffles them too.
        width: returns the padded width of a batch given its longest row, of int64 arrays of one shape.
        aligned: complete the last step of each window instead, as runs whose states have version 1 or 2.
    """

    def __init__(
        self,
        order: Order,
        rows: int,
        budget: int,
        lengths: Callable[[Ints], Ints],
        digest: Callable[[int], str],
        seed: int,
        width: Callable[[Ints], Ints],
        aligned: bool = False,
    ):
        self.order, self.rows, self.budget, self.aligned = order, rows, budget, aligned
        self._arguments = order, rows, budget, lengths, digest, seed, width
        self._lengths, self._digest, self._seed, self._width = lengths, digest, seed, width
        self._kept: tuple[tuple[int, int, list[Ints]], ...] = ()
        self._counts: dict[int, list[int]] = {}

    def as_aligned(self, aligned: bool) -> TokenBudget:
        """Return the same plan with another `aligned`."""
        return self if aligned == self.aligned else TokenBudget(*self._arguments, aligned)

    def batches(self, epoch: int, position: int) -> list[Ints]:
        """Return the batches of all ranks in the window that begins at a position."""
        for kept_epoch, kept_position, batches in self._kept:
            if (kept_epoch, kept_position) == (epoch, position):
                return batches
        # the last two windows are kept: the steps around a border take batches of both
        batches = self._cut(epoch, position)
        self._kept = (*self._kept[-1:], (epoch, position, batches))  # replaced, not changed: threads can share a plan
        return batches

    def _cut(self, epoch: int, position: int) -> list[Ints]:
        rows = self._rows_of(epoch, position, 1)
        lengths = self._lengths(rows)
        by_length = np.argsort(lengths, kind="stable")
        # greedy: each batch takes rows of ascending length for as long as they fit
        rows, ends, bounds = rows[by_length], self._ends(lengths[None, by_length])[0], [0]
        while bounds[-1] < len(rows):
            bounds.append(int(ends[bounds[-1]]))
        # or each window would train on its shortest rows first
        key = key_of("batches", self._digest(self.end_of(epoch, position)), self._seed, epoch, position)
        shuffled = Permutation(len(bounds) - 1, key)(np.arange(len(bounds) - 1))
        batches = [rows[begin:end] for begin, end in pairwise(bounds)]
        return [batches[number] for number in shuffled.tolist()]

    def end_of(self, epoch: int, position: int) -> int:
        """Return the end of the window that begins at a position, counted across epochs. Those of `aligned` plans are
        shuffled by all that is known."""
        return POSITIONS if self.aligned else epoch * self.rows + min(position + WINDOW_ROWS, self.rows)

    def _rows_of(self, epoch: int, position: int, windows: int) -> Ints:
        before = epoch * self.rows
        return self.order.span(before + position, before + min(position + windows * WINDOW_ROWS, self.rows))

    def _ends(self, lengths: Ints) -> Ints:
        """Return where a batch that begins at each row ends, int64 [windows, rows], for ascending lengths of rows. A
        row that does not fit into the budget is a ValueError."""
        windows, rows = lengths.shape
        padded = self._width(lengths)
        if (widest := padded[:, -1].max()) > self.budget:
            raise ValueError(
                f"a row of {lengths.max()} tokens, padded to {widest}, does not fit into token_budget {self.budget}; "
                "raise the budget, or shorten rows with tokenizer.max_length"
            )
        # the first row of the longest batch that ends with each row ascends: count those that a batch can end with
        first = np.maximum(np.arange(1, rows + 1) - self.budget // padded, 0) + rows * np.arange(windows)[:, None]
        return np.bincount(first.reshape(-1), minlength=windows * rows).reshape(windows, rows).cumsum(axis=1)

    def _count(self, epoch: int, position: int, windows: int) -> list[int]:
        """Return the number of batches of each window from a position on, of up to `windows` windows."""
        windows = min(windows, WINDOWS_AT_ONCE, (self.rows - position) // WINDOW_ROWS)
        if windows < 2:
            return [len(self.batches(epoch, position))]
        try:
            lengths = self._lengths(self._rows_of(epoch, position, windows)).reshape(windows, WINDOW_ROWS)
            ends = np.append(self._ends(np.sort(lengths, axis=1)), np.full((windows, 1), WINDOW_ROWS), axis=1)
        except (StoreError, ValueError):  # in one of them: batches of windows before it are still given
            return [len(self.batches(epoch, position))]
        # every window follows its batches at once: `ends` leads from where one begins to where the next does
        ends = (ends + (WINDOW_ROWS + 1) * np.arange(windows)[:, None]).reshape(-1)
        at = (WINDOW_ROWS + 1) * np.arange(windows)
        # the end of a window leads to itself, so that finished windows stand still
        last, counts = at + WINDOW_ROWS, np.zeros(windows, np.int64)
        while (before_end := at < last).any():
            counts += before_end
            at = ends[at]
        return counts.tolist()

    def steps(self, place: Place, rank: int, world_size: int) -> Iterator[Step]:
        """Yield the remaining steps of the epoch."""
        epoch, begin, batch = place
        while begin < self.rows:
            end = min(begin + WINDOW_ROWS, self.rows) if self.aligned else self.rows
            yield from self._steps(epoch, begin, end, batch, rank, world_size)
            begin, batch = end, 0

    def _steps(self, epoch: int, begin: int, end: int, batch: int, rank: int, world_size: int) -> Iterator[Step]:
        """Yield the steps from a batch of the window at `begin` on, until the position `end`.

        A rank only counts the batches of windows from which other ranks read.
        """
        counted, before = begin, 0
        ends: list[int] = []  # batches before the end of each window from `begin` on, of which `before` are earlier
        while begin < end:
            # all ranks count the same windows: those that hold the batches of this step
            while counted < end and (not ends or ends[-1] < batch + world_size):
                windows = 1  # then as many as the missing batches are likely to need
                if ends:
                    windows = -(-(batch + world_size - ends[-1]) * len(ends) // (ends[-1] - before))
                for count in self._count(epoch, counted, min(windows, -(-(end - counted) // WINDOW_ROWS))):
                    ends.append((ends[-1] if ends else before) + count)
                    counted = min(counted + WINDOW_ROWS, end)
            window, rows = bisect_right(ends, batch + rank), np.full(1, FILLER)
            if window < len(ends):
                batches = self.batches(epoch, begin + window * WINDOW_ROWS)
                rows = batches[batch + rank - (ends[window - 1] if window else before)]
            batch += world_size
            # forget windows that all ranks have read; places count from the first that is left
            if passed := bisect_right(ends, batch):
                begin, before = min(begin + passed * WINDOW_ROWS, end), ends[passed - 1]
                del ends[:passed]
            yield Step(rows, Place(epoch, begin, batch - before if begin < end else 0))

    def _runs(self, epoch: int) -> Iterator[tuple[int, Ints]]:
        """Yield runs of windows that steps go on through: the first window's number, and the batches before the end of
        each window, int64 [windows]."""
        # counting reads the lengths of a whole epoch: the last one is kept
        if epoch not in self._counts:
            counts = list[int]()
            while len(counts) * WINDOW_ROWS < self.rows:
                counts += self._count(epoch, len(counts) * WINDOW_ROWS, WINDOWS_AT_ONCE)
            self._counts = {epoch: counts}
        counts = self._counts[epoch]
        runs = ([count] for count in counts) if self.aligned else filter(None, [counts])
        return ((number, np.cumsum(run)) for number, run in enumerate(runs))

    def count(self, world_size: int, epoch: int = 0) -> int:
        """Return the number of steps in an epoch; epochs can have a few more or fewer than others."""
        return sum(-(-int(ends[-1]) // world_size) for _, ends in self._runs(epoch))

    def left(self, place: Place, world_size: int) -> int:
        """Return the number of steps that are left of an epoch at a place."""
        number, window = 0, -(-place.position // WINDOW_ROWS)  # that of the end of the epoch is after the last
        for first, ends in self._runs(place.epoch):
            at = window - first
            # only the run that the place is in has batches that were read
            before = (int(ends[at - 1]) if at else 0) + place.batch if 0 <= at < len(ends) else 0
            if at < len(ends):
                number += -(-(int(ends[-1]) - before) // world_size)
        return number

    def is_place(self, place: Place) -> bool:
        """Return whether a loader of this plan can be at a place."""
        if place.position == self.rows:
            return place.batch == 0
        # states name the start of a window and a batch in it, never a place between batches
        starts = 0 <= place.position < self.rows and place.position % WINDOW_ROWS == 0
        return starts and 0 <= place.batch < len(self.batches(place.epoch, place.position))

    def place_of(self, step: int, world_size: int) -> Place:
        """Return the place before a step; steps are counted across epochs."""
        epoch = 0
        while True:
            for first, ends in self._runs(epoch):
                steps, batch = -(-int(ends[-1]) // world_size), step * world_size
                if step < steps:
                    window = int(ends.searchsorted(batch, "right"))
                    before = int(ends[window - 1]) if window else 0
                    return Place(epoch, (first + window) * WINDOW_ROWS, batch - before)
                step -= steps
            epoch += 1
