"""Works ahead of training, in background threads: downloads chunks, prepares batches, and copies them to a GPU."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

import numpy as np
import torch

from tokenloom.loaders.order.batch_plan import LARGEST_COUNT, integer
from tokenloom.loaders.reading.memory import FarChunks
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.engines.engine import cpu_count, prefetch
from tokenloom.resources.tables.ragged import Ints

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
            # or the allocator could give the memory away before the current stream has read it
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


AHEAD_BYTES = 1 << 31
"""Bytes downloaded ahead of the current step, at most a quarter of the cache."""

AHEAD_ROWS = 1 << 18
"""Rows of a rank that are looked at ahead of the current step."""


class ReadAhead:
    """Downloads chunks ahead of a loader, until the `with` block ends. Its errors are ignored: reading reports them.

    Args:
        reader: reads chunks that are downloaded.
        steps: the rows of one or more steps, int64 [rows] for each step, negative for padding rows.
    """

    def __init__(self, reader: SequenceReader, steps: Iterator[list[Ints]]):
        assert reader.far is not None
        self._far, self._chunks_of, self._steps = reader.far, reader.chunks_of, steps
        self._limit = min(AHEAD_BYTES, self._far.limit // 4)
        self._changed = Condition()
        self._groups = deque[tuple[int, int, int]]()  # the number of the last step of a group, and its bytes and rows
        self._read, self._bytes, self._rows, self._ended = 0, 0, 0, False

    def __enter__(self) -> ReadAhead:
        Thread(target=self._download, name="tokenloom-read-ahead", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def step_read(self) -> None:
        """Report that the next step was read."""
        with self._changed:
            self._read += 1
            if self._groups and self._groups[0][0] <= self._read:
                _, size, rows = self._groups.popleft()
                self._bytes, self._rows = self._bytes - size, self._rows - rows
                self._changed.notify()

    def _download(self) -> None:
        bytes_before = np.full(len(self._far.sizes), -1, np.int64)  # downloaded before each chunk; -1: not yet
        downloaded, last = 0, 0
        with suppress(Exception):  # whoever reads the chunk raises it
            for steps in self._steps:
                rows, last = np.concatenate(steps), last + len(steps)
                chunks, first = np.unique(self._chunks_of(rows[rows >= 0]), return_index=True)
                chunks = chunks[np.argsort(first)]  # in the order in which they are read
                # after half a cache of other bytes; asking for a chunk that is still there downloads nothing
                evicted = downloaded - bytes_before[chunks] > self._far.limit // 2  # perhaps
                new = chunks[(bytes_before[chunks] < 0) | evicted]
                size = int(self._far.sizes[new].sum())
                if not self._wait(last, size, len(rows)):
                    return
                bytes_before[new] = downloaded
                downloaded += size
                if size:
                    self._far.download(new)

    def _wait(self, last: int, size: int, rows: int) -> bool:
        """Wait until a group of steps is not too far ahead. Return False if the block ended."""
        with self._changed:
            while not self._ended:
                # a group that is too large by itself is read when no other is ahead
                near = self._bytes + size <= self._limit and self._rows + rows <= AHEAD_ROWS
                if near or not self._groups:
                    self._groups.append((last, size, rows))
                    self._bytes, self._rows = self._bytes + size, self._rows + rows
                    return True
                self._changed.wait()
        return False


def warn_if_too_small(far: FarChunks, needed: int, shuffle: str) -> None:
    """Warn if the cache holds less than twice the bytes that an order reads at the same time."""
    if 2 * needed > far.limit:
        block = ", or use shuffle='block'" if shuffle == "full" else ""
        warnings.warn(
            f"shuffle={shuffle!r} reads {needed / 1e6:,.0f} MB of chunks at the same time, but the cache holds "
            f"{far.limit / 1e6:,.0f} MB, so that chunks are downloaded several times per epoch; set "
            f"TOKENLOOM_CACHE_SIZE to at least {math.ceil(2 * needed / 1e6)}MB{block}",
            stacklevel=3,
        )
