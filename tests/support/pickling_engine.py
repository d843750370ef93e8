"""An engine whose functions and items are pickled, as they are for another machine, but called in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tokenloom.resources.engines.engine import ComputeEngine, Ready, Shared


class PicklingEngine(ComputeEngine):
    in_process = False

    @property
    def here(self) -> ComputeEngine:
        return ComputeEngine(2)

    def apart(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return function

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], store: Shared | None = None) -> Iterator[Any]:
        copy = _copied(function)

        def call(item: bytes) -> bytes:
            return pickle.dumps(copy(pickle.loads(item)))

        sent = (item if isinstance(item, Ready) else _pickled(item) for item in items)
        for result in super().map(call, sent):
            yield pickle.loads(result) if isinstance(result, bytes) else result


def _pickled(value: Any) -> bytes:
    from ray import cloudpickle

    return cloudpickle.dumps(value)  # pyright: ignore[reportPrivateImportUsage]


def _copied(value: Any) -> Any:
    return pickle.loads(_pickled(value))
