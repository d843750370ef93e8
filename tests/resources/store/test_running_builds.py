"""`gc` of any age keeps what a running build wrote or found, frees the rest, and forgets a build that was killed."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from support.builds import SMALL, build, digests
from support.garbage import NOW, gc, states
from support.masked_platform import needs_file_locks
from support.store_files import DAY, age, object_path, reachable, stems
from support.waiting import until
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.file_lock import lock_exclusive
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.blobs.blobs import renew
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.store.verify import verify

pytestmark = needs_file_locks


def build_with_gc(config: Path, store: Path, of: str = "") -> tuple[dict[str, str], int]:
    """Build, and run `gc` after every chunk and stage, or those `of` one; returns the digests and the objects freed."""
    freed = 0

    def collect(stage: str) -> None:
        nonlocal freed
        if of in ("", stage):
            freed += len(gc(store, keep=1).objects)

    running = Build(
        PipelineConfig.from_file(config),
        ArtifactStore(store),
        ComputeEngine(2),
        chunk_size=SMALL,
        on_progress=lambda progress: collect(progress.stage),
    )
    found = {}
    for report in running.run_all():
        found[report.name] = report.digest
        collect(report.name)
    return found, freed


@pytest.mark.parametrize(("days", "announced"), [(0.0, False), (0.1, True), (3.0, False), (3.0, True)])
def test_a_running_build_keeps_what_it_wrote_and_found(
    tmp_path: Path, tokenizer_folder: Path, days: float, announced: bool
) -> None:
    store = tmp_path / "store"
    first, second, third = states(tmp_path, tokenizer_folder, 3)
    expected = [digests(build(config, store)) for config in (first, second)]
    expected.append(digests(build(third, tmp_path / "clean")))
    if announced:
        gc(store, keep=3)
    if days:
        age(store, days)
    assert build_with_gc(first, store, of="prompts")[0] == expected[0]  # found what the first gc would remove
    assert verify(ArtifactStore(store)).findings == []
    assert build_with_gc(third, store)[0] == expected[2]  # new results
    assert build_with_gc(second, store)[0] == expected[1]
    assert verify(ArtifactStore(store)).findings == []


class CollectingStore(ArtifactStore):
    """A store in which another process collects garbage just before the manifest of `prompts` is written."""

    def put_manifest(self, manifest: Manifest, declared_by: str | None = None) -> str:
        if manifest.stage == "prompts":
            gc(Path(self.address), keep=1)
            assert all(self.objects.size(chunk.output) for chunk in manifest.chunks)
        return super().put_manifest(manifest, declared_by)


def test_gc_keeps_what_a_build_found_until_it_is_published(tmp_path: Path, tokenizer_folder: Path) -> None:
    """The blobs are too young for a build to touch them, had no collection been announced."""
    store = tmp_path / "store"
    first, second = states(tmp_path, tokenizer_folder, 2)
    expected = [digests(build(config, store)) for config in (first, second)]
    gc(store, keep=2)
    age(store, 0.1)
    running = Build(PipelineConfig.from_file(first), CollectingStore(store), ComputeEngine(2), chunk_size=SMALL)
    reports = {report.name: report for report in running.run_all()}
    assert digests(reports) == expected[0]
    assert verify(ArtifactStore(store)).findings == []


def test_gc_frees_the_rest_while_a_build_runs(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    first, second = states(tmp_path, tokenizer_folder, 2)
    build(first, store)
    old = stems(store, "objects")
    build(second, store)
    garbage = old - reachable(store, keep=1)[0]
    gc(store, keep=3)
    found, freed = build_with_gc(second, store)
    assert freed == len(garbage) > 0
    assert not garbage & stems(store, "objects")
    assert digests(build(second, store)) == found


def test_a_build_whose_mark_is_refused_runs_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the mark is written, but cannot be given its name."""

    def refused(path: Path, target: Path) -> Path:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    store = ArtifactStore(tmp_path / "store")
    monkeypatch.setattr(Path, "rename", refused)
    with store.building():
        assert not [*(tmp_path / "store").glob("scratch/*.build")]
        store.blobs.create("a/b", b"content")
    assert store.blobs.read("a/b") == b"content"


def test_a_killed_build_keeps_nothing(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    (config,) = states(tmp_path, tokenizer_folder, 1)
    build(config, store)
    if not (child := os.fork()):
        with ArtifactStore(store).building():
            (tmp_path / "ready").touch()
            signal.pause()
    until((tmp_path / "ready").exists)
    opened = ArtifactStore(store)
    stray = opened.objects.put(opened.objects.mapped(opened.manifest_digest("small")).slice(8))
    os.kill(child, signal.SIGSTOP)
    gc(store, keep=1)
    assert stray in stems(store, "objects")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    gc(store, keep=1)
    assert stray not in stems(store, "objects")


def test_the_mark_of_a_build_of_several_days_is_kept(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    first, second = states(tmp_path, tokenizer_folder, 2)
    build(first, store)
    old = stems(store, "objects")
    with ArtifactStore(store).building():
        age(store, 3.0)
        build(second, store)  # deletes what was left half-written days ago
        past = time.time() - 2 * DAY
        for digest in old:
            os.utime(object_path(store, digest), (past, past))
        gc(store, keep=1, older_than=timedelta(days=1))
        assert stems(store, "objects") >= old
    gc(store, keep=1, older_than=NOW)
    assert not stems(store, "objects") >= old


@pytest.mark.parametrize("removed", [False, True])
def test_a_build_waits_while_gc_decides_on_a_blob(tmp_path: Path, tokenizer_folder: Path, removed: bool) -> None:
    """`gc`, stopped between looking at a blob and removing it, does not remove what a build has found since."""
    store = tmp_path / "store"
    (config,) = states(tmp_path, tokenizer_folder, 1)
    build(config, store)
    blobs, digest = ArtifactStore(store).blobs, next(iter(stems(store, "objects")))
    age(store)
    found: list[object] = []
    renewing = threading.Thread(target=lambda: found.append(renew(blobs, ObjectStore.blob(digest))))
    with lock_exclusive(object_path(store, digest)) as free:
        assert free
        renewing.start()
        renewing.join(0.2)
        assert renewing.is_alive()
        assert object_path(store, digest).stat().st_mtime < time.time() - DAY
        if removed:
            object_path(store, digest).unlink()
    renewing.join()
    assert (found == [None]) == removed
