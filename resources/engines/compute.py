"""Runs a function over many chunks, in order, several at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, TypeVar

import pyarrow as pa

from tokenloom.resources.engines.processes import Processes

RELEASE_EVERY = 8
"""After so many items, memory that is free within the process goes back to the system."""

T = TypeVar("T")
U = TypeVar("U")


class ComputeEngine:
    """Threads of this process: the kernels of Arrow, NumPy, tokenizers and BLAKE3 run outside Python's lock; what does
    not is computed in processes that the threads wait for.

    Args:
        workers: chunks computed at a time; "auto" is one a core. It never changes a byte of the result.
    """

    def __init__(self, workers: int | Literal["auto"] = "auto"):
        self.workers = len(os.sched_getaffinity(0)) if workers == "auto" else workers
        self._apart: list[Processes] = []

    def apart(self, function: Callable[[T], U]) -> Callable[[T], U]:
        """`function` for work that holds Python's lock: computed in processes of its own until the next `map` ends.

        Args:
            function: pure and picklable.
        """
        if self.workers == 1:
            return function
        self._apart.append(Processes(function, self.workers))
        return self._apart[-1]

    def map(self, function: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """`function` of each item, in the items' order; at most 2 × workers items are in flight."""
        if self.workers == 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="tokenloom") as pool:
            flight: deque[Future[U]] = deque()
            try:
                for count, item in enumerate(items, 1):
                    flight.append(pool.submit(function, item))
                    if not count % RELEASE_EVERY:
                        _release()
                    if len(flight) >= 2 * self.workers:
                        yield flight.popleft().result()
                while flight:
                    yield flight.popleft().result()
            finally:
                for future in flight:
                    future.cancel()
                while self._apart:
                    self._apart.pop().close()


def keep_memory_low() -> None:
    """Let Arrow allocate through the C library in this process, unless $ARROW_DEFAULT_MEMORY_POOL says otherwise: what
    is free there can be given back while other threads work."""
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())


def _release() -> None:
    """Give free memory back, Arrow's and, where the C library can, that of all others."""
    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()
