"""The log of a run: one line of JSON per step, lines of progress, samples, throughput, and loss spikes traced to
rows.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import nn
from transformers import TrainerCallback

from tokenloom.loaders import TokenDataset, TokenLoader
from tokenloom.loaders.collation.context import ENDS
from tokenloom.loaders.order.batch_plan import Place
from tokenloom.loaders.reading.batch import TYPE_IDS, image_inputs
from tokenloom.trainer.checkpoints import writing


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file, oldest first."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def cut_log(path: Path, step: int, evaluated: int | None = None) -> list[dict[str, Any]]:
    """Remove the lines of all steps after one, which a resumed run writes again, and return the others.

    Args:
        evaluated: a step whose evaluation is also written again.
    """
    lines = [line for line in read_log(path) if line["step"] <= step]
    lines = [line for line in lines if line["step"] != evaluated or not any(name.startswith("eval_") for name in line)]
    if path.exists():
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        partial.replace(path)
    return lines


def append_log(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines, and wait until they are on the disk.

    Raises:
        StoreRefusedError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


HISTORY = 64
"""Steps that the usual loss is taken from."""

ENOUGH = 20
"""Steps after which spikes are looked for."""

SHOWN = 3
"""Rows that a message names."""


class SpikeTrace:
    """Writes `spikes.jsonl`: a line for each step whose loss is a spike, with the raw rows of its batches.

    A spike is a loss of more than `threshold` standard deviations above the usual loss, or one that is no number. The
    usual loss is the median of the last 64; the deviation is estimated from their lower quartile, which spikes hardly
    change, and is at least 1% of the usual loss.

    Args:
        loader: this rank's training batches.
        path: the file.
        threshold: standard deviations; 0: nothing is a spike.
    """

    def __init__(self, loader: TokenLoader, path: Path, threshold: float):
        self._loader, self._path, self._threshold = loader, path, threshold
        self._losses = deque[float](maxlen=HISTORY)

    def start(self, losses: Sequence[float], step: int, write: bool) -> None:
        """Begin, or continue after a step with the losses until then."""
        self._losses.clear()
        self._losses.extend(losses[-HISTORY:])
        if write:
            cut_log(self._path, step)

    def check(
        self, step: int, loss: float, places: Sequence[Place | None], rows: Sequence[torch.Tensor | None], write: bool
    ) -> str | None:
        """Trace a step if it is a spike, and return a message. Called on all ranks, with the same loss.

        Args:
            places: the loader's place before each batch of the step; None for batches that no row is in.
            rows: mean loss per trained token of each row of each batch, [rows]; None if it is not known.
            write: write the line.
        """
        usual = self._usual(loss)
        self._losses.append(loss)
        if usual is None:
            return None
        mine: list[dict[str, Any]] = []
        for place, losses in zip(places, rows, strict=True):
            traced = self._loader.trace(place) if place is not None else []
            by_row = losses.tolist() if losses is not None else [None] * len(traced)
            for row, value in zip(traced, by_row, strict=False):  # padding rows come last
                mine.append({"loss": value, "rank": self._loader.rank, **asdict(row)})
        every = gather_object(mine) if self._loader.world_size > 1 else mine
        if not write:
            return None

        def place_in_list(row: dict[str, Any]) -> float:  # no number comes first, a loss that is not known last
            value = row["loss"]
            return 0.0 if value is None else -value if math.isfinite(value) else -math.inf

        every.sort(key=place_in_list)
        append_log(self._path, [{"step": step, "loss": loss, "usual": usual, "rows": every}])
        highest = ", ".join(row["places"][0] for row in every[:SHOWN])
        return f"loss {loss:.4g} is a spike, usual is {usual:.4g}; rows with the highest loss: {highest}; {self._path}"

    def _usual(self, loss: float) -> float | None:
        finite = np.array([value for value in self._losses if math.isfinite(value)])
        if not self._threshold or len(finite) < ENOUGH:
            return None
        lower, usual = np.quantile(finite, (0.25, 0.5)).tolist()
        deviation = max((usual - lower) / 0.6745, 0.01 * abs(usual))  # a quartile of a normal distribution is at 0.6745
        if math.isfinite(loss):
            return usual if loss > usual + self._threshold * deviation else None
        return usual if math.isfinite(self._losses[-1]) else None  # of a run that has failed, only the first step


def mean_by_row(losses: torch.Tensor, where: torch.Tensor) -> torch.Tensor | None:
    """Return the mean loss per trained token of each row, float32 [rows]; 0 for rows without any.

    Args:
        losses: float32, of each trained token; if it has another length, the result is None.
        where: bool [rows, length]: the trained tokens.
    """
    rows = where.nonzero()[:, 0]
    if len(rows) != len(losses):
        return None
    # a kernel that returns one sum for the batch has no losses by row
    sums = losses.new_zeros(len(where)).index_add_(0, rows, losses)
    return sums / where.sum(1).clamp(min=1)


NEW_TOKENS = 64

TEXT_PROMPT = 16
"""Tokens of a row without a prompt that the model continues."""


def generated_samples(
    model: Any, tokenizer: Any, datasets: Mapping[str, TokenDataset], count: int
) -> Iterator[dict[str, Any]]:
    """Yield the `prompt`, the `expected` answer and the `generated` one of the first rows of each dataset.

    A prompt is what comes before the first trained token. Answers are generated greedily, and end after 64 tokens. Rows
    with images after the prompt are skipped.

    Args:
        count: rows of each dataset.
    """
    for name, dataset in datasets.items():
        for row in islice(map(dataset.__getitem__, range(len(dataset))), count):
            prompt, answer = _first_answer(row)
            images = {name: value for name, value in image_inputs(row).items() if name != "position_ids"}
            kinds = dataset.images.tokens.ids if dataset.images else []
            parts = (prompt, np.asarray(row["input_ids"])) if images else ()
            if not len(prompt) or len({int(np.isin(part, kinds).sum()) for part in parts}) > 1:  # an image is after it
                continue
            ends = {tokenizer.eos_token_id, *set(answer[-1:].tolist()) & set(tokenizer.all_special_ids)} - {None}
            given = torch.as_tensor(prompt, device=model.device)[None]
            types = {name: torch.as_tensor(row[name][: len(prompt)])[None] for name in TYPE_IDS if name in row}
            images = {name: value.to(model.device) for name, value in (images | types).items()}
            with torch.no_grad():
                output = model.generate(
                    input_ids=given,
                    attention_mask=torch.ones_like(given),
                    **images,
                    do_sample=False,
                    max_new_tokens=NEW_TOKENS,
                    eos_token_id=sorted(ends) or None,
                    pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
                )
            texts = (prompt, answer, output[0, len(prompt) :].cpu())
            decoded = dict(zip(("prompt", "expected", "generated"), map(tokenizer.decode, texts), strict=True))
            yield {"dataset": name, **decoded}


def _first_answer(row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens before the first trained one, and the trained ones after them, of a row's first document."""
    side = "chosen_" if "chosen_labels" in row else ""
    ids, trained = np.asarray(row[f"{side}input_ids"]), np.asarray(row[f"{side}labels"]) != -100
    if ENDS in row:  # of trees, the text until the first trained token, and what continues it
        first = int(trained.argmax()) if trained.any() else len(ids)
        ends, places = np.asarray(row[ENDS]), np.arange(len(ids))
        # the nodes that the first trained token sees, and after it those that see it
        own = np.where(places < first, ends >= first, places < ends[first : first + 1].sum())
        ids, trained = ids[own], trained[own]
    elif "position_ids" in row:
        positions = np.asarray(row["position_ids"]).reshape(-1, len(ids))[0]  # of [4, 1, length], the first are these
        starts = np.flatnonzero(positions == 0)
        end = starts[1] if len(starts) > 1 else len(ids)
        ids, trained = ids[:end], trained[:end]
    begin = int(trained.argmax()) if trained.any() else len(ids)
    if begin <= 1:  # all of it is trained
        return ids[:TEXT_PROMPT], ids[TEXT_PROMPT:][:NEW_TOKENS]
    untrained = np.flatnonzero(~trained[begin:])
    return ids[:begin], ids[begin:][: untrained[0] if len(untrained) else None]


