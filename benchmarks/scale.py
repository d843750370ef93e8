"""Open a dataset of a million chunks, plan 10^12 tokens, and estimate what such a dataset takes.

usage: scale.py [--chunks N] [--objects N] [--rows N] [--runs N] [--folder DIR]
       scale.py --simulated [--ranks N]
       scale.py --plan [--tokens N] [--rows N] [--nodes N] [--cores N] [--per-core-hour X] [--per-gb-month X]
                [--per-1000-writes X] [--folder DIR]

Without a mode, writes a store with a manifest of N chunks, and prints for each kind of loader: the seconds of
`open_dataset`, of the first batch, and of the first batch after a resume in mid-epoch, and the peak resident memory of
the whole process, with its imports; each in a fresh process. DIR keeps the store for the next run.

--simulated runs the plans of loaders over 10^12 tokens, on many ranks: at random steps it checks that no row is read
twice, and that all ranks take as many steps. `filled` is the fraction of batches that have rows.

--plan builds rows of Alpaca with `tokenloom build`, and scales its rate and the sizes in its store to N tokens.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.loaders.order.batch_plan import FILLER, WINDOW_ROWS, FixedBatches, Place, TokenBudget
from tokenloom.loaders.order.mixture import Mixture, MixtureOrder, Source
from tokenloom.loaders.order.row_order import RowOrder
from tokenloom.resources.tables.ragged import Ints

LENGTH = 2048
BUDGET = 16_384
KINDS: dict[str, dict[str, Any]] = {
    "8 rows, full shuffle": {"batch_size": 8, "shuffle": "full"},
    "8 rows, block shuffle": {"batch_size": 8, "shuffle": "block"},
    "token budget, full shuffle": {"token_budget": BUDGET, "shuffle": "full"},
    "token budget, block shuffle": {"token_budget": BUDGET, "shuffle": "block"},
}


def peak() -> float:
    """Return the peak resident memory of this process in MB, pages of mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def opened(store: str, kind: str) -> tuple[float, float, float, float]:
    """Return the seconds to open the dataset, to its first batch, and to that after a resume, and the peak memory."""
    options: dict[str, Any] = {**KINDS[kind], "padding": "longest"}
    started = time.perf_counter()
    dataset = open_dataset("large", store=store)
    ready = time.perf_counter()
    loader = TokenLoader(dataset, **options)
    next(iter(loader))
    first = time.perf_counter()
    state = {**loader.state_dict(), "position": len(dataset) // 2 // WINDOW_ROWS * WINDOW_ROWS, "batch": 0}
    later = TokenLoader(dataset, **options)
    started_again = time.perf_counter()
    later.load_state_dict(state)
    next(iter(later))
    return ready - started, first - ready, time.perf_counter() - started_again, peak()


def fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def written(folder: str, chunks: int, objects: int, rows: int) -> int:
    from large_store import write_large

    return write_large(Path(folder), chunks, objects, rows, 2 * LENGTH - 1)


def open_a_large_manifest(folder: Path, options: argparse.Namespace) -> None:
    store = folder / "store"
    if not (store / "datasets" / "large" / "sequences.json").exists():
        fresh(written, str(store), options.chunks, min(options.objects, options.chunks), options.rows)
    dataset = open_dataset("large", store=store)
    manifest = max(path.stat().st_size for path in (store / "objects").glob("*/*.arrow"))
    print(f"{options.chunks:,} chunks, {len(dataset):,} rows, {dataset.tokens:,} tokens")
    print(f"largest object {manifest / 1e6:,.0f} MB, {options.runs} runs, medians")
    print(f"{'':30}{'open_dataset':>14}{'first batch':>14}{'after resume':>14}{'peak memory':>14}")
    for kind in KINDS:
        runs = [fresh(opened, str(store), kind) for _ in range(options.runs)]
        ready, first, later, memory = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{kind:30}{ready:12.2f} s{first:12.2f} s{later:12.2f} s{memory:11,.0f} MB")


def simulated_lengths(rows: Ints) -> Ints:
    """Return a number of tokens for each row, 1 to 799: a pure function of the row."""
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(32)).astype(np.int64) % 799 + 1


