"""Time the first batch of loaders that resume far into their order, and of a fresh process.

usage: resume.py [--rows N] [--runs N] [--folder DIR]

Rows are those of build.py, built once; DIR keeps them for the next run. Prints medians over fresh processes, for

- a dataset with 10^12 simulated rows, the rows of a real one repeated: from `load_state_dict` to the first batch, the
  first thing that the process reads;
- the real dataset, open and in the page cache: from `load_state_dict` of a new loader to its first batch;
- the real dataset: from `open_dataset` to the first batch, with its files in the page cache and without;

and the memory that the process has then in addition to its imports. Pages of mapped files are counted separately:
processes share them, and the system frees them when memory is short.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from build import BIN, write

from tokenloom.loaders import MixedDataset, PaddingPolicy, TokenDataset, TokenLoader, open_dataset
from tokenloom.loaders.order.row_order import RowOrder, Shuffle
from tokenloom.loaders.reading.batch import Batch
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.engines.engine import cpu_count
from tokenloom.resources.tables.ragged import Ints

SIMULATED = 10**12
KINDS = ("full", "block", "none", "mixture of two", "token budget")
WINDOW = 4096
"""Rows of a window of a token budget, whose states are at the first row of a window."""


class RepeatedReader(SequenceReader):
    """Reads row n of simulated datasets, all of one length, as row n modulo the rows of the real ones."""

    def __init__(self, real: list[SequenceReader]):
        self.__dict__.update(SequenceReader.joined(real).__dict__)
        self._each = len(real[0])

    def batches(self, rows: Sequence[Ints], policy: PaddingPolicy, images: bool = True) -> Iterator[Batch]:
        return super().batches([np.where(some < 0, some, self._real(some)) for some in rows], policy, images)

    def _real(self, rows: Ints) -> Ints:
        dataset, row = np.divmod(rows, SIMULATED)
        return dataset * self._each + row % self._each


class SimulatedDataset(TokenDataset):
    """The rows of a real dataset, repeated up to `SIMULATED` rows."""

    def __init__(self, real: TokenDataset):
        self.__dict__.update(real.__dict__)
        self.real = real

    def __len__(self) -> int:
        return SIMULATED

    def order(self, seed: int, shuffle: Shuffle) -> RowOrder:
        return RowOrder(SIMULATED, self.digest, seed, shuffle)

    def lengths(self, rows: Ints) -> Ints:
        return self.real.lengths(rows % len(self.real))

    @cached_property
    def reader(self) -> SequenceReader:
        return RepeatedReader([self.real.reader])


class SimulatedMixture(MixedDataset):
    """A mixture of two simulated datasets."""

    def __init__(self, one: SimulatedDataset, other: SimulatedDataset):
        super().__init__({"one": one, "other": other}, {"one": 0.7, "other": 0.3}, by="rows")
        self._real = [one.real, other.real]

    @cached_property
    def reader(self) -> SequenceReader:
        return RepeatedReader([real.reader for real in self._real])


def loader_of(dataset: TokenDataset | MixedDataset, kind: str = "full") -> TokenLoader:
    if kind == "token budget":
        return TokenLoader(dataset, token_budget=16_384, padding="longest")
    return TokenLoader(dataset, batch_size=8, shuffle=kind if kind in ("block", "none") else "full", padding="longest")


def first_batch(loader: TokenLoader, position: int) -> tuple[float, TokenLoader]:
    """Load a state and read one batch. Return the seconds, and the open loader."""
    state = {**loader.state_dict(), "position": position}
    started = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - started, loader


def resident() -> tuple[int, int]:
    """Return the bytes of this process's own memory, and of the files that it has mapped."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    sizes = {line.split()[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Rss")}
    return 1024 * (sizes["RssAnon:"] + sizes["RssShmem:"]), 1024 * sizes["RssFile:"]


def disk_reads() -> int:
    """Return the bytes that this process has read from disk."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def measured(run: Callable[[], tuple[float, TokenLoader]]) -> tuple[float, ...]:
    """Return the seconds that `run` reports, and its loader's bytes of memory, of mapped files and read from disk."""
    before, read = resident(), disk_reads()
    seconds, loader = run()
    after = resident()
    del loader
    return seconds, after[0] - before[0], after[1] - before[1], disk_reads() - read


def simulated(store: str, kind: str, position: int) -> tuple[float, ...]:
    def run() -> tuple[float, TokenLoader]:
        one, other = (SimulatedDataset(open_dataset("rows", store=store)) for _ in range(2))
        dataset = SimulatedMixture(one, other) if kind == "mixture of two" else one
        place = position - position % WINDOW if kind == "token budget" else position
        return first_batch(loader_of(dataset, kind), place)

    return measured(run)


def warm(store: str, position: int) -> tuple[float, ...]:
    dataset = open_dataset("rows", store=store)
    first_batch(loader_of(dataset), 500)
    return measured(lambda: first_batch(loader_of(dataset), position))


def opened(store: str, batches: int) -> tuple[float, ...]:
    def run() -> tuple[float, TokenLoader]:
        started = time.perf_counter()
        loader = loader_of(open_dataset("rows", store=store))
        running = iter(loader)
        next(running)
        seconds = time.perf_counter() - started
        for _ in range(1, batches):
            next(running)
        return seconds, loader

    return measured(run)


def fresh(run: Callable[..., tuple[float, ...]], *arguments: Any) -> tuple[float, ...]:
    """Call a function in a fresh process that has only run its imports. Return what it measures."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def drop_page_cache(folder: Path) -> None:
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def report(what: str, runs: list[tuple[float, ...]]) -> None:
    seconds, own, mapped, read = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"{what:50}{seconds * 1e3:9.1f} ms{own / 1e6:9.1f} MB{mapped / 1e6:9.1f} MB{read / 1e6:9.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_300_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder that keeps the dataset; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        store = folder / "store"
        if not (store / "datasets" / "rows" / "sequences.json").exists():
            _, config, _ = write(folder, options.rows)
            build = [str(BIN / "tokenloom"), "build", str(config), "--store", str(store)]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows, runs, place = len(open_dataset("rows", store=store)), range(options.runs), str(store)
        print(f"{options.runs} runs, {cpu_count()} cores, batches of 8 rows")
        print(f"{'':50}{'first batch':>12}{'memory':>12}{'mapped':>12}{'from disk':>12}")
        for kind in KINDS:
            for position in (0, 10**6, 10**9):
                what = f"10^12 simulated rows, {kind}, {position:,}"
                report(what, [fresh(simulated, place, kind, position) for _ in runs])
        for position in (0, 10**3, 10**6):
            if position < rows:
                report(f"{rows:,} rows, resumed at {position:,}", [fresh(warm, place, position) for _ in runs])
        report(f"{rows:,} rows, opened", [fresh(opened, place, 1) for _ in runs])
        cold = []
        for _ in runs:
            drop_page_cache(store)
            cold.append(fresh(opened, place, 1))
        report(f"{rows:,} rows, opened, from the disk", cold)
        report(f"{rows:,} rows, opened, 1,000 batches read", [fresh(opened, place, 1000) for _ in runs])


if __name__ == "__main__":
    main()
