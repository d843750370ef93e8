"""The Ray engine: maps a function over many chunks in tasks of a Ray cluster, keeping their order."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, TypeVar

from tokenloom.errors import ClusterError, ClusterUnavailableError, ConfigError, missing_package
from tokenloom.resources.engines.engine import ComputeEngine, Ready, Shared
from tokenloom.resources.engines.ray_worker import Reply, versions

ADDRESS = "compute.address"
START = "start one with `ray start --head`, or set the address of one"

TRIES = 5
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Seconds before an item is tried again: exponential backoff, with random jitter of up to half of the wait."""

CONNECT_SECONDS = 10.0

CPUS_EVERY = 5.0
"""Seconds after which the number of CPUs of the cluster is read again."""

AHEAD, AHEAD_BESIDE = 8, 1
"""Finished items that wait for an earlier one, per worker."""

REQUESTS = 16
"""Threads for requests that this process sends to the store itself."""

T = TypeVar("T")
U = TypeVar("U")


class RayEngine(ComputeEngine):
    """Tasks of a Ray cluster, each on one CPU.

    What a task needs travels with it, and its outputs go through the store, which all nodes must reach. A task that
    fails because a worker or a node died, or because the store was away, is tried again, up to `TRIES` times in all. An
    error that the function raises otherwise is raised here with its own type.

    Args:
        workers: chunks computed in parallel. "auto" uses all CPUs of the cluster, also of nodes that join later.
        address: `host:port`, or `ray://host:port` for a connection through Ray Client. None or "auto" uses
            $RAY_ADDRESS, else the cluster that runs on this machine.
    """

    in_process: ClassVar[bool] = False

    def __init__(self, workers: int | Literal["auto"] = "auto", address: str | None = None):
        super().__init__(workers)
        self._address = address or "auto"
        self._cpus, self._read_at = 0, float("-inf")
        self._ahead, self._options = AHEAD, {"num_cpus": 1.0}

    @property
    def workers(self) -> int:
        """Number of chunks computed in parallel: all CPUs of the cluster, unless it is set."""
        if self._workers != "auto":
            return self._workers
        if time.monotonic() - self._read_at > CPUS_EVERY:
            self._cpus = int(connected(self._address).cluster_resources().get("CPU", 0))
            self._read_at = time.monotonic()
        return max(self._cpus, 1)

    @property
    def here(self) -> ComputeEngine:
        """An engine of threads in this process."""
        return ComputeEngine(REQUESTS)

    def beside(self, most: int) -> RayEngine:
        """Return an engine whose tasks start at once, on all nodes: they do not wait for CPUs that are in use."""
        engine = RayEngine(min(self.workers, most), self._address)
        engine._ahead, engine._options = AHEAD_BESIDE, {"num_cpus": 0.0, "scheduling_strategy": "SPREAD"}
        return engine

    def apart(self, function: Callable[[T], U]) -> Callable[[T], U]:
        """Return `function`: every task runs in a process of its own."""
        return function

    def map(
        self, function: Callable[[T], U], items: Iterable[T | Ready[U]], store: Shared | None = None
    ) -> Iterator[U]:
        """Yield `function(item)` for each item, in order. At most 2 × workers items are in flight, and the results of a
        few more.

        Args:
            function: picklable, as are its items and results. An item can have an attribute `place` for messages.
            store: where the function reads and writes; every worker process checks that it is the same store.

        Raises:
            ConfigError: Ray is not installed, or no cluster is found.
            ClusterError: a node cannot run the function, or an item failed on every try.
        """
        running = _Running(connected(self._address), function, store, self)
        order: deque[_Flight | Ready[U]] = deque()
        waiting = 0
        try:
            for item in items:
                order.append(item if isinstance(item, Ready) else running.start(item))
                waiting += not isinstance(item, Ready)
                # results that wait for an earlier one are in memory: their number is limited too
                while running.busy >= self._most_busy or waiting >= self._ahead * self.workers + self._most_busy:
                    if isinstance(order[0], Ready) or order[0].reply:
                        break
                    running.settle()
                while order and (isinstance(order[0], Ready) or order[0].reply):
                    waiting -= not isinstance(order[0], Ready)
                    yield _result(order.popleft())
            while order:
                while not (isinstance(order[0], Ready) or order[0].reply):
                    running.settle()
                yield _result(order.popleft())
        finally:
            running.cancel()

    @property
    def _most_busy(self) -> int:
        return self._workers if self._workers != "auto" else 2 * self.workers


