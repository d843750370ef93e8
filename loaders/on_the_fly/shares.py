"""The part of a stream that this process reads, and its order; no other rank or worker process reads the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import get_worker_info

from tokenloom.loaders.on_the_fly.raw_rows import Rows, rows_at
from tokenloom.loaders.order.permutation import Permutation, key_of
from tokenloom.resources.tables.ragged import Ints


@dataclass(frozen=True)
class Share:
    """Part `number`, counted from 0, of `count` parts of a stream."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"share {self.number} of {self.count}"

    @classmethod
    def of(cls, rank: int, world_size: int) -> Share:
        """Return the part of this process: of a rank, or of a worker process of its `DataLoader`."""
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        return cls(rank * workers + number, world_size * workers)

    def deal(self, blocks: Iterable[Rows], whole: bool) -> Iterator[tuple[Rows, Ints]]:
        """Yield this part's rows of each block, with their numbers in the stream, int64.

        Args:
            blocks: all rows of the stream.
            whole: yield every `count`-th block instead of every `count`-th row.
        """
        before = 0
        for index, block in enumerate(blocks):
            rows = len(block)
            if not whole:
                own = np.arange((self.number - before) % self.count, rows, self.count)
                yield (block if self.count == 1 else rows_at(block, own)), before + own
            elif index % self.count == self.number:
                yield block, before + np.arange(rows)
            before += rows

    def order(self, rows: int, window: int, seed: int, epoch: int) -> Ints:
        """Return the shuffled order of a window's rows, int64 [rows]."""
        order = np.arange(rows)
        return Permutation(rows, key_of("stream", window, self.number, seed, epoch))(order) if rows else order
