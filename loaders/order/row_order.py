"""The row order of one source: which row is at a position, across epochs.

It is a pure function of (rows, digest, seed, shuffle, blocks, position). docs/train/order.md has the formulas.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.order.block_shuffle import BlockShuffle
from tokenloom.loaders.order.blockwise import BLOCK, BlockwiseOrder, groups
from tokenloom.loaders.order.permutation import Permutation, key_of
from tokenloom.resources.tables.ragged import Ints

Shuffle = Literal["full", "block", "none"]

SMALLEST_BLOCK = 64
"""Smallest block of positions, so that small sources do not compute many epochs at once."""

KEPT_PERMUTATIONS = 4
"""Number of permutations kept for each purpose."""


class RowOrder(BlockwiseOrder):
    """The rows of one source by position; position p is place p % rows of epoch p // rows.

    Each epoch has each row once. `full` shuffles all rows. `block` is for stores that are read in chunks: it shuffles
    the chunks, then the rows within each window of several chunks. `none` keeps the order. The source's digest and the
    seed are hashed into the order.

    Args:
        rows: number of rows in the source, at least 1.
        digest: digest of the source's content.
        seed: an integer.
        shuffle: `full`, `block` or `none`.
        chunks: for `block`: int64 [chunks], the rows of each chunk, which the digest determines. None: runs of rows.

    Attributes:
        windows: number of parts of an epoch that are each read from chunks of their own: 1 for `full`.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        rows: int,
        digest: str,
        seed: int = 0,
        shuffle: Shuffle = "full",
        chunks: Ints | None = None,
    ):
        if rows < 1:
            raise ValueError(f"an order needs at least 1 row, got {rows}")
        if shuffle not in ("full", "block", "none"):
            raise ValueError(f"shuffle must be 'full', 'block' or 'none', got {shuffle!r}")
        super().__init__(min(BLOCK, max(SMALLEST_BLOCK, rows)))
        self.digest, self.seed, self.shuffle = digest, seed, shuffle
        self._rows = rows
        self._blocks = BlockShuffle(rows, chunks) if shuffle == "block" else None
        self.windows = self._blocks.windows if self._blocks else 1
        self._permutations: dict[str, dict[tuple[int, int], Permutation]] = {}

    def __len__(self) -> int:
        return self._rows

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """Return the rows at places of an epoch: int64 [m] for [m].

        Raises:
            IndexError: a place is outside [0, rows).
        """
        places = np.asarray(positions, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self._rows:
            raise IndexError(f"a place is outside the epoch's {self._rows} rows")
        if self.shuffle == "none" or self._rows == 1:
            return places.copy()
        if self._blocks is None:
            return self._permutation(self._rows, epoch, "rows")(places)
        return self._blocks.rows(epoch, places, self._permutation)

    def take(self, positions: npt.ArrayLike) -> Ints:
        """Return the rows at positions, which are counted across epochs: int64 [m] for [m].

        Raises:
            IndexError: a position is below 0.
        """
        wanted = np.asarray(positions, np.int64)
        if wanted.size and wanted.min() < 0:
            raise IndexError(f"a position must be at least 0, got {wanted.min()}")
        epochs, places = np.divmod(wanted, self._rows)
        if self.shuffle == "none" or self._rows == 1:
            return places
        rows = np.empty_like(places)
        for epoch, members in groups(epochs):
            rows[members] = self.rows(epoch, places[members])
        return rows

    def _key(self, epoch: int, purpose: str, number: int = 0) -> int:
        return key_of("order", self.seed, self.digest, epoch, purpose, number)

    def _permutation(self, size: int, epoch: int, purpose: str, number: int = 0) -> Permutation:
        kept = self._permutations.get(purpose, {})
        permutation = kept.get((epoch, number))
        if permutation is None:
            permutation = Permutation(size, self._key(epoch, purpose, number))
            last = list(kept.items())[1 - KEPT_PERMUTATIONS :]
            self._permutations[purpose] = dict([*last, ((epoch, number), permutation)])
        return permutation

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_permutations": {}}
