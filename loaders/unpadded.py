"""Batches without their padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.batch import Batch
from tokenloom.resources.ragged import Ints
from tokenloom.resources.sides import SIDES


def side_of(name: str) -> str:
    """The prefix of a column of one side of pairs, else ""."""
    return next((f"{side}_" for side in SIDES if name.startswith(f"{side}_")), "")


def unpadded(batch: Batch) -> dict[str, tuple[npt.NDArray[Any], Ints]]:
    """Each column [rows, width] of a batch as the values of its rows, one row behind the other, and their lengths,
    int64 [rows]."""
    masks = {name: value != 0 for name, value in batch.items() if name.endswith("attention_mask")}
    lengths = {name: np.count_nonzero(mask, axis=1) for name, mask in masks.items()}
    columns = {name: value for name, value in batch.items() if isinstance(value, np.ndarray) and value.ndim == 2}
    whose = {name: f"{side_of(name)}attention_mask" for name in columns}
    return {name: (value[masks[whose[name]]], lengths[whose[name]]) for name, value in columns.items()}


def examples(batch: Batch) -> list[dict[str, Any]]:
    """The rows of a batch, each a dict of arrays [length]; of kto data also `label`, a bool."""
    columns = unpadded(batch)
    rows: list[dict[str, Any]] = [{} for _ in next(iter(columns.values()))[1]]
    for name, (values, lengths) in columns.items():
        for row, part in zip(rows, np.split(values, np.cumsum(lengths)[:-1]), strict=True):
            row[name] = part
    if "label" in batch:
        for row, label in zip(rows, np.asarray(batch["label"]).tolist(), strict=True):
            row["label"] = label
    return rows
