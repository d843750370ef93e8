"""Prepares batches in a background thread, and copies them to a GPU while the previous batch is in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tokenloom.resources.engines.prefetch import prefetch

Tensors = dict[str, Any]


class DeviceCopy:
    """Copies batches to a GPU through pinned memory, on a separate CUDA stream.

    Args:
        device: a CUDA device.

    Raises:
        ValueError: `device` is not an available CUDA device.
    """

    def __init__(self, device: torch.device | str):
        self._device = torch.device(device)
        if self._device.type != "cuda" or not torch.cuda.is_available():
            raise ValueError(f"prefetch_to_device must be an available CUDA device, got {device}")
        self._stream = torch.cuda.Stream(self._device)

    def begin(self, batch: Tensors) -> tuple[Tensors, torch.Event]:
        """Start to copy a batch. Return the copy, and the event that marks its completion."""
        with torch.cuda.stream(self._stream):
            moved = {
                name: value.to(self._device, non_blocking=True) if isinstance(value, torch.Tensor) else value
                for name, value in pinned(batch, self._device).items()
            }
            return moved, self._stream.record_event()

    def end(self, started: tuple[Tensors, torch.Event]) -> Tensors:
        """Make the current stream wait for a copy, and return it."""
        batch, done = started
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)
        return batch


def pinned(batch: Tensors, device: torch.device | int) -> Tensors:
    """Return the batch in pinned memory."""
    with torch.cuda.device(device):
        return {name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def prefetched(
    batches: Iterator[tuple[Any, Tensors]], depth: int, copy: DeviceCopy | None
) -> Iterator[tuple[Any, Tensors]]:
    """Yield keyed batches, prepared up to `depth` ahead in a background thread.

    Args:
        batches: (key, batch) pairs; keys pass through unchanged.
        depth: batches to prepare ahead; 0: none, or one if there is a `copy`.
        copy: moves each batch to a GPU ahead of use; None: batches stay where they are.
    """
    if copy is None:
        yield from prefetch(batches, lambda _: None, depth) if depth else batches
        return
    copies = ((key, copy.begin(batch)) for key, batch in batches)
    for key, started in prefetch(copies, lambda _: None, max(depth, 1)):
        yield key, copy.end(started)
