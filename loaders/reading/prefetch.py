"""Makes batches in a thread of their own, and moves them to a GPU while the one before is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tokenloom.resources.engines.prefetch import prefetch

Tensors = dict[str, Any]


class DeviceCopy:
    """Copies batches to a GPU through pinned memory, on a stream of its own.

    Args:
        device: a CUDA device.

    Raises:
        ValueError: it is none, or there is no such device.
    """

    def __init__(self, device: torch.device | str):
        self._device = torch.device(device)
        if self._device.type != "cuda" or not torch.cuda.is_available():
            raise ValueError(f"batches are moved ahead to a CUDA device that is there, which {device} is not")
        self._stream = torch.cuda.Stream(self._device)

    def begin(self, batch: Tensors) -> tuple[Tensors, torch.Event]:
        """Begin to copy a batch; returns the copy, and when it is done."""
        with torch.cuda.stream(self._stream):
            moved = {
                name: value.to(self._device, non_blocking=True) if isinstance(value, torch.Tensor) else value
                for name, value in pinned(batch, self._device).items()
            }
            return moved, self._stream.record_event()

    def end(self, begun: tuple[Tensors, torch.Event]) -> Tensors:
        """The copy, for work that the current stream is given from now on."""
        batch, done = begun
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)
        return batch


def pinned(batch: Tensors, device: torch.device | int) -> Tensors:
    """The batch in memory that a GPU reads by itself."""
    with torch.cuda.device(device):
        return {name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def prefetched(
    batches: Iterator[tuple[Any, Tensors]], depth: int, copy: DeviceCopy | None
) -> Iterator[tuple[Any, Tensors]]:
    """Batches with what belongs to them, `depth` of them made ahead in a thread, and copied where there is a `copy`."""
    if copy is None:
        yield from prefetch(batches, lambda made: None, depth) if depth else batches
        return
    begun = ((key, copy.begin(batch)) for key, batch in batches)
    for key, moving in prefetch(begun, lambda made: None, max(depth, 1)):
        yield key, copy.end(moving)
