"""Runs an iterator in a thread of its own, a few items ahead of whoever takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_END = object()


def ahead(items: Iterable[T], prepare: Callable[[T], object], depth: int = 2) -> Iterator[T]:
    """The items in order, each made and prepared in another thread while those before it are in use.

    Args:
        prepare: called with each item in that thread, for what it computes and keeps.
        depth: how many items are made in advance.
    """
    source = iter(items)

    def following() -> T | object:
        item = next(source, _END)
        if item is not _END:
            prepare(item)  # pyright: ignore[reportArgumentType]
        return item

    with ThreadPoolExecutor(1, thread_name_prefix="tokenloom-ahead") as thread:
        flight = [thread.submit(following) for _ in range(depth)]
        while (item := flight.pop(0).result()) is not _END:
            flight.append(thread.submit(following))
            yield item  # pyright: ignore[reportReturnType]
