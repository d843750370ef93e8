"""A store that fails at any one call, or from there on: the build is right, or ends with one clear error, what it
published is complete, and the next build is right."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from blake3 import blake3

from support.builds import build, digests, frozen_tokenizer
from support.datasets_on_disk import STAGES, write_dataset
from support.soak import SOAK, machine
from tokenloom.assets.building import build as building
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.explain import explain, outdated, trained_tokenizer
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreUnavailableError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.store.verify import verify

FEW = 5
FAULTS = [(os, "fsync"), *((Folder, name) for name in ("read", "create", "stat", "write", "local"))]
CASES = [(*fault, lasting) for lasting in (False, True) for fault in FAULTS]
QUICK = [*CASES[:3], CASES[len(FAULTS)]]


class Fault:
    """Wraps a function so that its call number `at` raises, with `lasting` also all later ones; counts the calls of all
    threads."""

    def __init__(self, function: Callable[..., Any], error: Callable[[], Exception], at: int, lasting: bool):
        self._function, self._error, self._at, self._lasting = function, error, at, lasting
        self._lock = Lock()
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        with self._lock:
            self.calls += 1
            fails = self.calls == self._at or (self._lasting and 0 < self._at < self.calls)
        if fails:
            raise self._error()
        return self._function(*arguments)

    def method(self) -> Callable[..., Any]:
        return lambda *arguments: self(*arguments)


def full() -> Exception:
    return OSError(errno.ENOSPC, "No space left on device")


def away() -> Exception:
    return StoreUnavailableError("the store does not answer")


def incomplete(store: ArtifactStore) -> list[str]:
    """Return the objects of published manifests that are missing or damaged."""
    wrong = []
    for name, stage in ((name, stage) for name in store.datasets() for stage in STAGES if store.latest(name, stage)):
        for chunk in store.manifest(name, stage).chunks:
            for digest in filter(None, (chunk.output, chunk.rejects, chunk.lengths)):
                path = store.objects.path(digest)
                wrong += [stage] if blake3(path.read_bytes()).hexdigest() != digest else []
    return wrong


@machine("kills")
@pytest.mark.parametrize(("owner", "name", "lasting"), CASES if SOAK else QUICK)
def test_a_fault_at_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, lasting: bool
) -> None:
    monkeypatch.setattr(building, "LARGE_BYTES", 0)  # a thread prepares later stages, as in large builds
    changes: dict[str, Any] = {"dataset": {"name": "small.jsonl", "keep_columns": ["output"]}}
    if lasting:
        changes["tokenizer"] = frozen_tokenizer(tmp_path)
    config = write_dataset(tmp_path, 300, **changes)
    right, original = digests(build(config, tmp_path / "right")), getattr(owner, name)

    def attempt(store: Path, at: int) -> tuple[bool, int]:
        fault = Fault(original, full if owner is os else away, at, lasting)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault.method())
            try:
                assert digests(build(config, store)) == right
            except StoreUnavailableError as failed:
                assert at and len(str(failed).splitlines()) == 1
                assert owner is not os or "free space there" in str(failed)
                return True, fault.calls
        return False, fault.calls

    failed, (_, calls) = 0, attempt(tmp_path / "counted", 0)
    assert calls > FEW
    places = range(1, calls + 1) if SOAK else sorted({1, calls, *random.Random(name).sample(range(1, calls), FEW - 2)})
    for at in places:
        store = tmp_path / f"store{at}"
        failed += attempt(store, at)[0]
        if (store / "FORMAT").exists():
            opened = ArtifactStore(store)
            assert not incomplete(opened), at
            assert not verify(opened, None, ComputeEngine(2), remove=False).findings, at
        assert digests(build(config, store)) == right, at
    assert failed > 0.5 * len(places)  # threads make the number of calls vary, and some reads are optional


def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions about the last build fail too, whichever of their first four reads does."""
    config, store = write_dataset(tmp_path, 20), tmp_path / "store"
    build(config, store)
    questions: list[Callable[[Build], object]] = [explain, trained_tokenizer, lambda build: outdated(build, 1)]
    answers: list[object] = []
    for ask in questions:
        for at in range(1, 5):
            asked = Build(PipelineConfig.from_file(config), ArtifactStore(store))
            with monkeypatch.context() as patch, suppress(StoreUnavailableError):
                patch.setattr(Folder, "read", Fault(Folder.read, away, at, lasting=False).method())
                answers.append(ask(asked))
    assert not answers
