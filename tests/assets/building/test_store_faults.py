"""A store that fails at any one call: the build is right, or ends with one clear error, and the next one is right."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from support.builds import build, digests
from support.datasets_on_disk import write_dataset
from tokenloom.errors import StoreError, StoreUnavailableError
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.store.verify import verify

SOAK = os.environ.get("TOKENLOOM_SOAK") == "1"
FEW = 8


class Fault:
    """Wraps a function so that its call number `at` raises; counts the calls of all threads."""

    def __init__(self, function: Callable[..., Any], error: Callable[[], Exception], at: int):
        self._function, self._error, self._at = function, error, at
        self._lock = Lock()
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        with self._lock:
            self.calls += 1
            fails = self.calls == self._at
        if fails:
            raise self._error()
        return self._function(*arguments)

    def method(self) -> Callable[..., Any]:
        return lambda *arguments: self(*arguments)


def full() -> Exception:
    return OSError(errno.ENOSPC, "No space left on device")


def away() -> Exception:
    return StoreUnavailableError("the store does not answer")


@pytest.mark.parametrize(
    ("owner", "name", "error"), [(os, "fsync", full), (Folder, "read", away), (Folder, "create", away)]
)
def test_a_fault_at_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Callable[[], Exception]
) -> None:
    config = write_dataset(tmp_path, 300)
    right, original = digests(build(config, tmp_path / "right")), getattr(owner, name)

    def attempt(store: Path, at: int) -> tuple[bool, int]:
        fault = Fault(original, error, at)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault.method())
            try:
                assert digests(build(config, store)) == right
            except StoreError as failed:
                assert at and len(str(failed).splitlines()) == 1
                return True, fault.calls
        return False, fault.calls

    failed, (_, calls) = 0, attempt(tmp_path / "counted", 0)
    assert calls > FEW
    places = range(1, calls + 1) if SOAK else sorted({1, calls, *random.Random(name).sample(range(1, calls), FEW - 2)})
    for at in places:
        store = tmp_path / f"store{at}"
        failed += attempt(store, at)[0]
        if (store / "FORMAT").exists():
            assert not verify(ArtifactStore(store), None, ComputeEngine(2), remove=False).findings
        assert digests(build(config, store)) == right, at
    assert failed > 0.8 * len(places)
