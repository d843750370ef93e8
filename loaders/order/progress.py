"""The progress of a loader: where its next iteration begins, and which place a state describes."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from tokenloom.errors import LoaderStateError


class InEpoch(Protocol):
    """A place in an epoch: a NamedTuple."""

    @property
    def epoch(self) -> int: ...


P = TypeVar("P", bound=InEpoch)


class Run(Generic[P]):
    """One iteration. It ends with its last batch, or when nothing refers to its iterator any more.

    Args:
        start: the place before its first batch.
        ahead: batches that a framework fetches before they are used; they are not counted as read.

    Attributes:
        counts: whether states describe it; not any more after another state was loaded.
    """

    def __init__(self, start: P, ahead: int):
        self._places, self.epoch, self.counts = deque([start], ahead + 1), start.epoch, True

    @property
    def place(self) -> P:
        """The place after the last batch that is used."""
        return self._places[0]

    def advance(self, place: P) -> None:
        """Note the place after a batch."""
        self._places.append(place)


class Progress(Generic[P]):
    """Where the next iteration of a loader begins, and the place that its state describes.

    An iteration begins at the start of the loader's epoch, or at a loaded state until that epoch is finished. Each
    iteration has its own place. A second one that begins while another runs, such as a look at the first batch, does
    not move the loader.

    Args:
        first: returns the place at the start of an epoch.

    Attributes:
        start: where the next iteration begins.
    """

    def __init__(self, first: Callable[[int], P]):
        self._first = first
        self.start = self._place = first(0)
        self._loaded, self._begun, self._moved = False, False, False
        self._wanted: int | None = None  # the epoch that was chosen after a state was loaded
        self._runs: list[weakref.ref[Run[P]]] = []
        self._advanced: weakref.ref[Run[P]] | None = None

    def begin(self, is_at_end: Callable[[P], bool], ahead: int = 0) -> Run[P]:
        """Begin an iteration.

        Args:
            is_at_end: whether no batch follows a place; then the next epoch begins.
        """
        place = self._place
        if self._moved and place.epoch == self.start.epoch and is_at_end(place):  # stopped right after the last batch
            self.start, self._loaded = self._first(place.epoch + 1), False
        elif self._loaded and self._wanted == self.start.epoch + 1 and is_at_end(self.start):
            self.start, self._loaded = self._first(self.start.epoch + 1), False
        self._wanted = None
        run = Run(self.start, ahead)
        self._runs = [reference for reference in self._runs if reference() is not None]
        if not self._runs:
            self._place, self._moved = self.start, False
        self._runs.append(weakref.ref(run))
        self._begun = True
        return run

    def advance(self, run: Run[P], place: P) -> None:
        """Note the place after a batch of an iteration."""
        run.advance(place)
        self._advanced = weakref.ref(run)
        if run.counts and self._running()[0] is run:
            self._place, self._moved = run.place, True

    def finish(self, run: Run[P], moves_on: bool = True) -> None:
        """Note that an iteration has reached the end of its epoch.

        Args:
            moves_on: the next epoch follows; False: the same one, until another is chosen.
        """
        if not run.counts:
            return
        is_first = self._running()[0] is run
        self._runs = [reference for reference in self._runs if reference() is not run]
        if is_first and self.start.epoch == run.epoch:  # else another epoch was chosen meanwhile
            self.start, self._loaded = self._first(run.epoch + moves_on), False
        if is_first and moves_on:
            self._place, self._moved = self.start, False

    def _running(self) -> list[Run[P]]:
        """Return the iterations that states can describe, in the order in which they began."""
        found = [reference() for reference in self._runs]
        return [run for run in found if run is not None and run.counts]

    @property
    def place(self) -> P:
        """The place that a state describes: after the last batch of the running iteration, or of the last one.

        Raises:
            LoaderStateError: a later iteration was read while an earlier one runs.
        """
        count, place = self._described()
        if place is None:
            raise LoaderStateError(
                f"{count} iterations of this loader are running, and a state describes only one: delete or close the "
                "other iterator first, or read it from a loader of its own"
            )
        return place

    def _described(self) -> tuple[int, P | None]:
        """Return how many iterations run, and the place to describe, or None if it could be either of several.

        The frame of an error must not refer to iterations: they would run as long as the error is kept.
        """
        running = self._running()
        if len(running) > 1 and (self._advanced is None or self._advanced() is not running[0]):
            return len(running), None
        return len(running), running[0].place if running else self._place

    def load(self, place: P) -> None:
        """Begin the next iteration at a place. Running ones go on, but do not move the loader any more."""
        for run in self._running():
            run.counts = False
        self._runs, self.start, self._place = [], place, place
        self._loaded, self._begun, self._moved, self._wanted = True, False, False, None

    def set_epoch(self, epoch: int) -> bool:
        """Choose the epoch of the next iteration. Return False if a loaded state, which goes first, is in another one.

        Frameworks choose the epoch that they count after a state was loaded: it would be lost. The epoch after that of
        the state is chosen if nothing is left of that one.
        """
        if self._loaded and (epoch == self.start.epoch or not self._begun):
            self._wanted = epoch
            return epoch - self.start.epoch in (0, 1)
        self.start, self._loaded = self._first(epoch), False
        if not self._running():
            self._place, self._moved = self.start, False
        elif self._place.epoch == epoch:
            self._moved = False
        return True

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runs": [], "_advanced": None}
