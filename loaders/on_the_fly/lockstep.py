"""The same number of batches on all ranks, although each rank knows only its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import torch.distributed as dist

AHEAD = 8
"""Batches that each rank prepares before the ranks exchange their counts."""

T = TypeVar("T")


def in_lockstep(batches: Iterator[T], blank: Callable[[], T]) -> Iterator[T]:
    """Yield all batches of this rank, then blank ones until no rank of `torch.distributed` has more.

    Args:
        batches: this rank's batches.
        blank: returns a batch of padding.
    """
    most = AHEAD
    while most == AHEAD:
        mine = list(islice(batches, AHEAD))
        counts = [0] * dist.get_world_size()
        dist.all_gather_object(counts, len(mine))
        most = max(counts)
        yield from mine
        for _ in range(most - len(mine)):
            yield blank()
