"""Runs a function on several ranks of `torch.distributed`, each in its own process."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from support.processes import DEADLINE

T = TypeVar("T")


def on_ranks(world: int, function: Callable[..., T], *arguments: Any) -> list[T]:
    """Return the result of `function(*arguments)` on each rank of a gloo group. If one rank raises, all end."""
    with tempfile.TemporaryDirectory() as folder:
        given = (world, folder, function, arguments)
        ranks: Any = start_processes(_rank, given, nprocs=world, join=False, start_method="fork")
        deadline = time.monotonic() + DEADLINE
        try:
            while not ranks.join(max(0.0, deadline - time.monotonic())):
                assert time.monotonic() < deadline, f"the ranks of {function.__name__} did not end within {DEADLINE} s"
        finally:
            for process in ranks.processes:
                process.kill()
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _rank(rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", meeting, timedelta(seconds=DEADLINE), world_size=world, rank=rank)
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(function(*arguments)))
    dist.destroy_process_group()
