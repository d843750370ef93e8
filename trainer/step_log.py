"""The log of a run: one line of JSON per step, and lines of progress."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback


class StepLog(TrainerCallback):
    """Writes `log.jsonl` and prints progress, on the first rank.

    A line has `step`, `epoch`, `loss` (of the step, on all ranks) and `learning_rate`;
    evaluations have lines of their own. A resumed run first removes the lines of the steps that it repeats.

    Args:
        trainer: the trainer.
        path: the file.
    """

    def __init__(self, trainer: Any, path: Path):
        self._trainer, self._path = trainer, path
        self._loss: torch.Tensor | None = None
        self._steps: list[dict[str, Any]] = []
        self._losses: list[torch.Tensor] = []
        self._rate, self._tokens = 0.0, 0
        self._begun, self._first = 0.0, 0

    def start_step(self, batches: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Begin a step of so many batches of this rank."""
        self._loss = None
        for batch in batches:
            mask = batch.get("attention_mask")  # packed rows have none, and hardly any padding
            self._tokens += batch["input_ids"].numel() if mask is None else int(mask.sum())

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add the loss of one batch to the step's."""
        self._loss = loss if self._loss is None else self._loss + loss

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun, self._first, self._tokens = time.monotonic(), state.global_step, 0
        if state.is_world_process_zero:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = [line for line in read_log(self._path) if line["step"] <= state.global_step]
            partial = self._path.with_name(f".{self._path.name}.partial")
            partial.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
            partial.replace(self._path)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self._rate = float(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self._loss is not None
        self._losses.append(self._loss.detach())
        self._steps.append({"step": state.global_step, "epoch": round(state.epoch, 6), "learning_rate": self._rate})

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        lines = self.flush()
        evaluated = {name: value for name, value in (logs or {}).items() if name.startswith("eval_")}
        if evaluated and state.is_world_process_zero:
            self._write([{"step": state.global_step, **evaluated}])
            print(f"step {state.global_step:>6}  {_numbers(evaluated)}", flush=True)
        if lines and state.is_world_process_zero:
            self._print(lines[-1], state.max_steps)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.flush()

    def flush(self) -> list[dict[str, Any]]:
        """Write the lines of the steps since the last call, and return them. Called on all ranks at the same steps."""
        if not self._steps:
            return []
        losses = torch.stack(self._losses)
        if self._trainer.accelerator.num_processes > 1:
            losses = self._trainer.accelerator.reduce(losses, "mean")
        lines = [{**step, "loss": loss} for step, loss in zip(self._steps, losses.tolist(), strict=True)]
        self._steps, self._losses = [], []
        if self._trainer.is_world_process_zero():
            self._write(lines)
        return lines

    def _write(self, lines: list[dict[str, Any]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _print(self, line: Mapping[str, Any], steps: int) -> None:
        seconds, done = time.monotonic() - self._begun, line["step"] - self._first
        rate = self._tokens * self._trainer.accelerator.num_processes / max(seconds, 1e-9)
        left = timedelta(seconds=round(seconds / max(done, 1) * (steps - line["step"])))
        text = f"epoch {line['epoch']:.2f}  loss {line['loss']:.4f}  lr {line['learning_rate']:.2e}"
        print(f"step {line['step']:>6}/{steps}  {text}  {rate:,.0f} tokens/s  {left} left", flush=True)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log, oldest first."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def _numbers(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name.removeprefix('eval_').replace('_', ' ')} {value:,.4g}" for name, value in values.items())
