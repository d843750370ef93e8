"""The order of one source: which row stands at a position, through one epoch after the other.

It is a pure function of (rows, digest, seed, shuffle, position); docs/train/order.md has the formulas.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.order.blockwise import BLOCK, BlockwiseOrder, groups
from tokenloom.loaders.order.permutation import Permutation, key_of
from tokenloom.resources.tables.ragged import Ints

Shuffle = Literal["full", "block", "none"]

SMALLEST_BLOCK = 64
"""Sources of few rows are asked for few epochs at once."""

KEPT_PERMUTATIONS = 4
"""Of each purpose."""


class RowOrder(BlockwiseOrder):
    """The rows of one source at running positions: position p is place p % rows of epoch p // rows.

    Each epoch has each row once. `full` shuffles them over all places. `block` is for stores that read
    neighbouring rows together: blocks of consecutive rows are shuffled, and rows within each window of some blocks.
    `none` leaves them as they are. A dataset's digest and the seed are hashed into the order.

    Args:
        rows: of the source, at least 1.
        digest: of the source's content.
        seed: an integer.
        shuffle: `full`, `block` or `none`.
        block_rows: `block`: consecutive rows that stay within one window.
        window_blocks: `block`: blocks of a window.

    Raises:
        ValueError: an argument is not one of these.
    """

    def __init__(
        self,
        rows: int,
        digest: str,
        seed: int = 0,
        shuffle: Shuffle = "full",
        block_rows: int = 256,
        window_blocks: int = 64,
    ):
        if rows < 1:
            raise ValueError(f"an order of {rows} rows: there must be at least 1")
        if shuffle not in ("full", "block", "none"):
            raise ValueError(f"shuffle {shuffle!r} is not 'full', 'block' or 'none'")
        if block_rows < 1 or window_blocks < 1:
            raise ValueError(f"block_rows {block_rows} and window_blocks {window_blocks} must be at least 1")
        super().__init__(min(BLOCK, max(SMALLEST_BLOCK, rows)))
        self.digest, self.seed, self.shuffle = digest, seed, shuffle
        self.block_rows, self.window_blocks = block_rows, window_blocks
        self._rows = rows
        self._permutations: dict[str, dict[tuple[int, int], Permutation]] = {}

    def __len__(self) -> int:
        return self._rows

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """int64 [m]: the rows at places [m] of an epoch.

        Raises:
            IndexError: a place outside [0, rows).
        """
        places = np.asarray(positions, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self._rows:
            raise IndexError(f"a place outside of the {self._rows} rows of an epoch")
        if self.shuffle == "none" or self._rows == 1:
            return places.copy()
        if self.shuffle == "full":
            return self._permutation(self._rows, epoch, "rows")(places)
        return self._in_blocks(epoch, places)

    def take(self, positions: npt.ArrayLike) -> Ints:
        """int64 [m]: the rows at running positions [m], of as many epochs as they meet.

        Raises:
            IndexError: a position below 0.
        """
        asked = np.asarray(positions, np.int64)
        if asked.size and asked.min() < 0:
            raise IndexError(f"position {asked.min()} of an order")
        epochs, places = np.divmod(asked, self._rows)
        if self.shuffle == "none" or self._rows == 1:
            return places
        rows = np.empty_like(places)
        for epoch, members in groups(epochs):
            rows[members] = self.rows(epoch, places[members])
        return rows

    def _in_blocks(self, epoch: int, places: Ints) -> Ints:
        window_rows = self.block_rows * self.window_blocks
        slots = np.empty_like(places)
        for window, members in groups(places // window_rows):
            begin = window * window_rows
            shuffled = self._permutation(min(window_rows, self._rows - begin), epoch, "window", window)
            slots[members] = begin + shuffled(places[members] - begin)
        block, within = np.divmod(slots, self.block_rows)
        whole = self._rows // self.block_rows
        if whole:  # the block of the rows left over stays last: the rotation makes it another one each epoch
            moved = self._permutation(whole, epoch, "blocks")(np.minimum(block, whole - 1))
            block = np.where(block < whole, moved, block)
        rotation = self._key(epoch, "rotation") * self._rows >> 128
        return (rotation + block * self.block_rows + within) % self._rows

    def _key(self, epoch: int, purpose: str, number: int = 0) -> int:
        return key_of("order", self.seed, self.digest, epoch, purpose, number)

    def _permutation(self, size: int, epoch: int, purpose: str, number: int = 0) -> Permutation:
        kept = self._permutations.get(purpose, {})
        found = kept.get((epoch, number))
        if found is None:
            found = Permutation(size, self._key(epoch, purpose, number))
            last = list(kept.items())[1 - KEPT_PERMUTATIONS :]
            self._permutations[purpose] = dict([*last, ((epoch, number), found)])
        return found

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_permutations": {}}
