"""Progress against a model: iterations begin, advance, end and are dropped in random order, among loads and epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.order.progress import Progress

STEPS = 4


class At(NamedTuple):
    epoch: int = 0
    step: int = 0


def is_at_end(place: At) -> bool:
    return place.step == STEPS


def following(place: At) -> Iterator[tuple[At, At]]:
    """Batches that are the place after them."""
    for step in range(place.step + 1, STEPS + 1):
        yield At(place.epoch, step), At(place.epoch, step)


@pytest.mark.parametrize("seed", range(40))
def test_each_state_resumes_after_the_last_batch_of_the_iteration_that_counts(seed: int) -> None:
    """The oracle: a state is the place of the oldest running iteration, else of the last one that counted."""
    noise, progress = random.Random(seed), Progress(At)
    running: list[Iterator[At]] = []
    counting: list[bool] = []
    places: list[At] = []
    names: list[int] = []
    last, latest, begun = At(), 0, 0
    for _ in range(60):
        action = noise.choice(["begin", "advance", "advance", "advance", "drop", "load"])
        number = noise.randrange(len(running)) if running else -1
        is_first = number >= 0 and counting[number] and not any(counting[:number])
        if action == "begin" and len(running) < 3:
            running.append(progress.iterate(following, is_at_end))
            places.append(next(running[-1]))
            counting.append(True)
            names.append(begun := begun + 1)
            latest, last = begun, places[-1] if sum(counting) == 1 else last
        elif action == "load":
            last = At(noise.randrange(3), noise.randrange(STEPS))
            progress.load(last)
            counting = [False] * len(running)
        elif action == "advance" and number >= 0:
            if is_at_end(places[number]):
                assert next(running[number], None) is None
                last = progress.start if is_first else last
                del running[number], counting[number], places[number], names[number]
            else:
                latest, places[number] = names[number], next(running[number])
                last = places[number] if is_first else last
        elif action == "drop" and number >= 0:
            del running[number], counting[number], places[number], names[number]
        alive = [index for index, counts in enumerate(counting) if counts]
        if len(alive) > 1 and latest != names[alive[0]]:
            with pytest.raises(LoaderStateError, match=f"{len(alive)} iterations"):
                _ = progress.place
        else:
            assert progress.place == (places[alive[0]] if alive else last), (seed, action)


def test_batches_that_are_fetched_ahead_are_not_counted() -> None:
    progress = Progress(At)
    batches = progress.iterate(following, is_at_end, ahead=2)
    places = [progress.place, *(progress.place for _ in batches)]
    assert places == [At(0, 0), At(0, 0), At(0, 0), At(0, 1), At(0, 2)]
    assert progress.place == progress.start == At(1, 0)
