"""Time training steps of some milliseconds, with the trainer's loader and with one ready batch.

usage: training.py [--milliseconds M] [--steps N] [--runs N] [--tokens N] [--batch N]

The same trainer runs both, in turn; its model sleeps, as a thread that waits for a GPU does. Batches are rows of 2,048
random tokens, shuffled. Prints the median time per step with the ready batch, and how much longer steps are, within the
run, with the loader as `tokenloom train` sets it up, and with a loader that prepares nothing ahead.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from reading import CHUNK, LENGTH, write

from tokenloom.config import TrainingConfig
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.resources.engines.engine import cpu_count
from tokenloom.trainer import TokenTrainer


class SleepingTrainer(TokenTrainer):
    """Sleeps in each step instead of computing the loss; trains on one batch over and over if it is `ready`."""

    seconds: float
    ready: dict[str, Any] | None = None

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader() if self.ready is None else repeat((None, self.ready))

    def _loss_sum(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        time.sleep(self.seconds)
        return next(model.parameters()).sum()


def seconds_per_step(dataset: TokenDataset, options: argparse.Namespace, ahead: int, ready: Any = None) -> float:
    loader = TokenLoader(dataset, options.batch, seed=0, prefetch_factor=ahead or None)
    config = TrainingConfig(steps=options.steps, save_steps=10**9, logging_steps=50)
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as folder:
        trainer = SleepingTrainer(torch.nn.Linear(8, 8), config, loader, output_dir=folder)
        trainer.step_log.report = lambda line: None
        trainer.seconds, trainer.ready = options.milliseconds / 1000, ready
        started = time.perf_counter()
        trainer.train()
        return (time.perf_counter() - started) / options.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as folder:
        write(Path(folder), max(options.tokens // LENGTH // CHUNK, 1))
        dataset = open_dataset("random", store=folder)
        inputs = dict(next(iter(TokenLoader(dataset, options.batch))))
        seconds_per_step(dataset, options, 2)
        added: dict[str, list[float]] = {"two batches ahead": [], "nothing ahead": []}
        plain: list[float] = []
        for _ in range(options.runs):
            plain.append(seconds_per_step(dataset, options, 0, inputs))
            for name, ahead in (("two batches ahead", 2), ("nothing ahead", 0)):
                added[name].append(seconds_per_step(dataset, options, ahead) / plain[-1] - 1)
    shape = f"{options.runs} runs of {options.steps} steps, batches of {options.batch} × {LENGTH}"
    print(f"{shape}, {cpu_count()} cores, medians")
    print(f"{statistics.median(plain) * 1e3:.2f} ms per step with a ready batch")
    for name, values in added.items():
        print(f"  {name:20} adds {statistics.median(values):6.2%}")


if __name__ == "__main__":
    main()
