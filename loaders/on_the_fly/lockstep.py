"""The same number of batches on all ranks, where each knows only its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import torch.distributed as dist

AHEAD = 8
"""Batches that ranks make before they tell each other how many there are."""

T = TypeVar("T")


def in_lockstep(batches: Iterator[T], blank: Callable[[], T]) -> Iterator[T]:
    """All batches of this rank, then blank ones until no rank of `torch.distributed` has more.

    Args:
        blank: makes what stands in for a batch.
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
