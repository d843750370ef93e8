"""The losses of a training run as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokenloom.resources.png import DARK, GREEN, GREY, png

WIDTH, HEIGHT = 304, 120


def loss_curve_png(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the curve of a log's lines: grey, the training loss of each step; green, that of the evaluations."""
    picture = np.zeros((HEIGHT, WIDTH), np.uint8)
    found = {name: _points(lines, name) for name in ("loss", "eval_loss")}
    points = [point for each in found.values() for point in each]
    if not points:
        return png(picture)
    last = max(step for step, _ in points) or 1
    lowest, highest = min(loss for _, loss in points), max(loss for _, loss in points)

    def places(each: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
        steps, losses = np.array(each, np.float64).reshape(-1, 2).T
        rows = (highest - losses) / ((highest - lowest) or 1) * (HEIGHT - 4)
        return (steps / last * (WIDTH - 3)).astype(int), rows.astype(int)

    columns, rows = places(found["loss"])
    for column in np.unique(columns):  # a line from the lowest to the highest loss of the column's steps
        here = rows[columns == column]
        picture[here.min() : here.max() + 2, column : column + 2] = GREY
    for column, row in zip(*places(found["eval_loss"]), strict=True):
        picture[max(row - 1, 0) : row + 3, max(column - 1, 0) : column + 3] = GREEN
    picture[-1] = DARK
    return png(picture)


def _points(lines: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in lines if math.isfinite(line.get(name, math.nan))]
