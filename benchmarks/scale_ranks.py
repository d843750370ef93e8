"""Simulates the plans of loaders on very many ranks, over 10^12 tokens. Run by `scale.py --simulated` and `--plan`."""

from __future__ import annotations

import resource
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from tokenloom.loaders.order.batch_plan import FILLER, WINDOW_ROWS, FixedBatches, Place, Step, TokenBudget
from tokenloom.loaders.order.mixture import Mixture, MixtureOrder, Source
from tokenloom.loaders.order.row_order import RowOrder
from tokenloom.resources.tables.ragged import Ints

TOKENS, LENGTH, BUDGET, MEAN = 10**12, 2048, 16_384, 400
STEPS, SAMPLED = 3, 8
"""Steps that are simulated from each place on, and ranks whose own plans are run there."""

Plan = FixedBatches | TokenBudget


def simulated_lengths(rows: Ints) -> Ints:
    """Return a number of tokens for each row, 1 to 799: a pure function of the row."""
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(32)).astype(np.int64) % 799 + 1


class Numbered:
    """The rows of a mixture, numbered across its sources."""

    def __init__(self, order: MixtureOrder, sources: list[Source]):
        self._order = order
        self._first = np.concatenate([[0], np.cumsum([source.rows for source in sources])])

    def span(self, begin: int, end: int) -> Ints:
        places = self._order.span(begin, end)
        return self._first[places[:, 0]] + places[:, 1]


def budgeted(order: RowOrder | Numbered, rows: int) -> TokenBudget:
    return TokenBudget(order, rows, BUDGET, simulated_lengths, lambda _: "b", 0, lambda widths: widths)


