"""Time a training loop with steps of some milliseconds, with tokenloom's loader and with one ready batch.

usage: step.py [--milliseconds M] [--steps N] [--runs N] [--tokens N]

Steps either sleep, as a thread that waits for a GPU does, or train a small torch model on the CPU, on all but one core.
Batches are 8 × 2,048 random tokens, shuffled. The loops take turns. Prints the median time per step with the ready
batch, and how much longer steps are, within the run, with batches built in the caller's thread and in a background
thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from reading import CHUNK, LENGTH, write

from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.resources.engines.engine import cpu_count

Batch = dict[str, Any]
Step = Callable[[Batch], object]
BATCH, WARM, VOCABULARY, WIDTH = 8, 20, 50_000, 64


def sleeping(seconds: float) -> Step:
    return lambda batch: time.sleep(seconds)


def training(seconds: float, batch: Batch) -> Step:
    """Return a training step of a model as deep as fits into that time."""

    def step_of(depth: int) -> Step:
        layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
        model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH, sparse=True), *layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(batch: Batch) -> None:
            optimizer.zero_grad()
            model(batch["input_ids"][:, ::16]).square().mean().backward()
            optimizer.step()

        return step

    def taken(depth: int) -> float:
        step = step_of(depth)
        return statistics.median(loop(step, repeat(batch), WARM) for _ in range(3)) / WARM

    few, many = taken(1), taken(9)
    return step_of(max(1, round(1 + 8 * (seconds - few) / max(many - few, 1e-9))))


def loop(step: Step, batches: Iterable[Batch], steps: int) -> float:
    """Run `steps` steps. Return the seconds that they take."""
    started = time.perf_counter()
    for _, batch in zip(range(steps), batches, strict=False):
        step(batch)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=50_000_000)
    options = parser.parse_args()
    torch.set_num_threads(max(1, cpu_count() - 1))
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as folder:
        write(Path(folder), max(options.tokens // LENGTH // CHUNK, 1))
        dataset = open_dataset("random", store=folder)
        depths = {"caller's thread": 0, "a thread ahead": 2}
        loaders = {name: TokenLoader(dataset, BATCH, prefetch_factor=depth) for name, depth in depths.items()}
        ready = next(iter(TokenLoader(dataset, BATCH)))
        batches = {"ready batch": repeat(ready)}
        batches |= {name: chain.from_iterable(repeat(loader)) for name, loader in loaders.items()}
        seconds = options.milliseconds / 1000
        shape = f"{options.runs} runs of {options.steps} steps, batches of {BATCH} × {LENGTH}"
        print(f"{shape}, {cpu_count()} cores, medians")
        for kind, step in {"sleeping": sleeping(seconds), "training": training(seconds, ready)}.items():
            measured: dict[str, list[float]] = {name: [] for name in batches}
            for _ in range(options.runs):
                for name, source in batches.items():
                    loop(step, source, WARM)
                    measured[name].append(loop(step, source, options.steps) / options.steps)
            print(f"{kind}: {statistics.median(measured['ready batch']) * 1e3:.2f} ms per step with a ready batch")
            for name in loaders:
                added = [own / other - 1 for own, other in zip(measured[name], measured["ready batch"], strict=True)]
                print(f"  {name:20} adds {statistics.median(added):6.2%}")


if __name__ == "__main__":
    main()
