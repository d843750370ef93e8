"""The progress of a loader: where its next iteration begins, and which place a state describes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from tokenloom.errors import LoaderStateError


class InEpoch(Protocol):
    """A place in an epoch: a NamedTuple."""

    @property
    def epoch(self) -> int: ...


P = TypeVar("P", bound=InEpoch)
B = TypeVar("B")


class _Run(Generic[P]):
    """One iteration.

    Args:
        start: the place before its first batch.
        ahead: batches that a framework fetches before they are used; they are not counted as read.

    Attributes:
        places: the place after the last batch that is used, and those after the batches fetched ahead.
        since: the place from which states have described it.
    """

    def __init__(self, start: P, ahead: int):
        self.places, self.since = deque([start], ahead + 1), start


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
        self._runs: list[_Run[P]] = []  # states describe the first; those of before a load are not in it
        self._advanced: _Run[P] | None = None

    def iterate(
        self,
        following: Callable[[P], Iterable[tuple[P, B]]],
        is_at_end: Callable[[P], bool],
        ahead: int = 0,
        moves_on: bool = True,
    ) -> Iterator[B]:
        """Begin an iteration, and return its batches. It runs to its last batch, or while something refers to them.

        Args:
            following: returns the batches of an epoch from a place on, each with the place after it.
            is_at_end: whether no batch follows a place; then the next epoch begins.
            ahead: batches that a framework fetches before they are used.
            moves_on: the next epoch follows; False: the same one, until another is chosen.
        """
        batches: Any = self._batches(self._begin(is_at_end, ahead), following, moves_on)
        next(batches)  # a generator that has not begun does not notice that nothing refers to it any more
        return batches

    def _batches(
        self, run: _Run[P], following: Callable[[P], Iterable[tuple[P, B]]], moves_on: bool
    ) -> Iterator[B | None]:
        places = run.places
        try:
            yield None
            for after, batch in following(places[0]):
                places.append(after)
                self._advanced = run
                yield batch
            self._finish(run, moves_on)
        finally:
            self._end(run)

    def _begin(self, is_at_end: Callable[[P], bool], ahead: int) -> _Run[P]:
        place, moved = self._reached()
        # a framework that chose the next epoch after a load means: after what the state leaves
        wants_next = self._loaded and self._wanted == self.start.epoch + 1
        stopped = moved and place.epoch == self.start.epoch  # right after the last batch, maybe
        if (stopped and is_at_end(place)) or (wants_next and is_at_end(self.start)):
            self.start, self._loaded = self._first(self.start.epoch + 1), False
        self._wanted, self._begun = None, True
        if not self._runs:
            self._place, self._moved = self.start, False
        self._runs.append(_Run(self.start, ahead))
        return self._runs[-1]

    def _finish(self, run: _Run[P], moves_on: bool) -> None:
        """Move on from an iteration that has reached the end of its epoch."""
        # a second iteration, or one from before a load, does not move the loader
        if self._runs[:1] != [run]:
            return
        epoch = run.places[0].epoch
        self._end(run)
        if self.start.epoch == epoch:  # else another epoch was chosen meanwhile
            self.start, self._loaded = self._first(epoch + moves_on), False
        if moves_on:
            self._place, self._moved = self.start, False

    def _end(self, run: _Run[P]) -> None:
        if run not in self._runs:
            return
        self._place, self._moved = self._reached()
        self._runs.remove(run)
        if self._runs:
            # the next iteration is described from where it is now: what it read before does not count
            self._runs[0].since = self._runs[0].places[0]

    def _reached(self) -> tuple[P, bool]:
        """Return the place of the running iteration, or else of the last one, and whether it was read up to there."""
        # the running iteration counts once it has read beyond where states began to describe it
        if self._runs and self._runs[0].places[0] is not self._runs[0].since:
            return self._runs[0].places[0], True
        return self._place, self._moved

    @property
    def place(self) -> P:
        """The place that a state describes: after the last batch of the running iteration, or of the last one.

        Raises:
            LoaderStateError: a later iteration was read while an earlier one runs.
        """
        if len(self._runs) > 1 and self._advanced is not self._runs[0]:
            raise LoaderStateError(
                f"{len(self._runs)} iterations of this loader are running, and a state describes only one: delete or "
                "close the other iterator first, or read it from a loader of its own"
            )
        return self._runs[0].places[0] if self._runs else self._place

    def load(self, place: P) -> None:
        """Begin the next iteration at a place. Running ones go on, but do not move the loader any more."""
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
        if not self._runs:
            self._place, self._moved = self.start, False
        elif self._runs[0].places[0].epoch == epoch:  # from its beginning
            self._moved, self._runs[0].since = False, self._runs[0].places[0]
        return True

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_runs": [], "_advanced": None}
