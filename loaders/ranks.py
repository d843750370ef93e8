"""Which of how many ranks this process is."""

from __future__ import annotations

import torch


def place_among_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else those of `torch.distributed` where it is initialized, else (0, 1).

    Raises:
        ValueError: only one of the two is given.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise ValueError("give rank and world_size together")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
