"""Rows to load, and the rows of batches without their padding: for tests of loaders and of streaming."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

IGNORED = -100
LONGEST = 48
PROMPT = {"template": "{q}\n{a}", "label_column": "a"}

Row = tuple[tuple[int, ...], tuple[int, ...]]
"""input_ids and labels of one row, unpadded."""


def write_rows(path: Path, count: int, seed: int = 0) -> list[dict[str, str]]:
    noise = random.Random(seed)
    words = ["red", "blue", "the answer", "is", "naïve", "你好", "42", "because"]
    rows = [
        {"q": f"{n} {' '.join(noise.choices(words, k=n % 9))}", "a": " ".join(noise.choices(words, k=1 + n % 5))}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def settings(tokenizer_folder: Path) -> dict[str, Any]:
    """Return the other sections that the YAML of a dataset of such rows needs."""
    return {"tokenizer": {"name_or_path": str(tokenizer_folder), "max_length": LONGEST}, "prompt_template": PROMPT}


def rows_of(batches: Iterable[dict[str, torch.Tensor]]) -> list[Row]:
    """Return the rows of batches without their padding; rows that are all padding are omitted."""
    found = []
    for batch in batches:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
            if mask.any():
                found.append((tuple(ids[mask == 1].tolist()), tuple(labels[mask == 1].tolist())))
            assert (labels[mask == 0] == IGNORED).all()
    return found
