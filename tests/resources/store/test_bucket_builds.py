"""Builds in a bucket: few requests, and nothing that they use is removed by `gc` meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from support.builds import build, digests
from support.datasets_on_disk import STAGES, rows
from support.garbage import states
from support.object_service import ObjectService, object_service
from support.soak import machine
from tokenloom import open_dataset
from tokenloom.resources.store import ArtifactStore, known_files
from tokenloom.resources.store.actions import ActionStore, CertificateStore
from tokenloom.resources.store.blobs.blobs import renew
from tokenloom.resources.store.blobs.bucket import Bucket
from tokenloom.resources.store.bucket_build import BucketBuild, marked_build, marked_collection, running_builds
from tokenloom.resources.store.gc import BUCKET_AGE, collect
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.store.verify import verify

pytestmark = machine("bucket")

DAY = 24 * 3600.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@pytest.fixture
def service(shared: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectService:
    """The service without faults, with an empty cache. A file counts as settled as soon as it is written."""
    shared.proxy.plan()
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0.0)
    return shared


def named(store: str) -> set[str]:
    """Names of the objects and actions that the latest manifests of the dataset name."""
    opened, found = ArtifactStore(store), set[str]()
    for stage in STAGES:
        for chunk in opened.manifest("small", stage).chunks:
            found |= {ActionStore.blob(chunk.key), *map(ObjectStore.blob, (chunk.output, *chunk.beside))}
    return found


def read_all(store: str) -> list[list[int]]:
    shutil.rmtree(os.environ["TOKENLOOM_CACHE"], ignore_errors=True)
    dataset = open_dataset("small", store=store)
    return [dataset[row]["input_ids"].tolist() for row in range(len(dataset))]


@contextmanager
def done_once(action: Callable[[], object]) -> Iterator[Callable[[Any], None]]:
    """A callback that calls `action` the first time."""
    waiting = [action]

    def call(_: Any) -> None:
        if waiting:
            waiting.pop()()

    yield call
    assert not waiting


@pytest.mark.parametrize("count", [300, 900])
def test_requests_of_an_unchanged_build_do_not_grow_with_its_chunks(
    service: ObjectService, tmp_path: Path, tokenizer_folder: Path, count: int
) -> None:
    address, (config,) = service.address(), states(tmp_path, tokenizer_folder, 1, rows=count)
    cold = build(config, address)
    service.proxy.plan()
    warm = build(config, address)
    assert digests(warm) == digests(cold)
    assert all(report.chunks_reused == report.chunks for report in warm.values())
    assert len(service.proxy.requests) <= 20, service.proxy.requests
    assert sum(report.chunks for report in warm.values()) >= count // 20


def test_a_build_without_earlier_results_does_not_ask_for_any(
    service: ObjectService, tmp_path: Path, tokenizer_folder: Path
) -> None:
    address, (config,) = service.address(), states(tmp_path, tokenizer_folder, 1, rows=600)
    build(config, address)
    asked = [request for request in service.proxy.requests if request.startswith(("GET", "HEAD"))]
    assert not [request for request in asked if "/objects/" in request or "/actions/" in request]


def test_a_changed_build_asks_nothing_about_unchanged_chunks(
    service: ObjectService, tmp_path: Path, tokenizer_folder: Path
) -> None:
    address, (config,) = service.address(), states(tmp_path, tokenizer_folder, 1, rows=600)
    build(config, address)
    before = named(address)
    with (config.parent / "small.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(rows(601)[-1], ensure_ascii=False) + "\n")
    service.proxy.plan()
    changed = build(config, address)
    unchanged = {name for name in before & named(address) if name.startswith("actions/")}
    assert len(unchanged) > len(STAGES)
    assert not [request for request in service.proxy.requests if any(name in request for name in unchanged)]
    assert digests(changed) == digests(build(config, str(tmp_path / "store")))


@pytest.mark.parametrize(("count", "page"), [(0, 3), (1, 3), (3, 3), (40, 3), (150, 7)])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 1.0])
def test_blobs_are_found_with_the_fewest_requests(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch, count: int, page: int, fraction: float
) -> None:
    draw = random.Random(count)
    names = [ObjectStore.blob(blake3(draw.randbytes(8)).hexdigest()) for _ in range(2 * count)]
    stored, wanted = names[:count], draw.sample(names, round(fraction * len(names)))
    address = service.address()
    for name in stored:
        service.put(address, name, name.encode())
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(page))
    found = Bucket(address).found(wanted)
    assert {name: blob.size for name, blob in found.items()} == {
        name: len(name.encode()) for name in wanted if name in stored
    }
    assert len(service.proxy.requests) <= 1 + min(2 * len(wanted), 2 * (count // page + 1)) + 16 * (count > page)


def test_a_listing_that_takes_too_many_requests_is_not_made(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = service.address()
    for number in range(200):
        service.put(address, ObjectStore.blob(blake3(bytes([number])).hexdigest()), b"")
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "5")
    assert Bucket(address).all_below("objects", 5) is None
    assert len(service.proxy.requests) == 1
    assert len(Bucket(address).all_below("objects", 200) or ()) == 200


@pytest.mark.parametrize("kinds", [["501"], ["503"], []])
def test_blobs_are_deleted_in_bulk(service: ObjectService, kinds: list[str]) -> None:
    address = service.address()
    for number in range(30):
        service.put(address, f"a/{number}", b"")
    service.proxy.plan(fraction=1.0 if kinds else 0.0, kinds=kinds, in_a_row=1, method="POST")
    Bucket(address).delete_all([f"a/{number}" for number in range(1, 40)])
    assert [*service.contents(address)] == ["a/0"]
    if not kinds:
        assert len(service.proxy.requests) == 1


def test_blobs_are_written_at_the_same_time(service: ObjectService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.proxy, "delay", 0.3)
    contents = {ObjectStore.blob(blake3(bytes([number])).hexdigest()): bytes([number]) for number in range(6)}
    address = service.address()
    Bucket(address).create_all(contents)
    assert service.contents(address) == contents
    assert service.proxy.most_at_once > 1


def test_gc_keeps_what_a_running_build_reuses(service: ObjectService, tmp_path: Path, tokenizer_folder: Path) -> None:
    """Another build publishes other results, and `gc` no longer keeps those that the running build found."""
    address, (first, second) = service.address(), states(tmp_path, tokenizer_folder, 2)
    build(first, address)
    service.age(address, 3 * DAY)

    def overtake() -> None:
        build(second, address)
        service.age(address, BUCKET_AGE.total_seconds() + 1)
        other = ArtifactStore(address)
        other.versions.put(other.versions.blobs("small")[-1].name, other.versions.of("small")[-1])
        collect(other, keep=1, older_than=BUCKET_AGE, delete=True)

    expected = build(first, str(tmp_path / "store"))
    with done_once(overtake) as on_progress:
        found = build(first, address, on_progress=on_progress)
    assert digests(found) == digests(expected)
    assert named(address) <= set(service.contents(address))
    assert verify(ArtifactStore(address)).findings == []
    assert read_all(address) == read_all(str(tmp_path / "store"))


def test_gc_removes_what_no_mark_names(service: ObjectService, tmp_path: Path, tokenizer_folder: Path) -> None:
    address, (first, second) = service.address(), states(tmp_path, tokenizer_folder, 2, rows=600)
    build(first, address)
    old = named(address)
    build(second, address)
    kept = named(address)
    service.age(address, 3 * DAY)
    service.proxy.plan()
    collect(ArtifactStore(address), keep=1, older_than=BUCKET_AGE, delete=True)
    deletes = [request for request in service.proxy.requests if request.startswith(("DELETE", "POST"))]
    assert len(old - kept) > 20 and not (old - kept) & set(service.contents(address))
    assert kept <= set(service.contents(address))
    assert len(deletes) <= 8
    assert verify(ArtifactStore(address)).findings == []


def test_a_build_that_starts_while_gc_runs_touches_what_it_reuses(
    service: ObjectService, tmp_path: Path, tokenizer_folder: Path
) -> None:
    """`gc` has read which manifests are the latest, then a build publishes an earlier state again."""
    address, (first, second) = service.address(), states(tmp_path, tokenizer_folder, 2)
    build(first, address)
    build(second, address)
    service.age(address, 3 * DAY)

    def publish(step: str) -> None:
        if step == "listing actions":
            build(first, address)

    collect(ArtifactStore(address), keep=1, older_than=BUCKET_AGE, delete=True, on_step=publish)
    assert named(address) <= set(service.contents(address))
    assert verify(ArtifactStore(address), "small").findings == []


def test_a_build_that_gc_has_not_seen_reuses_nothing_without_touching_it(
    service: ObjectService, tmp_path: Path, tokenizer_folder: Path
) -> None:
    """The build reads manifests, `gc` reads marks, other results are published, then the build marks itself."""
    address, (first, second) = service.address(), states(tmp_path, tokenizer_folder, 2)
    build(first, address)
    service.age(address, 3 * DAY)
    blobs = Bucket(address)
    objects, certificates = ObjectStore(blobs), CertificateStore(blobs)
    early, late = (BucketBuild(blobs, objects, [f"datasets/small/{stage}.json" for stage in STAGES]) for _ in range(2))

    def known(build: BucketBuild) -> list[str]:
        """Return the stages whose first chunk in a manifest of the build is known to be stored."""
        firsts = {one.stage: one.chunks[0] for one in build.manifests.values()}
        return [
            stage for stage, first in firsts.items() if first.action and build.is_stored(first.key, first.action, False)
        ]

    with early.running(certificates):
        assert {*STAGES} <= {*known(early)}
    steps = []

    def overtake(step: str) -> None:
        steps.append(step)
        if step == "reading manifests":
            build(second, address)
        if step == "listing actions":
            with late.running(certificates):
                assert known(late) == []
                old = [blob for blob in blobs.below("actions") if blob.modified < time.time() - DAY]
                touched = [renew(blobs, blob.name) for blob in old]
                assert old and all(blob and blob.modified > time.time() - DAY for blob in touched)

    collect(ArtifactStore(address), keep=1, older_than=BUCKET_AGE, delete=True, on_step=overtake)
    assert len(steps) > 2


def test_marks_end_with_their_build_or_after_a_day(service: ObjectService) -> None:
    address, manifest = service.address(), blake3(b"").hexdigest()
    blobs = Bucket(address)
    with marked_build(blobs, [manifest]) as collecting:
        assert not collecting
        assert [mark.manifests for mark in running_builds(blobs)] == [(manifest,)]
    assert service.contents(address) == {}
    with marked_collection(blobs), marked_build(blobs, ()) as collecting:
        assert collecting and running_builds(blobs)
        service.age(address, DAY + 60)  # as if both had been killed
        assert running_builds(blobs) == []
        assert service.contents(address) == {}


def test_a_mark_is_written_again(service: ObjectService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.resources.store.bucket_build.REPEAT_SECONDS", 0.05)
    blobs = Bucket(service.address())
    with marked_build(blobs, ()):
        service.age(blobs.address, 2 * DAY)
        while not any(blob.modified > 0 and blob.modified + DAY > _now(blobs) for blob in blobs.below("scratch")):
            pass
        assert len(running_builds(blobs)) == 1


def _now(blobs: Bucket) -> float:
    blobs.write("now", b"")
    return next(blob.modified for blob in blobs.below("") if blob.name == "now")


def test_a_damaged_known_object_is_written_again(
    service: ObjectService, tmp_path: Path, tokenizer_folder: Path
) -> None:
    address, (config,) = service.address(), states(tmp_path, tokenizer_folder, 1)
    build(config, address)
    chunk = ArtifactStore(address).manifest("small", "columns").chunks[0]
    for name, data in ((ObjectStore.blob(chunk.output), b"X"), (ActionStore.blob(chunk.key), None)):
        if data is None:
            Bucket(address).delete(name)
        else:
            service.put(address, name, data)
    reports = build(config, address)
    assert (reports["columns"].chunks - reports["columns"].chunks_reused) == 1
    assert verify(ArtifactStore(address)).findings == []


def test_credentials_of_a_profile_are_used(
    service: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "tokens")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[tokens]\naws_access_key_id = a\naws_secret_access_key = b\n")
    address = service.address()
    Bucket(address).write("a", b"content")
    assert service.contents(address) == {"a": b"content"}


def test_an_age_for_gc_is_refused_before_anything_is_written(service: ObjectService) -> None:
    address = service.address()
    service.put(address, "FORMAT", b"tokenloom store 3\n")
    with pytest.raises(Exception, match="at least 12h"):
        collect(ArtifactStore(address), older_than=timedelta(hours=1), delete=True)
    assert [*service.contents(address)] == ["FORMAT"]
