"""The rows of any map-style dataset that one rank reads: a `DistributedSampler` in the order of a `RowOrder`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler

from tokenloom.loaders.order.arguments import epoch_number
from tokenloom.loaders.order.row_order import RowOrder
from tokenloom.resources.tables.ragged import Ints

READ_AHEAD = 1024
"""Rows computed at once when the sampler is iterated row by row."""


class RankSampler(DistributedSampler[int]):
    """The row numbers of one rank. In each epoch, the ranks together read every row once.

    Position p of an epoch's order belongs to rank p % world_size. If the rows do not divide evenly, up to
    world_size - 1 rows from the start of the epoch's order are repeated at its end, so that all ranks take the same
    number of steps. With `drop_last`, the remainder is dropped instead.

    Args:
        dataset: any object with a length; if it has a str `digest`, that is hashed into the order.
        rank, world_size: this rank and the number of ranks.
        shuffle: `full`, `block` or `none`.
        seed: determines the order, together with the epoch.
        drop_last: drop the remainder instead of repeating rows.

    Attributes:
        epoch: the epoch of the next iteration; `set_epoch` changes it.
        position: rows of the epoch, over all ranks, that were already read and that the next iteration skips.
    """

    def __init__(
        self, dataset: Any, rank: int, world_size: int, shuffle: Any = "full", seed: int = 0, drop_last: bool = False
    ):
        super().__init__(dataset, world_size, rank, shuffle != "none", seed, drop_last)
        self.rows, self.position = len(dataset), 0
        digest = getattr(dataset, "digest", "")
        self.digest = digest if isinstance(digest, str) else ""
        self._order = RowOrder(max(self.rows, 1), self.digest, seed, shuffle)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        epoch = epoch_number(epoch, self.rows)
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def batches(self, size: int) -> Iterator[tuple[int, Ints]]:
        """Yield up to `size` rows of this rank at a time, int64, with the position after them, until the epoch ends."""
        begin, before, ranks = self.position, self.epoch * self.rows, self.num_replicas
        last = self.rows - (self.rows % ranks if self.drop_last else 0)
        while begin < last:
            end = min(begin + size * ranks, last)
            mine = self._order.span(before + begin, before + end)[self.rank :: ranks]
            if len(mine) < -(-(end - begin) // ranks):
                repeated = (begin + self.rank + len(mine) * ranks) % self.rows
                mine = np.append(mine, self._order.take(np.array([before + repeated])))
            yield end, mine
            begin = end

    def __iter__(self) -> Iterator[int]:
        for _, rows in self.batches(READ_AHEAD):
            yield from rows.tolist()
