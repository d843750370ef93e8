"""Options of worker processes that depend on the hardware."""

from __future__ import annotations

from typing import Any

import torch

from tokenloom.loaders.order.arguments import LARGEST_COUNT, integer
from tokenloom.resources.engines.cpu_count import cpu_count

MAXIMUM_WORKERS = 4
"""Largest number of worker processes that is chosen automatically."""


def workers_for_hardware() -> int:
    """Return 0 without a CUDA device, where workers cost more than they gain, else half of the CPUs, at most 4."""
    return min(MAXIMUM_WORKERS, cpu_count() // 2) if torch.cuda.is_available() else 0


def worker_options(
    num_workers: int, pin_memory: bool | None, prefetch_factor: int | None, persistent_workers: bool | None
) -> dict[str, Any]:
    """Return these arguments of `torch.utils.data.DataLoader`, with None replaced by what suits the hardware.

    Raises:
        ValueError: a number is not an integer, or is out of range.
    """
    num_workers = integer("num_workers", num_workers, 0, LARGEST_COUNT)
    if prefetch_factor is not None:
        prefetch_factor = integer("prefetch_factor", prefetch_factor, min(num_workers, 1), LARGEST_COUNT)
    return {
        "num_workers": num_workers,
        "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
        "prefetch_factor": prefetch_factor if num_workers else None,
        "persistent_workers": num_workers > 0 and persistent_workers is not False,
    }