PEAK_TFLOPS = {"A100": 312, "H100 PCIe": 756, "H100": 989, "H200": 989, "L40S": 362, "B200": 2250}
"""Dense bf16 peak of devices, from NVIDIA's data sheets."""


def peak_flops(tflops: float | None) -> float | None:
    """Return the peak of one device per second, or None if it is not known.

    Args:
        tflops: the peak that a config sets, in 10^12 FLOPs per second.
    """
    if tflops is None and torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        tflops = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
    return None if tflops is None else tflops * 1e12


def model_flops(model: Any) -> tuple[float, float]:
    """Return the FLOPs of training on one token, and those on one token for each position of its row, as PaLM's
    appendix B counts them (https://arxiv.org/abs/2204.02311): 6 per weight, and 12 per layer and width of attention.

    A frozen weight has 4. Embeddings have none, unless they are the output layer too. Stacked experts count by the
    share of them that a token is routed to. Of a model that is not one of transformers, or that takes images, nothing
    is known: 0.
    """
    if not hasattr(model, "get_output_embeddings") or getattr(model.config, "vision_config", None) is not None:
        return 0.0, 0.0
    config = model.config
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    embeddings -= {getattr(model.get_output_embeddings(), "weight", None)}
    routed = getattr(config, "num_experts_per_tok", None)
    flops = 0.0
    for weight in model.parameters():
        if weight not in embeddings:
            # experts are stacked: [experts, in, out]
            share = routed / len(weight) if routed and weight.ndim == 3 else 1.0
            flops += (6.0 if weight.requires_grad else 4.0) * share * weight.numel()
    layers, width, heads = (
        getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    head_width = getattr(config, "head_dim", None)
    return flops, 12.0 * layers * (heads * head_width if head_width else width)


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
        if not self._per_token:
            self._peak = None
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
        pending = state.global_step if self._trainer.run_state.is_pending else None
        kept = cut_log(self._path, last, pending) if state.is_world_process_zero else []
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
            pairs = [(name.removeprefix("eval_").replace("_", " "), value) for name, value in evaluated.items()]
            self.report(f"step {state.global_step:>6}  {'  '.join(f'{name} {value:,.4g}' for name, value in pairs)}")
        if lines:
            self._report(lines[-1], state.max_steps)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.flush()

    def report_change(self, step: int, changes: Mapping[str, Sequence[int]], left: int) -> None:
        """Write and print what steps read from the next one on.

        Args:
            changes: the value until this step and that from now on, by name.
            left: steps that are left.
        """
        if not self._trainer.is_world_process_zero():
            return
        append_log(self._path, [{"step": step + 1, "changed": dict(changes), "steps_left": left}])
        named = ", ".join(f"{name.replace('_', ' ')} {was} → {now}" for name, (was, now) in changes.items())
        self.report(f"step {step:>6}  resumed with {named}; {left} steps left")

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
