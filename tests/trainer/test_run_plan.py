"""A run whose steps change their size at any moments reads each row of each epoch once, up to where it is to end."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from support.soak import SOAK
from tokenloom.loaders.order import batch_plan
from tokenloom.loaders.order.batch_plan import FixedBatches, Place, TokenBudget
from tokenloom.trainer.run_state import RunPlan, StepSize

BUDGET = 50


class InOrder:
    def span(self, begin: int, end: int) -> np.ndarray:
        return np.arange(begin, end)


def drawn_size(draw: random.Random, kind: str) -> StepSize:
    sizes = (draw.randint(1, 9), None) if kind == "rows" else (None, BUDGET)
    return StepSize(draw.randint(1, 3), *sizes, draw.randint(1, 3))


def plan_of(size: StepSize, rows: int) -> FixedBatches | TokenBudget:
    if size.batch_size:
        return FixedBatches(InOrder(), rows, size.batch_size)
    return TokenBudget(
        InOrder(), rows, BUDGET, lambda row: row * 7 % rows % 23 + 3, lambda _: "d", 0, lambda width: width
    )


def batches(plan: FixedBatches | TokenBudget, place: Place, ranks: int) -> Iterator[tuple[Place, list[int]]]:
    """Yield the rows of all ranks at each step, counted across epochs, with the place after it; epoch after epoch."""
    while True:
        for steps in zip(*(plan.steps(place, rank, ranks) for rank in range(ranks)), strict=True):
            yield steps[0].after, [row for step in steps for row in step.rows.tolist() if row >= 0]
        place = Place(place.epoch + 1)


@pytest.mark.parametrize("kind", ["rows", "budget"])
def test_a_run_of_changing_steps_reads_each_row_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_plan, "WINDOW_ROWS", 16)
    for seed in range(3000 if SOAK else 150):
        draw = random.Random(f"{kind} {seed}")
        rows, epochs = draw.randint(1, 90), draw.choice([1.0, 2.0, 3.0, 0.5, 1.5, 2.25])
        steps = draw.choice([None, None, draw.randint(1, 60)])

        size = drawn_size(draw, kind)
        plan = plan_of(size, rows)
        run = RunPlan(plan, size)
        step, place, read, left = 0, Place(), list[int](), run.total(epochs, steps)
        before, total = 0, left
        case = (kind, seed)
        while left:
            before = run.position(step, place)
            taken = [*islice(batches(plan, place, size.ranks), size.gradient_accumulation_steps)]
            if steps is None and not epochs % 1:
                taken = [batch for batch in taken if min(batch[1]) < epochs * rows]
            assert taken, (case, step, "a step without data")
            place, step, left = taken[-1][0], step + 1, left - 1
            read += [row for _, batch in taken for row in batch]
            if left and draw.random() < 0.15:
                size, state = drawn_size(draw, kind), json.loads(json.dumps(run.state()))
                plan = plan_of(size, rows)
                run = RunPlan.resumed(plan, size, state).changed(size, step, place)
                left = run.left(step, place, epochs, steps) if run.since else left
            assert run.since is None or left == run.left(step, place, epochs, steps), case
        assert max(Counter(read).values()) == 1, case
        whole = max(read) // rows * rows if kind == "budget" else max(read) + 1
        assert {*range(whole)} <= {*read}, case  # no row is left out on the way
        if steps is None:
            assert len(read) >= int(epochs) * rows and (epochs % 1 or len(read) == epochs * rows), case
        assert before < total and run.position(step, place) >= total - 1, case


@pytest.mark.parametrize("kind", ["rows", "budget"])
def test_the_steps_left_of_an_epoch_are_those_that_it_yields(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_plan, "WINDOW_ROWS", 16)
    draw = random.Random(kind)
    for _ in range(300 if SOAK else 60):
        rows, ranks, batch = draw.randint(1, 60), draw.randint(1, 3), draw.randint(1, 9)
        plan = plan_of(StepSize(ranks, batch if kind == "rows" else None, BUDGET, 1), rows)
        if isinstance(plan, FixedBatches):
            skips = sorted(sorted(draw.sample(range(2 * rows + 2), 2)) for _ in range(draw.randint(0, 2)))
            skips = tuple((begin, end) for begin, end in skips)
            plan = FixedBatches(plan.order, rows, batch, draw.random() < 0.5, skips)
        else:
            plan = plan.as_aligned(draw.random() < 0.5)
        for epoch in (0, 1):
            steps = [*plan.steps(Place(epoch), 0, ranks)]
            for number, place in enumerate([Place(epoch), *(step.after for step in steps)]):
                assert plan.left(place, ranks) == len(steps) - number, (plan, place)
