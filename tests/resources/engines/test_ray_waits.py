"""How long the Ray engine waits before it tries an item again, with a stand-in for the cluster that takes no time."""

from __future__ import annotations

from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tokenloom.errors import StoreUnavailableError
from tokenloom.resources.engines import ray_engine
from tokenloom.resources.engines.ray_engine import RayEngine


class AwayCluster:
    """A cluster on which each task finds that the store is away; `started` has the times of the tasks."""

    def __init__(self) -> None:
        self.now, self.started, numbers = 0.0, list[float](), count()

        def start(*_: Any) -> int:
            self.started.append(self.now)
            return next(numbers)

        self.cloudpickle = SimpleNamespace(dumps=lambda value: b"")
        self.task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def put(self, value: Any) -> Any:
        return value

    def remote(self, function: Any) -> Any:
        return self.task

    def wait(self, running: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return running, []

    def get(self, reference: int) -> tuple[str, Exception, str]:
        return "failed", StoreUnavailableError("the store is away"), "node"

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_an_item_is_tried_again_after_1_2_4_and_8_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to half of it less, at random."""
    cluster = AwayCluster()
    monkeypatch.setattr(ray_engine, "connected", lambda address: cluster)
    monkeypatch.setattr(ray_engine, "time", SimpleNamespace(monotonic=lambda: cluster.now, sleep=cluster.sleep))
    with pytest.raises(StoreUnavailableError, match="the store is away"):
        list(RayEngine(workers=1).map(str, [3]))
    waits = [after - before for before, after in pairwise(cluster.started)]
    assert len(waits) == 4
    assert all(most / 2 - 1e-9 <= wait <= most + 1e-9 for wait, most in zip(waits, (1, 2, 4, 8), strict=True)), waits
