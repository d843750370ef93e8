"""The rows of a batch, each by itself and without its padding."""

from __future__ import annotations

import numpy as np
import torch

from tokenloom.loaders.batch import Batch

Row = dict[str, torch.Tensor]


def unpadded(batch: Batch) -> list[Row]:
    """The rows of a batch padded on the right; none shares memory with another.

    Returns:
        for each row what the batch has of it, int64 [length] instead of [rows, width]; `label` as a bool of no
        dimension. What tells of the batch as a whole (`cu_seqlens`, `max_seqlen`) is left out.
    """
    masks = {name.removesuffix("attention_mask"): v for name, v in batch.items() if name.endswith("attention_mask")}
    lengths = {side: np.asarray(mask).sum(1).tolist() for side, mask in masks.items()}
    rows: list[Row] = [{} for _ in next(iter(lengths.values()))]
    for name, value in batch.items():
        if not isinstance(value, np.ndarray) or (value.ndim < 2 and name != "label"):
            continue
        if name == "label":
            parts = [torch.tensor(label) for label in value.tolist()]
        else:
            own = lengths[next(side for side in lengths if name.startswith(side))]
            parts = [torch.from_numpy(row[:length].copy()) for row, length in zip(value, own, strict=True)]
        for row, part in zip(rows, parts, strict=True):
            row[name] = part
    return rows