def simulated_plans() -> dict[str, FixedBatches | TokenBudget]:
    """Return plans of epochs of about 10^12 tokens."""
    tokens = 10**12
    rows, ragged = tokens // LENGTH, tokens // 400
    plans: dict[str, FixedBatches | TokenBudget] = {}
    for shuffle in ("full", "block"):
        plans[f"8 × 2,048, {shuffle}"] = FixedBatches(RowOrder(rows, "a", 0, shuffle), rows, 8)
        order = RowOrder(ragged, "b", 0, shuffle)
        plans[f"token budget, {shuffle}"] = TokenBudget(
            order, ragged, BUDGET, simulated_lengths, lambda _: "b", 0, lambda widths: widths
        )
    sources = [Source(f"source {n}", rows * n // 15, tokens * n // 15, epochs=1) for n in range(1, 6)]
    mixture = Mixture(sources, {source.name: source.rows for source in sources}, by="rows")
    mixed = MixtureOrder(mixture, [RowOrder(source.rows, source.name) for source in sources])
    plans["8 × 2,048, mixture of five"] = FixedBatches(Numbered(mixed, sources), len(mixture), 8)
    return plans


class Numbered:
    """The rows of a mixture, numbered across its sources."""

    def __init__(self, order: MixtureOrder, sources: list[Source]):
        self._order = order
        self._first = np.concatenate([[0], np.cumsum([source.rows for source in sources])])

    def span(self, begin: int, end: int) -> Ints:
        places = self._order.span(begin, end)
        return self._first[places[:, 0]] + places[:, 1]


def run_the_planner(ranks: int, samples: int) -> None:
    print(f"epochs of 10^12 tokens on {ranks:,} ranks, {samples} places")
    names = (
        f"{'rows':>16}{'steps per epoch':>18}{'rows checked':>14}{'filled':>10}{'ms per place':>14}{'µs per step':>13}"
    )
    print(f"{'':30}{names}")
    for name, plan in simulated_plans().items():
        size = 8 * ranks if isinstance(plan, FixedBatches) else WINDOW_ROWS
        begins = np.random.default_rng(0).integers(0, plan.rows // size, samples).tolist()
        found, first, each, steps = list[Ints](), list[float](), list[float](), 0
        for number in {*begins, (plan.rows - 1) // size}:
            rows, counts, seconds = read_by_all(plan, Place(0, number * size), size, ranks)
            found += rows
            first.append(seconds[0])
            each += seconds[1:]
            assert len({*counts}) == 1, f"ranks take {min(counts)} to {max(counts)} steps"
            steps += counts[0]
        every = np.concatenate(found)
        assert len(np.unique(every)) == len(every), "a row is read twice"
        count = plan.count(ranks) if isinstance(plan, FixedBatches) else round(steps * plan.rows / len(every))
        speed = f"{1e3 * statistics.median(first):14.1f}{1e6 * statistics.median(each):13.1f}"
        print(f"{name:30}{plan.rows:16,}{count:18,}{len(every):14,}{len(found) / steps / ranks:10.1%}{speed}")
    print(f"peak memory {peak():,.0f} MB")


def read_by_all(
    plan: FixedBatches | TokenBudget, place: Place, size: int, ranks: int
) -> tuple[list[Ints], list[int], list[float]]:
    """Return the rows of each batch that is not padding alone, in the steps of `size` positions from a place on, on all
    ranks; and of each rank the number of steps and the seconds per step."""
    rows, counts, seconds = list[Ints](), list[int](), list[float]()
    for rank in range(ranks):
        started, count = time.perf_counter(), 0
        for step in plan.steps(place, rank, ranks):
            real = step.rows[step.rows != FILLER]
            rows += [real] if len(real) else []
            count += 1
            if step.after.position >= min(place.position + size, plan.rows):
                break
        seconds.append((time.perf_counter() - started) / max(count, 1))
        counts.append(count)
    return rows, counts, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--objects", type=int, default=64, help="distinct objects; the chunks repeat them")
    parser.add_argument("--rows", type=int, help="rows per chunk, or rows to build for --plan")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder that keeps the store; default: a temporary folder")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--tokens", type=int, default=10**12)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--cores", type=int, default=32, help="cores per node")
    parser.add_argument("--per-core-hour", type=float, default=0.04)
    parser.add_argument("--per-gb-month", type=float, default=0.023)
    parser.add_argument("--per-1000-writes", type=float, default=0.005)
    options = parser.parse_args()
    if options.simulated:
        run_the_planner(options.ranks, options.places)
        return
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.plan:
            from scale_plan import print_plan

            print_plan(folder, options)
        else:
            options.rows = options.rows or 480
            open_a_large_manifest(folder, options)


if __name__ == "__main__":
    main()
