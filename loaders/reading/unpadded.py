"""The rows of a batch without padding: concatenated by column, or one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.loaders.reading.batch import Batch
from tokenloom.resources.tables.preference_pairs import SIDES
from tokenloom.resources.tables.ragged import Ints

Row = dict[str, Any]


def side_of(name: str) -> str:
    """Return the prefix of a column that belongs to one side of pairs (`chosen_` or `rejected_`), else ""."""
    return next((f"{side}_" for side in SIDES if name.startswith(f"{side}_")), "")


def flat_columns(batch: Batch) -> dict[str, tuple[npt.NDArray[Any], Ints]]:
    """Return, for each column [rows, width] of a batch, its concatenated rows and their lengths, int64 [rows]."""
    masks = {name: np.asarray(value) != 0 for name, value in batch.items() if name.endswith("attention_mask")}
    lengths = {name: np.count_nonzero(mask, axis=1) for name, mask in masks.items()}
    columns = {name: value for name, value in batch.items() if isinstance(value, np.ndarray) and value.ndim == 2}
    mask_of = {name: f"{side_of(name)}attention_mask" for name in columns}
    return {name: (value[masks[mask_of[name]]], lengths[mask_of[name]]) for name, value in columns.items()}


def unpadded(batch: Batch) -> list[Row]:
    """Return the rows of a batch, none of which shares memory with another.

    Returns:
        for each row its part of each column, [length] instead of [rows, width], `label` as a bool scalar, and the value
        of each kept column. Columns of the batch as a whole (`cu_seqlens`, `max_seqlen`) are omitted.
    """
    columns = flat_columns(batch)
    rows: list[Row] = [{} for _ in next(iter(columns.values()))[1]]
    for name, (values, lengths) in columns.items():
        for row, part in zip(rows, torch.from_numpy(values).split(lengths.tolist()), strict=True):
            row[name] = part.clone()
    if "label" in batch:
        for row, label in zip(rows, np.asarray(batch["label"]).tolist(), strict=True):
            row["label"] = torch.tensor(label)
    for name, values in kept_values(batch).items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def kept_values(batch: Batch) -> dict[str, list[Any]]:
    """Return the kept columns of a batch."""
    return {name: value for name, value in batch.items() if isinstance(value, list)}
