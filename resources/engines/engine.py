"""The compute engine: maps a function over many chunks in parallel, keeping their order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, Protocol, TypeVar

import pyarrow as pa

from tokenloom.resources.engines.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from tokenloom.config.schema import ComputeConfig


def cpu_count() -> int:
    """Return the number of CPU cores available to this process, at least 1.

    Respects the CPU affinity mask where the platform has one (Linux). On macOS and Windows it is the number of cores
    of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


T = TypeVar("T")

_END = object()


def prefetch(items: Iterable[T], prepare: Callable[[T], object], depth: int = 2) -> Iterator[T]:
    """Yield the items in order, each produced in a background thread while earlier ones are in use.

    Args:
        prepare: called with each item in that thread; its result is ignored. Use it to fill values that the item
            caches.
        depth: number of items produced in advance.
    """
    source = iter(items)

    def produce() -> T | object:
        item = next(source, _END)
        if item is not _END:
            prepare(item)  # pyright: ignore[reportArgumentType]
        return item

    with ThreadPoolExecutor(1, thread_name_prefix="tokenloom-prefetch") as thread:
        pending = [thread.submit(produce) for _ in range(depth)]
        # one thread: it runs the requests in order, `depth` of them ahead
        while (item := pending.pop(0).result()) is not _END:
            pending.append(thread.submit(produce))
            yield item  # pyright: ignore[reportReturnType]


RELEASE_EVERY = 8
"""Number of items after which unused memory is returned to the operating system."""

U = TypeVar("U")


@dataclass(frozen=True)
class Ready(Generic[U]):
    """An item of `map` whose result is known, so that nothing runs for it."""

    result: U


class Shared(Protocol):
    """A store that functions read and write, on any machine. It can be pickled."""

    @property
    def address(self) -> str: ...

    def leave_mark(self) -> str:
        """Write a mark, by which another machine can check that it sees the same store; returns its name, or "" if
        nothing can be written.

        Raises:
            StoreError: the store does not exist, or cannot be written.
        """
        ...

    def take_mark(self, mark: str) -> bool:
        """Remove a mark; returns whether it was there."""
        ...


@dataclass
class Retries:
    """Items that had to be computed again, because a machine or a store was away.

    Args:
        count: how often since the engine was made.
        last: which item it was the last time, and why.
    """

    count: int = 0
    last: str = ""


class ComputeEngine:
    """A pool of threads. The kernels of Arrow, NumPy, tokenizers and BLAKE3 release the GIL; functions that hold it run
    in worker processes (`apart`).

    Args:
        workers: chunks computed in parallel. "auto" uses one worker per CPU core. The result is the same for any number
            of workers.
    """

    in_process: ClassVar[bool] = True
    """Whether functions run in this process, so that what they share with it needs no copies."""

    def __init__(self, workers: int | Literal["auto"] = "auto"):
        self._workers: int | Literal["auto"] = workers
        self.retries = Retries()
        self._apart: list[WorkerProcesses] = []

    @property
    def workers(self) -> int:
        """Number of chunks computed in parallel."""
        return cpu_count() if self._workers == "auto" else self._workers

    @property
    def here(self) -> ComputeEngine:
        """The engine for work that shares state with this process, or waits for the store: threads of this process."""
        return self

    def beside(self, most: int) -> ComputeEngine:
        """Return an engine of at most so many workers, for work that items of another `map` are made from."""
        return type(self)(min(self.workers, most))

    def apart(self, function: Callable[[T], U]) -> Callable[[T], U]:
        """Return `function` wrapped to run in worker processes until the next `map` ends, for work that holds the GIL.

        Args:
            function: pure and picklable.
        """
        if self.workers == 1:
            return function
        self._apart.append(WorkerProcesses(function, self.workers))
        return self._apart[-1]

    def map(
        self, function: Callable[[T], U], items: Iterable[T | Ready[U]], store: Shared | None = None
    ) -> Iterator[U]:
        """Yield `function(item)` for each item, in order. At most 2 × workers items are in flight.

        Args:
            store: where the function reads and writes. An engine that uses several machines checks that all reach it.
        """
        if self.workers == 1:
            for item in items:
                yield item.result if isinstance(item, Ready) else function(item)
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="tokenloom") as pool:
            pending: deque[Future[U] | Ready[U]] = deque()
            submitted = 0
            try:
                for count, item in enumerate(items, 1):
                    pending.append(item if isinstance(item, Ready) else pool.submit(function, item))
                    submitted += not isinstance(item, Ready)
                    if not count % RELEASE_EVERY:
                        release_memory()
                    # ready items cost nothing: they are not counted, and pass on at once
                    while pending and (submitted >= 2 * self.workers or isinstance(pending[0], Ready)):
                        submitted -= not isinstance(pending[0], Ready)
                        yield _result(pending.popleft())
                while pending:
                    yield _result(pending.popleft())
            finally:
                for waiting in pending:
                    if isinstance(waiting, Future):
                        waiting.cancel()
                while self._apart:
                    self._apart.pop().close()


def _result(pending: Future[U] | Ready[U]) -> U:
    return pending.result if isinstance(pending, Ready) else pending.result()


def keep_memory_low() -> None:
    """Make Arrow allocate through the C library in this process, unless $ARROW_DEFAULT_MEMORY_POOL is set.

    The C library can return unused memory to the operating system while other threads work.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())


def release_memory() -> None:
    """Return unused memory to the operating system: Arrow's, and all of the C library's if it supports that."""
    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()


def open_engine(compute: ComputeConfig) -> ComputeEngine:
    """Return an engine. One of a Ray cluster connects when it is used."""
    if compute.engine == "ray":
        ray_engine = import_module("tokenloom.resources.engines.ray_engine")
        return ray_engine.RayEngine(compute.workers, compute.address)
    return ComputeEngine(compute.workers)
