"""Datasets and functions independent of tokenloom, importable in worker processes of every start method."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Numbers(Dataset[int]):
    """Row i is the number i; some rows fail."""

    def __init__(self, rows: int, failing: dict[int, BaseException] | None = None):
        self.rows, self.failing = rows, failing or {}

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> int:
        if row in self.failing:
            raise self.failing[row]
        return row


class ManyNumbers(Numbers):
    """The same, with `__getitems__`."""

    def __getitems__(self, rows: list[int]) -> list[int]:
        return [self[row] for row in rows]


class Noise(Numbers):
    """Rows with their number and random numbers from all three generators."""

    def __getitem__(self, row: int) -> Any:
        return row, random.random(), np.random.rand(), torch.rand(()).item()


class Counting(IterableDataset[int]):
    """The numbers below `rows`."""

    def __init__(self, rows: int):
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(range(self.rows))


class Stream(IterableDataset[Any]):
    """The given rows, in order."""

    def __init__(self, rows: list[Any]):
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


class TwoArguments(Exception):
    """An error that cannot be created from a message alone."""

    def __init__(self, first: int, second: int):
        super().__init__(first, second)


def negative(row: int) -> int:
    return -row


def noisy(row: int) -> tuple[int, float]:
    return row, random.random()


def fails_at_seven(row: int) -> int:
    if row == 7:
        raise ValueError("seven")
    return row


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def no_sevens(samples: list[int]) -> list[int]:
    if 7 in samples:
        raise ValueError("a seven")
    return samples


def negated(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "input_ids": -batch["input_ids"], "noise": torch.rand(()).item()}


class CodePoints:
    """A tokenizer whose tokens are code points."""

    def __init__(self, returns: str = "ids"):
        self.returns = returns

    def encode(self, text: str) -> Any:
        ids = [ord(character) for character in text]
        if self.returns == "encoding":
            return Encoding(ids)
        nested = {"input_ids": torch.tensor([ids], dtype=torch.int64)}
        return {"ids": ids, "array": np.array(ids, np.int32), "dict": {"input_ids": ids}, "nested": nested}[
            self.returns
        ]


class Encoding:
    """A minimal version of the Encoding of `tokenizers`."""

    def __init__(self, ids: list[int]):
        self.ids = ids
