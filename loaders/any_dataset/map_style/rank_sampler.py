"""Which rows of any map-style dataset a rank reads: a `DistributedSampler` in the order of a `RowOrder`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler

from tokenloom.loaders.order.row_order import RowOrder
from tokenloom.resources.tables.ragged import Ints

READ_AHEAD = 1024
"""Rows computed at once where they are asked for one by one."""


class RankSampler(DistributedSampler[int]):
    """Row numbers of one rank; each epoch has every row once over all ranks.

    Position p of an epoch's order belongs to rank p % world_size, so that `world_size` times as many rows are done with
    as one rank has read. Where `world_size` does not divide the rows, up to world_size - 1 rows from the begin of the
    epoch's order come a second time at its end, as every rank makes the same number of steps; `drop_last` leaves out
    the rows over instead.

    Args:
        dataset: what has a length; a `digest`, where it is a str, is hashed into the order.
        rank, world_size: which of how many ranks.
        shuffle: `full`, `block` or `none`.
        seed: chooses the order, together with the epoch.

    Attributes:
        epoch: what the next iteration makes; `set_epoch` chooses it.
        position: rows of the epoch, of all ranks, that the next iteration leaves out because they are done with.
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
        """Choose the epoch that the next iteration makes."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def batches(self, size: int) -> Iterator[tuple[int, Ints]]:
        """Up to `size` rows at a time of this rank, int64, to the epoch's end, and the position behind them."""
        begin, before, ranks = self.position, self.epoch * self.rows, self.num_replicas
        last = self.rows - (self.rows % ranks if self.drop_last else 0)
        while begin < last:
            end = min(begin + size * ranks, last)
            mine = self._order.span(before + begin, before + end)[self.rank :: ranks]
            if len(mine) < -(-(end - begin) // ranks):
                again = (begin + self.rank + len(mine) * ranks) % self.rows
                mine = np.append(mine, self._order.take(np.array([before + again])))
            yield end, mine
            begin = end

    def __iter__(self) -> Iterator[int]:
        for _, rows in self.batches(READ_AHEAD):
            yield from rows.tolist()
