"""The number of CPU cores, with and without a CPU affinity mask."""

from __future__ import annotations

import os

import pytest

from tokenloom.resources.engines.engine import ComputeEngine, cpu_count


def test_auto_uses_one_worker_per_core() -> None:
    assert ComputeEngine("auto").workers == cpu_count() >= 1


@pytest.mark.parametrize(("cores", "expected"), [(6, 6), (None, 1)])
def test_without_an_affinity_mask_all_cores_of_the_machine_count(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, expected: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert cpu_count() == expected


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this platform has no CPU affinity mask")
def test_only_cores_in_the_affinity_mask_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cpu_count() == 2
