"""Time computing the order of rows, against reading positions from a precomputed array.

usage: order.py [--batches N] [--runs N]

Batches of 8 positions are read one after the other, as a loader reads them. Prints microseconds per batch, nanoseconds
per position, and the ratio to slicing a precomputed array, timed in the same run; then the same for a permutation of
8,192 positions at once, against numpy.arange.
"""

from __future__ import annotations

import argparse

import numpy as np
from timing import median_seconds

from tokenloom.loaders.order.mixture import Mixture, MixtureOrder, Source
from tokenloom.loaders.order.row_order import BLOCK, BlockwiseOrder, Permutation, RowOrder

BATCH = 8


class Ready:
    """Positions in a precomputed array."""

    def __init__(self, positions: int):
        self.rows = np.random.default_rng(0).permutation(positions)

    def span(self, start: int, end: int) -> np.ndarray:
        return self.rows[start:end]


def mixture_of_five() -> MixtureOrder:
    """Return a mixture of sources of 10^6 to 5 × 10^6 rows, with different mean lengths."""
    sources = [Source(f"source {n}", n * 10**6, (100 + 77 * n) * n * 10**6) for n in range(1, 6)]
    weights = {source.name: weight for source, weight in zip(sources, (0.4, 0.3, 0.15, 0.1, 0.05), strict=True)}
    return MixtureOrder(Mixture(sources, weights), [RowOrder(source.rows, source.name) for source in sources])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    positions = options.batches * BATCH

    def seconds(order: Ready | BlockwiseOrder) -> float:
        starts = iter(range(0, options.runs * positions, positions))

        def read() -> None:
            first = 0 if isinstance(order, Ready) else next(starts)
            for start in range(first, first + positions, BATCH):
                order.span(start, start + BATCH)

        return median_seconds(read, options.runs)

    orders: dict[str, BlockwiseOrder] = {}
    for shuffle in ("none", "full", "block"):
        for power in (6, 9, 12):
            orders[f"{shuffle}, 10^{power} rows"] = RowOrder(10**power, "digest", 0, shuffle)
    orders["mixture of 5"] = mixture_of_five()
    floor = seconds(Ready(positions))
    print(f"{'order':<22}{'µs/batch of 8':>16}{'ns/position':>15}{'times an array':>16}")
    print(f"{'a ready array':<22}{floor / options.batches * 1e6:>16.2f}{floor / positions * 1e9:>15.1f}{1:>16.1f}")
    for name, order in orders.items():
        took = seconds(order)
        batch, position = took / options.batches * 1e6, took / positions * 1e9
        print(f"{name:<22}{batch:>16.2f}{position:>15.1f}{took / floor:>16.1f}")
    block = np.arange(BLOCK)
    floor = median_seconds(lambda: np.arange(BLOCK), 200)
    for power in (4, 6, 9, 12):
        permutation = Permutation(10**power, 1)
        took = median_seconds(lambda known=permutation: known(block), 200)
        name = f"permutation of 10^{power}"
        print(f"{name:<22}{'':>16}{took / BLOCK * 1e9:>15.1f}{took / floor:>16.1f}")


if __name__ == "__main__":
    main()
