"""Open a dataset of a million chunks, plan 10^12 tokens, and estimate what such a dataset takes.

usage: scale.py [--chunks N] [--objects N] [--rows N] [--runs N] [--folder DIR]
       scale.py --simulated [--ranks N ...] [--places N]
       scale.py --plan [--tokens N] [--rows N] [--nodes N] [--cores N] [--per-core-hour X] [--per-gb-month X]
                [--per-1000-writes X] [--ranks N ...] [--places N] [--folder DIR]

Without a mode, writes a store with a manifest of N chunks, and prints for each kind of loader: the seconds of
`open_dataset`, of the first batch, and of the first batch after a resume in mid-epoch, and the peak resident memory of
the whole process, with its imports; each in a fresh process. DIR keeps the store for the next run.

--simulated runs the plans of loaders over 10^12 tokens on up to 100,000 ranks. At random places and at the end of the
epoch it checks that no row is read twice or dropped, that sampled ranks read their part, and that all ranks take as
many steps. It prints the fraction of batches that have rows, the fraction of the token budget that tokens fill, and the
CPU time and memory of a rank's plan.

--plan builds rows of Alpaca with `tokenloom build`, and scales its rate and the sizes in its store to N tokens. Then it
does what --simulated does.
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

from scale_ranks import BUDGET, LENGTH, run_the_planner

from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.loaders.order.batch_plan import WINDOW_ROWS

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--objects", type=int, default=64, help="distinct objects; the chunks repeat them")
    parser.add_argument("--rows", type=int, help="rows per chunk, or rows to build for --plan")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder that keeps the store; default: a temporary folder")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 256, 1024, 4096, 16_384, 100_000])
    parser.add_argument("--places", type=int, default=3)
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
            print()
            run_the_planner(options.ranks, options.places)
        else:
            options.rows = options.rows or 480
            open_a_large_manifest(folder, options)


if __name__ == "__main__":
    main()
