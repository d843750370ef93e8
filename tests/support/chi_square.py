"""Deviation of counts from the expected ones, in standard deviations, for the usual tests of shuffles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Order = Callable[[Ints], Ints]


def deviation(counts: npt.ArrayLike, expected: float, degrees: int | None = None) -> float:
    """Return chi-square as a standard normal (Wilson and Hilferty 1931); degrees of freedom: cells - 1 by default."""
    observed = np.asarray(counts, float).reshape(-1)
    free = degrees or observed.size - 1
    statistic = float(((observed - expected) ** 2).sum() / expected)
    return ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))


def combined(deviations: list[float]) -> float:
    """Combine independent deviations into one."""
    return sum(deviations) / math.sqrt(len(deviations))


def bucket(rows: Ints, size: int, buckets: int) -> Ints:
    """Return the index of a row's bucket, one of equal parts of [0, size)."""
    return np.minimum((rows / size * buckets).astype(np.int64), buckets - 1)


def pairs(left: Ints, right: Ints, buckets: int) -> float:
    """Return the deviation of the counts of pairs of buckets."""
    return deviation(np.bincount(left * buckets + right, minlength=buckets**2), len(left) / buckets**2)


def sampled(size: int) -> Ints:
    """Return consecutive positions, few enough that sampling without repeats does not matter."""
    some = min(size // 16, 1 << 16)
    return np.arange(size // 3, size // 3 + some)


def deviations(order: Order, size: int) -> dict[str, float]:
    """Return the deviations of values, pairs at some lags (by high and low part), gaps and pairs of gaps of `order`."""
    rows = order(sampled(size))
    counts = np.bincount(bucket(rows, size, 64), minlength=64)
    found = {"values": deviation(counts, len(rows) / 64)}
    for lag in (1, 2, 7, 64):
        before, after = rows[:-lag], rows[lag:]
        found[f"high parts at lag {lag}"] = pairs(bucket(before, size, 16), bucket(after, size, 16), 16)
        found[f"low parts at lag {lag}"] = pairs(before % 16, after % 16, 16)
    gaps = (rows[1:] - rows[:-1]) % size
    found["gaps"] = deviation(np.bincount(bucket(gaps, size, 64), minlength=64), len(gaps) / 64)
    found["pairs of gaps"] = pairs(bucket(gaps[:-1], size, 16), bucket(gaps[1:], size, 16), 16)
    return found


def repeated_gaps(order: Order, size: int) -> float:
    """Return the deviation of the number of equal gaps, in a square of positions that are a root of `size` apart.

    Gaps of uniform rows, in units of the root, are spread as a triangle: two are equal with chance 2 / (3 root).
    """
    root = math.isqrt(size - 1) + 1
    stride = -(-size // root)
    square = (size // 7 // stride + np.arange(256)[:, None]) * stride + np.arange(256)
    high = order(square) // root
    _, counts = np.unique(np.diff(high, axis=1), return_counts=True)
    gaps = counts.sum()
    expected = gaps * (gaps - 1) / 2 * 2 / (3 * root)
    spread = expected + float(gaps) ** 3 / (18 * root**2)
    return float(((counts * (counts - 1) // 2).sum() - expected) / math.sqrt(spread))
