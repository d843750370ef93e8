"""Runs a function on several ranks of `torch.distributed`, each in its own process."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

T = TypeVar("T")


def on_ranks(world: int, function: Callable[..., T], *arguments: Any) -> list[T]:
    """Return the result of `function(*arguments)` on each rank of a gloo group. If one rank raises, all end."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (world, folder, function, arguments), nprocs=world, start_method="fork")
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _rank(rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", meeting, timedelta(seconds=60), world_size=world, rank=rank)
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(function(*arguments)))
    dist.destroy_process_group()
