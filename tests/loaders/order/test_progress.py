"""Progress against a model: iterations begin, advance, end and are dropped in random order, among loads and epochs."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.order.progress import Progress, Run

STEPS = 4


class At(NamedTuple):
    epoch: int = 0
    step: int = 0


def is_at_end(place: At) -> bool:
    return place.step == STEPS


@pytest.mark.parametrize("seed", range(40))
def test_each_state_resumes_after_the_last_batch_of_the_iteration_that_counts(seed: int) -> None:
    """The oracle: a state is the place of the oldest running iteration, else of the last one that counted."""
    noise, progress = random.Random(seed), Progress(At)
    running: list[Run[At]] = []
    counting: list[bool] = []
    names: list[int] = []  # of the iterations: a reference to one would keep it running
    last, latest, begun = At(), 0, 0
    for _ in range(60):
        action = noise.choice(["begin", "advance", "advance", "advance", "drop", "load"])
        number = noise.randrange(len(running)) if running else -1
        is_first = number >= 0 and counting[number] and not any(counting[:number])
        if action == "begin" and len(running) < 3:
            running.append(progress.begin(is_at_end))
            counting.append(True)
            names.append(begun := begun + 1)
            last = running[-1].place if sum(counting) == 1 else last
        elif action == "load":
            last = At(noise.randrange(3), noise.randrange(STEPS))
            progress.load(last)
            counting = [False] * len(running)
        elif action == "advance" and number >= 0:
            if is_at_end(running[number].place):
                progress.finish(running[number])
                last = progress.start if is_first else last
                del running[number], counting[number], names[number]
            else:
                latest = names[number]
                progress.advance(running[number], At(running[number].epoch, running[number].place.step + 1))
                last = running[number].place if is_first else last
        elif action == "drop" and number >= 0:
            del running[number], counting[number], names[number]
        alive = [index for index, counts in enumerate(counting) if counts]
        if len(alive) > 1 and latest != names[alive[0]]:
            with pytest.raises(LoaderStateError, match=f"{len(alive)} iterations"):
                _ = progress.place
        else:
            assert progress.place == (running[alive[0]].place if alive else last), (seed, action)


def test_batches_that_are_fetched_ahead_are_not_counted() -> None:
    progress: Any = Progress(At)
    run = progress.begin(is_at_end, ahead=2)
    places = [progress.place]
    for step in range(1, STEPS + 1):
        progress.advance(run, At(0, step))
        places.append(progress.place)
    assert places == [At(0, 0), At(0, 0), At(0, 0), At(0, 1), At(0, 2)]
    progress.finish(run)
    assert progress.place == progress.start == At(1, 0)
