"""The interface of blobs: folders and buckets behave the same."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from support.object_service import ObjectService, object_service
from support.soak import machine
from tokenloom.errors import DatasetNotFoundError
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.artifact_store import open_blobs
from tokenloom.resources.store.blobs.blobs import Blobs, ReadOnly

CONTENTS = [b"", b"a", b"\x00\xff" * 5000, "été 🌊".encode()]
NAMES = ["small", "été 🌊", "a b", "a%20b", "a+b&c=d", "a?b#c", "a:b@c", "...", "川.json", "x" * 100]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@pytest.fixture(params=["folder", pytest.param("bucket", marks=machine("bucket"))])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Empty blobs."""
    return str(tmp_path / "store") if request.param == "folder" else request.getfixturevalue("service").address()


@pytest.fixture
def blobs(address: str) -> Blobs:
    return open_blobs(address)


def object_name(data: bytes) -> str:
    digest = blake3(data).hexdigest()
    return f"objects/{digest[:2]}/{digest}.arrow"


@pytest.mark.parametrize("data", CONTENTS)
def test_a_written_blob_is_read_back(blobs: Blobs, data: bytes) -> None:
    for name in ("FORMAT", "deep/er/name.json", "tokenizers/ab/tokenizer.json"):
        for content in (b"before", data):
            blobs.write(name, memoryview(content))
            assert (blobs.read(name), blobs.size(name)) == (content, len(content))
            assert blobs.local(name).read_bytes() == content
    assert pickle.loads(pickle.dumps(blobs)).read("FORMAT") == data
    assert open_blobs(blobs.address).read("FORMAT") == data


def test_a_missing_blob_is_reported(blobs: Blobs) -> None:
    blobs.write("a/b", b"")
    for name in ("FORMAT", "a/bb", "b/b", object_name(b"none")):
        for look in (blobs.read, blobs.local):
            with pytest.raises(FileNotFoundError):
                look(name)
        assert blobs.size(name) is None
    for name in ("FORMAT", "a/bb", object_name(b"none")):
        blobs.delete(name)
        blobs.touch(name)
        blobs.fetch([name])
    assert [blob.name for prefix in ("FORMAT", "none", "a") for blob in blobs.below(prefix)] == ["a/b"]


def test_read_only_blobs_are_downloaded_ahead(service: ObjectService) -> None:
    address, contents = service.address(), [b"ahead", b"also ahead"]
    for content in contents:
        service.put(address, object_name(content), content)
    blobs = ReadOnly(open_blobs(address))
    blobs.fetch(map(object_name, contents))
    assert blobs.cache is not None
    copies = [blobs.cache.find(blake3(content).hexdigest()) for content in contents]
    assert [copy and copy.read_bytes() for copy in copies] == contents


@settings(max_examples=10)
@given(
    st.sets(
        st.lists(st.sampled_from(["a", "a-", "a.b", "ab", "b", "é", "Z", "a b"]), min_size=1, max_size=3).map(tuple)
    )
)
def test_blobs_below_a_prefix_are_listed_in_order(
    service: ObjectService, tmp_path_factory: pytest.TempPathFactory, names: set
) -> None:
    paths = {"/".join(name) for name in names}
    files = sorted(name for name in paths if not any(other.startswith(f"{name}/") for other in paths))
    for blobs in map(open_blobs, (service.address(), tmp_path_factory.mktemp("store"))):
        for name in [*files[::2], *files[1::2]]:
            blobs.write(f"top/{name}", name.encode())
        blobs.write("topmost", b"")
        found = [(blob.name, blob.size) for blob in blobs.below("top")]
        assert found == [(f"top/{name}", len(name.encode())) for name in files]
        assert [blob.name for blob in blobs.below("top/a")] == [f"top/{name}" for name in files if name[:2] == "a/"]


def test_a_listing_has_all_pages(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    names = [f"a/{number:02}" for number in range(10)]
    for name in names:
        blobs.write(name, name.encode())
    assert [blob.name for blob in blobs.below("a")] == names


def test_deleting_a_blob_keeps_its_neighbours(blobs: Blobs) -> None:
    kept = object_name(b"kept")
    for name, content in ((kept, b"kept"), ("a/b", b"1"), ("a/bc", b"2")):
        blobs.create(name, content)
        blobs.local(name)
    for name in ("a/b", kept):
        blobs.delete(name)
        assert blobs.size(name) is None
        with pytest.raises(FileNotFoundError):
            blobs.local(name)
    assert [blob.name for blob in blobs.below("a")] == ["a/bc"]


def test_touching_changes_only_the_time(blobs: Blobs) -> None:
    blobs.write("a/b", b"content")
    before = next(iter(blobs.below("a"))).modified
    assert abs(before - time.time()) < 100
    for _ in range(300):
        blobs.touch("a/b")
        if next(iter(blobs.below("a"))).modified > before:
            break
        time.sleep(0.02)
    else:
        raise AssertionError("its time did not change")
    assert blobs.read("a/b") == b"content"


@pytest.mark.parametrize("damage", [None, b"", b"content", b"Xontent!", b"longer than that"])
def test_create_writes_a_missing_or_damaged_blob(blobs: Blobs, damage: bytes | None) -> None:
    name = object_name(b"content!")
    if damage is not None:
        blobs.write(name, damage)
    for _ in range(2):
        blobs.create(name, memoryview(b"content!"))
        assert blobs.read(name) == blobs.local(name).read_bytes() == b"content!"


def test_readers_never_see_a_mix_of_two_writes(address: str) -> None:
    contents = {bytes([letter]) * size for letter, size in ((65, 1), (66, 70_000), (67, 300_000))}
    blobs, stop, seen = open_blobs(address), threading.Event(), set()
    blobs.write("a", min(contents))

    def write(content: bytes) -> None:
        while not stop.is_set():
            blobs.write("a", content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    try:
        for _ in range(60):
            seen.add(blobs.read("a"))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert seen <= contents


def test_threads_create_the_same_blobs_at_once(address: str) -> None:
    contents = [random.randbytes(1000 * number) for number in range(6)]
    blobs = open_blobs(address)

    def make() -> None:
        for content in contents:
            blobs.create(object_name(content), content)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(blob.name for blob in blobs.below("objects")) == sorted(map(object_name, contents))
    assert all(blobs.read(object_name(content)) == content for content in contents)


def test_datasets_can_have_any_name(address: str) -> None:
    store = ArtifactStore(address)
    for name in NAMES:
        store.put_manifest(Manifest(name, "sequences", (), {"of": name}))
    opened = ArtifactStore(address)
    assert opened.datasets() == sorted(NAMES)
    assert all(opened.manifest(name, "sequences").facts == {"of": name} for name in NAMES)
    for name in ("..", ".", "", "a/b", "a\\b"):
        with pytest.raises(DatasetNotFoundError):
            opened.manifest(name, "raw")