@dataclass(eq=False)
class _Flight:
    """An item that is computed, until its result is used; `item` is pickled, `reply` the result or the final error."""

    item: bytes
    place: str
    tries: int = 0
    due: float = 0.0
    reply: Reply | None = None


def _result(flight: _Flight | Ready[U]) -> U:
    if isinstance(flight, Ready):
        return flight.result
    assert flight.reply is not None
    if flight.reply.kind == "failed":
        raise flight.reply.value
    return flight.reply.value


class _Running:
    """The tasks of one `map`."""

    def __init__(self, ray: Any, function: Callable[[Any], Any], store: Shared | None, engine: RayEngine):
        self._ray, self._dumps, self._engine = ray, ray.cloudpickle.dumps, engine
        self._store = store
        # once for all tasks: a function can hold a tokenizer
        self._shared = ray.put(self._dumps((function, store)))
        self._task = ray.remote(_task()).options(max_retries=0, **engine._options)
        self._running: dict[Any, _Flight] = {}
        self._delayed: list[_Flight] = []

    @property
    def busy(self) -> int:
        return len(self._running) + len(self._delayed)

    def start(self, item: Any) -> _Flight:
        flight = _Flight(self._dumps(item), str(getattr(item, "place", "")))
        self._submit(flight)
        return flight

    def _submit(self, flight: _Flight) -> None:
        flight.tries += 1
        # The reference is in a list so that Ray does not load the function before the task runs.
        self._running[self._task.remote(versions(), [self._shared], flight.item)] = flight

    def settle(self) -> None:
        """Wait until a task ends or is due to be tried again, and record how it ended."""
        now = time.monotonic()
        for flight in [flight for flight in self._delayed if flight.due <= now]:
            self._delayed.remove(flight)
            self._submit(flight)
        pause = min((flight.due for flight in self._delayed), default=now + CPUS_EVERY) - now
        if not self._running:
            time.sleep(pause)
            return
        for reference in self._ray.wait([*self._running], num_returns=1, timeout=pause)[0]:
            self._end(self._running.pop(reference), reference)

    def _end(self, flight: _Flight, reference: Any) -> None:
        from ray.exceptions import RayError, RayTaskError

        try:
            reply = Reply(*self._ray.get(reference))
        except RayTaskError as error:
            raise ClusterError(f"{flight.place}: a task cannot run on the Ray cluster: {_line(error.cause)}") from None
        except RayError as error:
            self._again(flight, _reason(error), None)
            return
        if reply.kind == "unfit":
            raise ClusterError(
                f"the node {reply.host} of the Ray cluster cannot run chunks: {reply.value}; all nodes need the same "
                "Python and packages, and a store that all of them reach: a shared folder or a bucket"
            )
        if reply.mark:
            assert self._store is not None
            if not self._store.take_mark(reply.mark):  # the process wrote it elsewhere
                raise ClusterError(
                    f"{self._store.address} on the node {reply.host} is not the store that this process sees; build "
                    "into a folder that all nodes share, or into a bucket (--store or $TOKENLOOM_STORE)"
                )
        if reply.kind == "failed" and getattr(reply.value, "is_outage", False):
            self._again(flight, _line(getattr(reply.value, "error", None) or reply.value), reply)
            return
        flight.reply, flight.item = reply, b""

    def _again(self, flight: _Flight, reason: str, reply: Reply | None) -> None:
        if flight.tries < TRIES:
            wait = min(FIRST_WAIT * 2 ** (flight.tries - 1), LONGEST_WAIT) * random.uniform(0.5, 1)
            flight.due = time.monotonic() + wait
            self._delayed.append(flight)
            self._engine.retries.count += 1
            self._engine.retries.last = f"{flight.place}: {reason}; trying again"
            return
        failed = ClusterError(
            f"{flight.place}: failed {TRIES} times in a row on the Ray cluster, the last time because {reason}; check "
            "the memory of the nodes and the logs of Ray, and build again: finished chunks are kept"
        )
        flight.reply, flight.item = reply or Reply("failed", failed, ""), b""

    def cancel(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)
        self._running.clear()


