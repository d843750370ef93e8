"""Ranks with different numbers of batches make the same number of steps."""

from __future__ import annotations

import torch.distributed as dist

from support.gloo_ranks import on_ranks
from support.soak import machine, smoke
from tokenloom.loaders.on_the_fly.row_stream import AHEAD, in_lockstep

pytestmark = machine("ranks")

COUNTS = ((0, 0, 0), (1, 0, 3), (AHEAD, 0, 3), (AHEAD, AHEAD, AHEAD), (2 * AHEAD, AHEAD - 1, 2 * AHEAD), (1, 30, 9))


@smoke
def test_blank_batches_follow_until_no_rank_has_more() -> None:
    def made() -> list[list[int]]:
        return [list(in_lockstep(iter(range(counts[dist.get_rank()])), lambda: -1)) for counts in COUNTS]

    for rank, found in enumerate(on_ranks(3, made)):
        assert found == [[*range(counts[rank]), *[-1] * (max(counts) - counts[rank])] for counts in COUNTS]
