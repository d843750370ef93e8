"""The order of an epoch: which row stands at which position, and which positions each rank reads.

Order is a pure function of (dataset digest, seed, epoch). Ranks and batch sizes only divide it: global batch g holds
positions [g × world_size × batch_size, …), and rank r reads the r-th part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from torch.utils.data import Sampler

from tokenloom.resources.digest import digest_json
from tokenloom.resources.ragged import Ints

Shuffle = Literal["full", "none"] | bool
FILLER = -1
"""Stands for a row of padding, without loss, in the last batch of ranks that have fewer rows."""


def permutation(rows: int, digest: str, seed: int, epoch: int) -> Ints:
    """int64 [rows]: the row at each position of a shuffled epoch.

    The seed is hashed with the dataset's digest and the epoch, so that no two of them share an order (Philox:
    Salmon et al., SC 2011).
    """
    key = int(digest_json(["order", digest, seed, epoch])[:32], 16)
    return np.random.Generator(np.random.Philox(key=key)).permutation(rows)


class BatchOrder(Sampler[Ints]):
    """Yields the rows of each of one rank's batches, int64 [batch_size], for one epoch after the other.

    A finished epoch moves on to the next; `set_epoch` chooses one. All ranks make the same number of steps; where
    rows run out, `FILLER` stands in on several ranks, and the last batch is smaller on a single one.

    Args:
        rows: rows of the dataset.
        digest: the dataset's content digest.
        batch_size: rows a rank and batch.
        shuffle: `full` or True, `none` or False.
        drop_last: leave out a last global batch that is not full.
    """

    def __init__(
        self,
        rows: int,
        digest: str,
        batch_size: int,
        shuffle: Shuffle = "full",
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ):
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not within world size {world_size}")
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} is not at least 1")
        if shuffle not in (True, False, "full", "none"):
            raise ValueError(f"shuffle {shuffle!r} is not 'full', 'none', True or False")
        self.rows, self.digest, self.batch_size = rows, digest, batch_size
        self.shuffled, self.seed, self.drop_last = shuffle in (True, "full"), seed, drop_last
        self.rank, self.world_size = rank, world_size
        self.epoch = 0

    def __len__(self) -> int:
        whole, rest = divmod(self.rows, self.batch_size * self.world_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Ints]:
        order = np.arange(self.rows)
        if self.shuffled:
            order = permutation(self.rows, self.digest, self.seed, self.epoch)
        stride = self.batch_size * self.world_size
        for step in range(len(self)):
            begin = step * stride + self.rank * self.batch_size
            rows = order[begin : begin + self.batch_size]
            if self.world_size > 1 and len(rows) < self.batch_size:
                rows = np.concatenate([rows, np.full(self.batch_size - len(rows), FILLER)])
            yield rows
        self.epoch += 1
