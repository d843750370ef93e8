"""Prefetching: run an iterator in a background thread, a few items ahead of its consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
        while (item := pending.pop(0).result()) is not _END:
            pending.append(thread.submit(produce))
            yield item  # pyright: ignore[reportReturnType]