def simulated_plan(name: str) -> Plan:
    """Return a plan of epochs of about 10^12 tokens; fresh, as each rank has it."""
    kind, shuffle = name.split(", ")
    rows = TOKENS // MEAN if kind == "token budget" else TOKENS // LENGTH
    if shuffle == "mixture of five":
        sources = [Source(f"source {n}", rows * n // 15, rows * n, epochs=1) for n in range(1, 6)]
        mixture = Mixture(sources, {source.name: source.rows for source in sources}, by="rows")
        mixed = MixtureOrder(mixture, [RowOrder(source.rows, source.name) for source in sources])
        order, rows = Numbered(mixed, sources), len(mixture)
    else:
        order = RowOrder(rows, "a", 0, "block" if shuffle == "block" else "full")
    return budgeted(order, rows) if kind == "token budget" else FixedBatches(order, rows, 8)


PLANS = [f"{kind}, {how}" for kind in ("8 × 2,048", "token budget") for how in ("full", "block", "mixture of five")]


@dataclass
class Found:
    """What the simulation of a plan has found: batches of all ranks, those with rows, their tokens; and for each rank
    that was run, the CPU seconds of its first step at a place and of the later ones, and its peak of memory."""

    batches: int = 0
    filled: int = 0
    tokens: int = 0
    rows: int = 0
    first: list[float] = field(default_factory=list[float])
    later: list[float] = field(default_factory=list[float])
    memory: list[float] = field(default_factory=list[float])


def simulate(name: str, ranks: int, places: int) -> Found:
    """Check the steps from random places on, and the last ones of the epoch.

    The batches of all ranks are those of one rank: sampled ranks must read every so many of them. They must have each
    row of their windows once, and all ranks must take as many steps, with the same state after each.
    """
    found, plan = Found(), simulated_plan(name)
    draw = np.random.default_rng(ranks)
    size = WINDOW_ROWS if isinstance(plan, TokenBudget) else 8 * ranks
    last = max(plan.rows - (STEPS - 1) * ranks * (BUDGET // MEAN if size == WINDOW_ROWS else 8), 0) // size
    for number in [*draw.integers(0, max(last, 1), places).tolist(), last]:
        place, most = Place(0, number * size), STEPS if number < last else None
        whole = [step.rows for step in islice(plan.steps(place, 0, 1), most and most * ranks)]
        afters, own = set[tuple[Place, ...]](), list[Step]()
        for rank in sorted({0, ranks - 1, *draw.integers(0, ranks, SAMPLED).tolist()}):
            own = timed(simulated_plan(name).steps(place, rank, ranks), most, found)
            afters.add(tuple(step.after for step in own))
            for at, step in enumerate(own):
                due = whole[at * ranks + rank] if at * ranks + rank < len(whole) else np.full(1, FILLER)
                equal = np.array_equal(step.rows[step.rows != FILLER], due[due != FILLER])
                assert equal, f"rank {rank} reads another batch at step {at}"
        assert len(afters) == 1, f"ranks take {sorted(map(len, afters))} steps, or have other states"
        assert most or own[-1].after.position == plan.rows
        check_rows(plan, place, own[-1].after, whole[: len(own) * ranks])
        if most:
            count(found, len(own) * ranks, whole[: len(own) * ranks])
    found.memory.append(traced(name, Place(0, last // 2 * size), ranks))
    return found


def timed(running: Iterator[Step], most: int | None, found: Found) -> list[Step]:
    """Run the plan of a rank for some steps, or to the end of the epoch, and note its CPU seconds."""
    steps = list[Step]()
    while most is None or len(steps) < most:
        started = time.process_time()
        step = next(running, None)
        if step is None:
            break
        (found.later if steps else found.first).append(time.process_time() - started)
        steps.append(step)
    return steps


def check_rows(plan: Plan, begin: Place, end: Place, batches: list[Ints]) -> None:
    """Check that batches have each row between two places once."""
    rows = np.concatenate(batches)
    rows = rows[rows != FILLER]
    whole = end.position - begin.position
    every = np.sort(rows)
    assert (every[1:] > every[:-1]).all(), "a row is read twice"
    due = plan.order.span(begin.position, end.position)
    assert (np.sort(rows[:whole]) == np.sort(due)).all(), "a row is dropped"
    assert (len(rows) > whole) == (end.batch > 0)


def count(found: Found, batches: int, whole: list[Ints]) -> None:
    """Count batches of all ranks."""
    rows = np.concatenate(whole)
    rows = rows[rows != FILLER]
    found.batches += batches
    found.filled += sum(len(batch) > 1 or int(batch[0]) != FILLER for batch in whole)
    found.rows += len(rows)
    found.tokens += int(simulated_lengths(rows).sum())


def traced(name: str, place: Place, ranks: int) -> float:
    """Return the peak of the memory that the plan of a rank allocates, in MB."""
    tracemalloc.start()
    try:
        for _ in islice(simulated_plan(name).steps(place, ranks - 1, ranks), STEPS):
            pass
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def run_the_planner(counts: list[int], places: int) -> None:
    """Print a table for each number of ranks."""
    print(f"epochs of 10^12 tokens; {places} places, {STEPS} steps at each, {SAMPLED + 2} of the ranks run there")
    heads = (
        "ranks",
        "rows checked",
        "steps per epoch",
        "full batches",
        "of the budget",
        "first step",
        "later",
        "memory",
    )
    print(f"{'':30}{heads[0]:>9}" + "".join(f"{head:>16}" for head in heads[1:]))
    for name in PLANS:
        for ranks in counts:
            found, plan = simulate(name, ranks, places), simulated_plan(name)
            if isinstance(plan, FixedBatches):
                steps, budget = plan.count(ranks), "—"
                full = -(-plan.rows // plan.batch_size) / (steps * ranks)
            else:  # the batches of an epoch, from those that were counted
                batches = found.filled * plan.rows / found.rows
                steps, budget = int(-(-batches // ranks)), f"{found.tokens / BUDGET / found.filled:.1%}"
                full = found.filled / found.batches * batches / (steps * ranks)
            cells = (f"{found.rows:,}", f"{steps:,}", f"{full:.2%}", budget)
            times = (f"{1e3 * statistics.median(seconds):,.2f} ms" for seconds in (found.first, found.later))
            cells = (*cells, *times, f"{max(found.memory):.1f} MB")
            print(f"{name:30}{ranks:9,}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
    print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:,.0f} MB")