def _task() -> Callable[..., tuple[Any, ...]]:
    """Return the function that tasks run. As a local function it is pickled by value, so that a node without tokenloom
    can report that."""

    def tokenloom_chunk(expected: dict[str, str], shared: list[Any], item: bytes) -> tuple[Any, ...]:
        import platform

        import ray

        try:
            from tokenloom.resources.engines.ray_worker import run
        except ImportError as error:
            return "unfit", f"tokenloom cannot be imported there ({error})", platform.node()
        return tuple(run(expected, shared[0].hex(), lambda: ray.get(shared[0]), item))

    return tokenloom_chunk


_address: str | None = None


def connected(address: str) -> Any:
    """Return the module `ray`, connected to a cluster. A connection that this process has already is used.

    Raises:
        ConfigError: Ray is not installed, no cluster is found, or the process is connected to another one.
        ClusterUnavailableError: the cluster does not respond.
        ClusterError: it has another version of Ray or Python.
    """
    global _address
    try:
        import ray
    except ImportError:
        raise ConfigError.at("compute.engine", str(missing_package("ray", "the engine `ray`"))) from None
    address = address if address != "auto" else os.environ.get("RAY_ADDRESS") or "auto"
    if ray.is_initialized():
        if _address not in (address, None) or (_address is None and address != "auto"):
            message = f"this process is connected to another Ray cluster ({_address or 'by ray.init'}); use one cluster"
            raise ConfigError.at(ADDRESS, f"{message} per process, or set the address to `auto`")
        return ray
    if address != "auto":
        check_address(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, TimeoutError) as error:
        if address == "auto":
            raise ConfigError.at(ADDRESS, f"no Ray cluster is running on this machine; {START}") from None
        raise ClusterUnavailableError(f"the Ray cluster {address} does not respond: {_line(error)}") from None
    except RuntimeError as error:
        raise ClusterError(f"cannot use the Ray cluster {address}: {_line(error)}") from None
    _address = address
    setattr(import_module("ray._private.worker"), "_worker_logs_enabled", False)  # noqa: B010  # it prints to stdout
    return ray


def check_address(address: str) -> None:
    """Try to connect to an address; Ray itself tries for minutes.

    Raises:
        ConfigError: it is not a valid address.
        ClusterUnavailableError: nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        message = f"{address!r} is not the address of a Ray cluster; use host:port, ray://host:port or `auto`"
        raise ConfigError.at(ADDRESS, message)
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterUnavailableError(
            f"no Ray cluster responds at {address} ({reason}); check the address, and that the cluster runs"
        ) from None


def _line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".;:")


def _reason(error: Exception) -> str:
    from ray import exceptions

    reasons = {
        exceptions.OutOfMemoryError: "its node ran out of memory",
        exceptions.WorkerCrashedError: "its worker process died",
        exceptions.NodeDiedError: "its node was lost",
        exceptions.LocalRayletDiedError: "its node was lost",
    }
    fitting = (reason for kind, reason in reasons.items() if isinstance(error, kind))
    return next(fitting, f"{type(error).__name__}: {_line(error)}")
