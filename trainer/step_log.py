"""The log of a run: one line of JSON per step, and lines of progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from tokenloom.loaders.order.batch_plan import Place
from tokenloom.trainer.json_lines import append_log, cut_log
from tokenloom.trainer.spikes import SpikeTrace
from tokenloom.trainer.throughput import model_flops, peak_flops


class StepLog(TrainerCallback):
    """Writes `log.jsonl` and prints progress, on the first rank.

    A line has `step`, `epoch`, `loss` (of the step, on all ranks) and `learning_rate`. Every `logging_steps`, another
    line has `tokens_per_second` (of all ranks) and, where the device's peak is known, `mfu`. Evaluations have lines of
    their own. A resumed run first removes the lines of the steps that it repeats.

    Args:
        trainer: the trainer.
        path: the file.

    Attributes:
        report: is given the lines of progress; default: they are printed.
    """

    def __init__(self, trainer: Any, path: Path):
        self._trainer, self._path = trainer, path
        self.report: Callable[[str], None] = partial(print, flush=True)
        config = trainer.config
        self._spikes = SpikeTrace(trainer.train_loader, path.with_name("spikes.jsonl"), config.spike_threshold)
        self._peak = peak_flops(config.peak_tflops)
        self._per_token, self._per_position = model_flops(trainer.model) if self._peak else (0.0, 0.0)
        self._steps: list[dict[str, Any]] = []
        self._losses: list[torch.Tensor] = []
        self._places: list[Sequence[Place | None]] = []
        self._rows: list[list[torch.Tensor | None]] = []
        self._rate, self._tokens, self._flops = 0.0, 0, 0.0
        self._begun, self._first = 0.0, 0
        self._loss: torch.Tensor | None = None

    def start_step(self, batches: Sequence[Mapping[str, torch.Tensor]], places: Sequence[Place | None]) -> None:
        """Begin a step of some batches of this rank, each with the loader's place before it."""
        self._loss = None
        self._places.append(places)
        self._rows.append([])
        for batch in batches:
            ids, mask = batch["input_ids"], batch.get("attention_mask")  # packed rows have none, and hardly any padding
            self._tokens += ids.numel() if mask is None else int(mask.sum())
            self._flops += ids.numel() * (self._per_token + self._per_position * ids.shape[1])

    def add_loss(self, loss: torch.Tensor, rows: torch.Tensor | None) -> None:
        """Add the loss of one batch to the step's, and the mean losses of its rows, [rows], if they are known."""
        self._loss = loss if self._loss is None else self._loss + loss
        self._rows[-1].append(rows)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun, self._first = time.monotonic(), state.global_step
        self._tokens, self._flops = 0, 0.0
        last = state.global_step or -1  # without a checkpoint, the evaluation at step 0 is repeated too
        kept = cut_log(self._path, last) if state.is_world_process_zero else []
        losses = [[line["loss"] for line in kept if "loss" in line]]
        if self._trainer.accelerator.num_processes > 1:
            broadcast_object_list(losses)
        self._spikes.start(losses[0], state.global_step, state.is_world_process_zero)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self._rate = float(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self._loss is not None
        self._losses.append(self._loss.detach())
        self._steps.append({"step": state.global_step, "epoch": round(state.epoch, 6), "learning_rate": self._rate})

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        lines = self.flush()
        if not state.is_world_process_zero:
            return
        evaluated = {name: value for name, value in (logs or {}).items() if name.startswith("eval_")}
        if evaluated:
            append_log(self._path, [{"step": state.global_step, **evaluated}])
            self.report(f"step {state.global_step:>6}  {_numbers(evaluated)}")
        if lines:
            self._report(lines[-1], state.max_steps)

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
        writes = self._trainer.is_world_process_zero()
        if writes:
            append_log(self._path, lines)
        for line, places, rows in zip(lines, self._places, self._rows, strict=True):
            message = self._spikes.check(line["step"], line["loss"], places, rows, writes)
            if message:
                self.report(f"step {line['step']:>6}  {message}")
        self._steps, self._losses, self._places, self._rows = [], [], [], []
        return lines

    def _report(self, line: Mapping[str, Any], steps: int) -> None:
        """Print a line of progress, and log the rate."""
        seconds, done = max(time.monotonic() - self._begun, 1e-9), line["step"] - self._first
        ranks = self._trainer.accelerator.num_processes
        rates = {"tokens_per_second": round(self._tokens * ranks / seconds, 1)}
        if self._peak:
            rates["mfu"] = round(self._flops / seconds / self._peak, 4)
        append_log(self._path, [{"step": line["step"], **rates}])
        left = timedelta(seconds=round(seconds / max(done, 1) * (steps - line["step"])))
        rate = f"{rates['tokens_per_second']:,.0f} tokens/s" + (f"  MFU {rates['mfu']:.1%}" if self._peak else "")
        text = f"epoch {line['epoch']:.2f}  loss {line['loss']:.4f}  lr {line['learning_rate']:.2e}"
        self.report(f"step {line['step']:>6}/{steps}  {text}  {rate}  {left} left")


def _numbers(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name.removeprefix('eval_').replace('_', ' ')} {value:,.4g}" for name, value in values.items())
