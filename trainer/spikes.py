"""Loss spikes, traced to the raw rows of their batches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from tokenloom.loaders import TokenLoader
from tokenloom.loaders.order.batch_plan import Place
from tokenloom.trainer.json_lines import append_log, cut_log

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
            known = losses.tolist() if losses is not None else [None] * len(traced)
            for row, value in zip(traced, known, strict=False):  # padding rows come last
                mine.append({"loss": value, "rank": self._loader.rank, **asdict(row)})
        found = gather_object(mine) if self._loader.world_size > 1 else mine
        if not write:
            return None
        found.sort(key=lambda row: _rank(row["loss"]))
        append_log(self._path, [{"step": step, "loss": loss, "usual": usual, "rows": found}])
        highest = ", ".join(row["places"][0] for row in found[:SHOWN])
        return f"loss {loss:.4g} is a spike, usual is {usual:.4g}; rows with the highest loss: {highest}; {self._path}"

    def _usual(self, loss: float) -> float | None:
        """Return the usual loss if one is a spike."""
        known = np.array([value for value in self._losses if math.isfinite(value)])
        if not self._threshold or len(known) < ENOUGH:
            return None
        lower, usual = np.quantile(known, (0.25, 0.5)).tolist()
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
    sums = losses.new_zeros(len(where)).index_add_(0, rows, losses)
    return sums / where.sum(1).clamp(min=1)


def _rank(loss: float | None) -> float:
    return 0.0 if loss is None else -loss if math.isfinite(loss) else -math.inf
