"""Shuffles blocks of consecutive rows, then the rows within windows of several blocks.

A block is a chunk of the store where there are chunks, so that each chunk is read in one window per epoch.
docs/train/order.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenloom.loaders.order.blockwise import groups
from tokenloom.loaders.order.permutation import Permutation
from tokenloom.resources.tables.ragged import Ints, offsets_of

WINDOW_ROWS = 1 << 16
"""A window has about as many rows, if that is at least `WINDOW_BLOCKS` blocks."""

WINDOW_BLOCKS = 8
"""Minimum number of blocks per window, if there are as many."""

BLOCK_ROWS = 256
"""Rows per block where rows are not stored in chunks."""

MOST_BLOCKS = 1 << 14
"""Maximum number of blocks where rows are not stored in chunks; above that, blocks have more rows."""

KEPT_EPOCHS = 2
"""Number of epochs whose blocks are kept in their shuffled order."""

PermutationOf = Callable[[int, int, str, int], Permutation]
"""Returns the permutation of a size, an epoch, a purpose and a number."""


class BlockShuffle:
    """The rows of each epoch, shuffled in blocks. Memory: 24 bytes per block, and 16 more for each kept epoch.

    Args:
        rows: number of rows.
        blocks: int64 [blocks], rows of each block; they sum to `rows`. None: runs of equal length.

    Attributes:
        windows: number of windows per epoch.

    Raises:
        ValueError: the blocks have another number of rows.
    """

    def __init__(self, rows: int, blocks: Ints | None = None):
        if blocks is None:
            size = max(BLOCK_ROWS, -(-rows // MOST_BLOCKS))
            blocks = np.full(-(-rows // size), size, np.int64)
            blocks[-1] -= len(blocks) * size - rows
        self._sizes, self._first_row = np.asarray(blocks, np.int64), offsets_of(blocks)
        if self._first_row[-1] != rows:
            raise ValueError(f"blocks must have {rows} rows in total, got {self._first_row[-1]}")
        count = len(self._sizes)
        per_window = max(WINDOW_BLOCKS, -(-WINDOW_ROWS * count // rows))
        self.windows = max(count // per_window, 1)
        self._bounds = np.arange(self.windows + 1) * count // self.windows  # first block of each window
        self._layouts: dict[int, tuple[Ints, Ints, Ints]] = {}

    def rows(self, epoch: int, places: Ints, permutation: PermutationOf) -> Ints:
        """Return the rows at places of an epoch: int64 [m] for [m]."""
        order, begins, windows = self._layout(epoch, permutation)
        rows = np.empty_like(places)
        for window, members in groups(windows.searchsorted(places, "right") - 1):
            begin, size = int(windows[window]), int(windows[window + 1] - windows[window])
            slots = begin + permutation(size, epoch, "window", window)(places[members] - begin)
            first = self._bounds[window]
            blocks = first + begins[first : self._bounds[window + 1]].searchsorted(slots, "right") - 1
            rows[members] = self._first_row[order[blocks]] + slots - begins[blocks]
        return rows

    def _layout(self, epoch: int, permutation: PermutationOf) -> tuple[Ints, Ints, Ints]:
        """Return the blocks of an epoch in their order, and the places where each of them and each window begins."""
        layout = self._layouts.get(epoch)
        if layout is None:
            order = permutation(len(self._sizes), epoch, "blocks", 0)(np.arange(len(self._sizes)))
            begins = offsets_of(self._sizes[order])
            layout = order, begins, begins[self._bounds]
            kept = list(self._layouts.items())[1 - KEPT_EPOCHS :]
            self._layouts = dict([*kept, (epoch, layout)])  # replaced, not changed: threads can share an order
        return layout

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layouts": {}}
