"""Batches of a token budget: nearly all are full on any number of ranks, and changes of a mixture leave them alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.stored_sequences import write_numbered
from tokenloom import open_dataset
from tokenloom.errors import LoaderStateError, StoreError
from tokenloom.loaders import MixedDataset, TokenLoader
from tokenloom.loaders.order import batch_plan
from tokenloom.loaders.order.batch_plan import FILLER, WINDOW_ROWS, Place, TokenBudget
from tokenloom.loaders.order.row_order import RowOrder
from tokenloom.resources.tables.ragged import Ints

BUDGET = 16_384


def length_of(rows: Ints) -> Ints:
    """Return a length for each row: 1 to 799, about 400 on average."""
    return rows * 7919 % 799 + 1


def plan_of(rows: int, lengths: Callable[[Ints], Ints] = length_of, budget: int = BUDGET) -> TokenBudget:
    return TokenBudget(RowOrder(rows, "d"), rows, budget, lengths, lambda _: "d", 0, lambda widths: widths)


def read(plan: TokenBudget, world: int, ranks: list[int], begin: Place, steps: int) -> list[list[list[int]]]:
    """Return the rows of each rank at some steps from a place on; all ranks must have as many, and the same places."""
    found, places = [], []
    for rank in ranks:
        running = plan.steps(begin, rank, world)
        taken = [step for _, step in zip(range(steps), running, strict=False)]
        found.append([step.rows.tolist() for step in taken])
        places.append([step.after for step in taken])
    assert all(after == places[0] for after in places)
    return found


@pytest.mark.parametrize("world", [8, 64, 256, 1024])
def test_ranks_read_the_batches_of_one_rank_in_turn(world: int) -> None:
    plan = plan_of(120 * WINDOW_ROWS + 77)
    single = [step.rows.tolist() for step in plan.steps(Place(1), 0, 1)]
    steps = plan.count(world, 1)
    assert steps == -(-len(single) // world)
    ranks = sorted({0, 1, world // 2, world - 2, world - 1})
    for rank, batches in zip(ranks, read(plan, world, ranks, Place(1), steps + 1), strict=True):
        expected = single[rank::world]
        assert batches == expected + [[FILLER]] * (steps - len(expected))
    assert len(single) / (steps * world) > 0.9
    assert sorted(row for batch in single for row in batch) == [*range(plan.rows)]
    tokens = sum(int(length_of(np.array(batch)).sum()) for batch in single)
    assert tokens / BUDGET / len(single) > 0.95


@pytest.mark.parametrize("world", [1, 3, 100, 1000])
def test_a_place_in_the_middle_continues_on_other_ranks(world: int) -> None:
    plan = plan_of(30 * WINDOW_ROWS)
    single = [step.rows.tolist() for step in plan.steps(Place(), 0, 1)]
    after = [step.after for _, step in zip(range(2), plan.steps(Place(), 0, 777), strict=False)][-1]
    assert plan.is_place(after)
    left = single[2 * 777 :]
    for rank in {0, world - 1}:
        (batches,) = read(plan, world, [rank], after, len(left))
        expected = left[rank::world]
        assert batches == expected + [[FILLER]] * (-(-len(left) // world) - len(expected))


def test_a_plan_far_in_takes_few_lengths() -> None:
    asked: list[int] = []

    def lengths(rows: Ints) -> Ints:
        asked.append(len(rows))
        return length_of(rows)

    for world, windows in ((1, 1), (64, 1), (1024, 11), (10_000, 103)):
        plan = plan_of(10**12, lengths)
        asked.clear()
        next(plan.steps(Place(3, WINDOW_ROWS * 10**8, 5), world - 1, world))
        assert sum(asked) <= (windows + 2) * WINDOW_ROWS
        assert max(asked) <= batch_plan.WINDOWS_AT_ONCE * WINDOW_ROWS


@pytest.mark.parametrize("error", [StoreError("damaged"), None])
@pytest.mark.parametrize("world", [1, 40, 300])
def test_all_batches_before_a_row_that_cannot_be_read_are_given(world: int, error: StoreError | None) -> None:
    """`error`: what reading its length raises; None: it is longer than the budget."""
    rows, bad = 20 * WINDOW_ROWS, 12 * WINDOW_ROWS + 5
    order = RowOrder(rows, "d", shuffle="none")

    def lengths(chosen: Ints) -> Ints:
        if error is not None and (chosen == bad).any():
            raise error
        return np.where(chosen == bad, BUDGET + 1, length_of(chosen))

    plan = TokenBudget(order, rows, BUDGET, lengths, lambda _: "d", 0, lambda widths: widths)
    good = [step.rows.tolist() for step in plan_of_order(order, 12 * WINDOW_ROWS).steps(Place(), 0, 1)]
    for rank in {0, world - 1}:
        found: list[list[int]] = []
        with pytest.raises(StoreError if error else ValueError, match=r"damaged|does not fit into token_budget"):
            found.extend(step.rows.tolist() for step in plan.steps(Place(), rank, world))
        assert found == [good[number + rank] for number in range(0, len(good) - world + 1, world)]


def plan_of_order(order: RowOrder, rows: int) -> TokenBudget:
    return TokenBudget(order, rows, BUDGET, length_of, lambda _: "d", 0, lambda widths: widths)


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MixedDataset:
    monkeypatch.setattr(batch_plan, "WINDOW_ROWS", 64)
    for name, first in (("a", 3), ("b", 30_000)):
        write_numbered(tmp_path, name, [50] * 8, 12, first=first)
    opened = {name: open_dataset(name, store=tmp_path) for name in "ab"}
    return MixedDataset(opened, {"a": 1.0, "b": 1.0}, by="rows", epochs={"a": 1, "b": 1})


def test_a_change_of_a_mixture_keeps_the_batches_of_windows_before_it(mixed: MixedDataset) -> None:
    loader = TokenLoader(mixed, token_budget=30, padding="longest", rank=0, world_size=1)
    steps, batches = list(loader.steps()), iter(loader)
    for _ in range(30):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["batch"] and state["position"] == 64
    changed = TokenLoader(mixed.change(200, {"a": 1.0, "b": 3.0}), token_budget=30, padding="longest")
    changed.load_state_dict(state)
    rows = [row for step in (*steps[:30], *changed.steps()) for row in step.rows.tolist()]
    assert sorted(rows) == [*range(len(mixed))]
    inside = TokenLoader(mixed.change(100, {"a": 1.0, "b": 3.0}), token_budget=30, padding="longest")
    with pytest.raises(LoaderStateError, match="data is"):  # the change is in a window that is partly read
        inside.load_state_dict(state)


@pytest.mark.parametrize("world", [1, 3, 200])
def test_a_state_of_an_earlier_version_keeps_its_steps(mixed: MixedDataset, world: int) -> None:
    """Its ranks finish each window before the next; so do those that continue it, in later states too."""
    single = TokenLoader(mixed, token_budget=30, padding="longest", rank=0, world_size=1)
    expected: list[list[list[int]]] = []
    for begin in range(0, len(mixed), 64):
        window = single.plan.batches(0, begin)  # type: ignore[union-attr]
        for first in range(0, len(window), world):
            step = [batch.tolist() for batch in window[first : first + world]]
            expected.append(step + [[FILLER]] * (world - len(step)))
    for rank in {0, world - 1}:
        loader = TokenLoader(mixed, token_budget=30, padding="longest", rank=rank, world_size=world)
        assert loader.state_dict()["version"] == 3
        loader.load_state_dict({**loader.state_dict(), "version": 1})
        assert len(loader) == len(expected)
        assert [step.rows.tolist() for step in loader.steps()] == [step[rank] for step in expected]
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        assert state["version"] == 1
        with pytest.raises(LoaderStateError):
            loader.load_state_dict({**state, "token_budget": 31, "version": 3})
        later = TokenLoader(mixed, token_budget=30, padding="longest", rank=rank, world_size=world)
        later.load_state_dict(state)
        assert [step.rows.tolist() for step in later.steps()] == [step[rank] for step in expected[1:]]
        assert loader.state_dict()["version"] == 1  # the refused state changed nothing
