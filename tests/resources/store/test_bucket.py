"""Stores in a bucket: the same bytes as in a folder under network faults, and clear errors if it is unavailable."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch.utils.data import DataLoader

from support.builds import build
from support.datasets_on_disk import STAGES, write_dataset
from support.fault_proxy import PASSING
from support.object_service import BUCKET, SECRET, ObjectService, object_service
from support.soak import SOAK, machine, smoke
from tokenloom import DataPipeline, open_dataset
from tokenloom.cli import main
from tokenloom.errors import StoreAddressError, StoreError, StoreUnavailableError
from tokenloom.loaders import TokenDataset, TokenLoader
from tokenloom.resources.store import ArtifactStore, known_files
from tokenloom.resources.store.blobs import bucket as requests
from tokenloom.resources.store.blobs.blobs import object_digest
from tokenloom.resources.store.blobs.bucket import Bucket
from tokenloom.resources.store.blobs.folder import Folder

pytestmark = machine("bucket")

FAULTS = 200 if SOAK else 30
REQUESTS = 20
"""Maximum number of requests of a build that changes nothing, besides one for each stage."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@pytest.fixture
def service(shared: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectService:
    """The service without faults, with an empty cache."""
    shared.proxy.plan()
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    return shared


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset. Every build records its file in `files/`, no matter how recently the file was written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_files, "SETTLED_SECONDS", 0.0)
        yield write_dataset(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def folder(config: Path) -> Path:
    """A store in a folder with the dataset built."""
    build(config, str(config.parent / "store"))
    return config.parent / "store"


def digests(store: str) -> dict[str, str]:
    opened = ArtifactStore(store)
    return {stage: opened.manifest("small", stage).digest for stage in STAGES}


def rows(dataset: TokenDataset) -> list[dict[str, list[Any]]]:
    return [{name: value.tolist() for name, value in dataset[row].items()} for row in range(len(dataset))]


def assert_intact(contents: dict[str, bytes]) -> None:
    """Check that every object matches its digest, and that all other blobs are readable."""
    for name, content in contents.items():
        if digest := object_digest(name):
            assert blake3(content).hexdigest() == digest, name
        else:
            assert not name.startswith("objects/")
            assert content if name == "FORMAT" else json.loads(content), name


def empty_cache() -> None:
    shutil.rmtree(os.environ["TOKENLOOM_CACHE"], ignore_errors=True)


@smoke
def test_a_build_in_a_bucket_equals_one_in_a_folder(service: ObjectService, config: Path, folder: Path) -> None:
    address = service.address()
    build(config, address)
    stored = service.contents(address)
    assert_intact(stored)
    assert digests(address) == digests(str(folder))
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}

    def lasting(names: Any) -> list[str]:
        return sorted(name for name in names if not name.startswith(("versions/", "scratch/")))

    assert any(name.startswith("files/") for name in stored)
    assert lasting(stored) == lasting(files)
    assert all(stored[name] == files[name].read_bytes() for name in lasting(stored))
    empty_cache()
    dataset, expected = open_dataset("small", store=address), open_dataset("small", store=folder)
    assert rows(dataset) == rows(expected)
    batches = [
        list(TokenLoader(one, batch_size=16, num_workers=workers)) for one, workers in ((dataset, 2), (expected, 0))
    ]
    for one, other in zip(*batches, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert Path(dataset.tokenizer_path, name).read_bytes() == Path(expected.tokenizer_path, name).read_bytes()


def test_a_copied_store_opens_and_has_cache_hits(service: ObjectService, config: Path, folder: Path) -> None:
    address = service.address()
    service.copy(folder, address)
    assert rows(open_dataset("small", store=address)) == rows(open_dataset("small", store=folder))
    assert all(report.chunks_reused == report.chunks for report in build(config, address).values())


def test_an_unchanged_build_makes_few_requests(service: ObjectService, config: Path) -> None:
    address = service.address()
    cold = build(config, address)
    assert not any(request.startswith("GET") and "/objects/" in request for request in service.proxy.requests)
    service.proxy.plan()
    warm = build(config, address)
    assert {name: report.digest for name, report in warm.items()} == {
        name: report.digest for name, report in cold.items()
    }
    assert all(report.chunks_reused == report.chunks for report in warm.values())
    assert len(service.proxy.requests) <= REQUESTS + len(STAGES), Counter(service.proxy.requests)


def test_network_faults_and_another_writer_change_no_byte_and_leave_nothing_half_written(
    service: ObjectService, config: Path, folder: Path, record_property: Any
) -> None:
    expected, total, looks, seed = digests(str(folder)), Counter[str](), 0, 0
    while total.total() < FAULTS or set(total) != set(PASSING):
        address = service.address()
        service.proxy.plan(seed, 0.25)

        def look(progress: Any, address: str = address) -> None:
            nonlocal looks
            looks += 1
            assert_intact(service.contents(address))

        with ThreadPoolExecutor(2) as writers:
            for done in [writers.submit(build, config, address, on_progress=each) for each in (look, None)]:
                done.result()
        assert digests(address) == expected
        empty_cache()
        assert len(rows(open_dataset("small", store=address))) == 300
        total += service.proxy.injected
        assert_intact(service.contents(address))
        seed += 1
    record_property("faults", dict(total))
    record_property("looks", looks)


def test_a_truncated_response_is_detected(service: ObjectService) -> None:
    blobs, content = Bucket(service.address()), random.randbytes(300_000)
    blobs.write("a", content)
    service.proxy.plan(fraction=1, kinds=["cut answer"])
    assert blobs.read("a") == content
    assert service.proxy.injected["cut answer"] == 3


def test_a_write_whose_response_is_lost_happens_once(service: ObjectService) -> None:
    address, content = service.address(), random.randbytes(1000)
    digest = blake3(content).hexdigest()
    service.proxy.plan(fraction=1, kinds=["lost answer", "late 500"], in_a_row=2)
    Bucket(address).create(f"objects/{digest[:2]}/{digest}.arrow", content)
    assert service.contents(address) == {f"objects/{digest[:2]}/{digest}.arrow": content}


def test_a_service_without_conditional_writes_works(service: ObjectService) -> None:
    address, content = service.address(), b"content"
    digest = blake3(content).hexdigest()
    service.proxy.plan(fraction=1, kinds=["501"], in_a_row=1)
    Bucket(address).create(f"objects/{digest[:2]}/{digest}.arrow", content)
    assert service.contents(address) == {f"objects/{digest[:2]}/{digest}.arrow": content}


@pytest.mark.parametrize("kind", ["503", "500", "drop", "cut answer"])
def test_retries_end_with_an_error_of_one_sentence(service: ObjectService, kind: str) -> None:
    address = service.address()
    Bucket(address).write("a", b"content")
    service.proxy.plan(fraction=1, kinds=[kind], in_a_row=1000)
    with pytest.raises(StoreUnavailableError, match="try again") as raised:
        Bucket(address).read("a")
    assert_message(raised.value, address, "a: ")
    sent = len(service.proxy.requests)  # aiohttp itself retries once on a kept connection that was closed
    assert sent == requests.ATTEMPTS or (kind == "drop" and sent <= 2 * requests.ATTEMPTS)


def test_a_silent_connection_is_retried(service: ObjectService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "READ_SECONDS", 0.3)
    monkeypatch.setattr("support.fault_proxy.SLOW_SECONDS", 0.5)
    blobs, content = Bucket(service.address()), random.randbytes(1000)
    blobs.write("a", content)
    service.proxy.plan(fraction=1, kinds=["slow"], in_a_row=1)
    assert blobs.read("a") == content
    assert len(service.proxy.requests) == 2


def assert_message(error: Exception, *parts: str) -> None:
    """Check that a message is one sentence with these parts, without secrets."""
    assert len(str(error).splitlines()) == 1 and SECRET not in str(error)
    assert all(part in str(error) for part in parts), error
    assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)


def test_refused_credentials_are_reported_with_a_remedy(service: ObjectService) -> None:
    service.proxy.plan(fraction=1, kinds=["403"], in_a_row=1000)
    address = service.address()
    for ask in (
        lambda: ArtifactStore(address),
        lambda: Bucket(address).size("a"),
        lambda: Bucket(address).write("a", b""),
    ):
        with pytest.raises(StoreUnavailableError) as raised:
            ask()
        assert_message(raised.value, address, "403", "AWS_SECRET_ACCESS_KEY")
    assert len(service.proxy.requests) == 3


def test_a_missing_bucket_is_reported(service: ObjectService, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreUnavailableError) as raised:
        ArtifactStore("s3://nosuchbucket/store")
    assert_message(raised.value, "bucket 'nosuchbucket' does not exist")
    assert main(["build", str(config), "--store", "s3://nosuchbucket/store"]) == 1
    assert "bucket 'nosuchbucket' does not exist" in capsys.readouterr().err


def test_missing_credentials_are_reported(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreUnavailableError) as raised:
        ArtifactStore(service.address())
    assert_message(raised.value, "AWS_ACCESS_KEY_ID", "no credentials")


@pytest.mark.parametrize(
    "endpoint", [f"http://user:{SECRET}@127.0.0.1:1", f"no url {SECRET}", "http://nosuchhost.invalid"]
)
def test_a_wrong_endpoint_is_reported(service: ObjectService, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(StoreUnavailableError) as raised:
        ArtifactStore(service.address())
    assert_message(raised.value, "AWS_ENDPOINT_URL")


@pytest.mark.parametrize(
    "address",
    [
        f"s3://key:{SECRET}@bucket/store",
        f"s3://{SECRET}@bucket/store",
        f"s3://bucket/store?secret={SECRET}",
        f"s3://bucket/store#{SECRET}",
        f"s3://key:{SECRET}/bucket",
        f"gs://{SECRET}/store",
        f"https://user:{SECRET}@host/store",
        f"file:///{SECRET}",
        f"s3:/bucket/{SECRET}",
        "s3://",
        "s3:///store",
        "s3://bucket/a/../b",
        "s3://bucket//b",
        "s3://bucket/a\nb",
    ],
)
def test_unsupported_addresses_and_addresses_with_secrets_are_refused(address: str) -> None:
    with pytest.raises(StoreAddressError, match="s3://bucket/prefix") as raised:
        ArtifactStore(address)
    assert_message(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(("address", "shown"), [("s3://b1/", "s3://b1"), ("s3://b1/a b/é//", "s3://b1/a b/é")])
def test_the_address_opens_the_same_bucket_again(address: str, shown: str) -> None:
    assert Bucket(address).address == shown == Bucket(shown).address


def test_a_bucket_without_a_prefix_can_be_a_store(service: ObjectService, config: Path, folder: Path) -> None:
    service.client.create_bucket(Bucket="whole")
    build(config, "s3://whole")
    assert digests("s3://whole") == digests(str(folder))
    assert service.client.get_object(Bucket="whole", Key="FORMAT")["Body"].read().startswith(b"tokenloom store")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_open_their_own_connections(service: ObjectService, folder: Path, method: str) -> None:
    address = service.address()
    service.copy(folder, address)
    dataset = open_dataset("small", store=address)
    service.proxy.plan()
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=range(0, 300, 50),
        num_workers=1,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    found = [{name: value.tolist() for name, value in row.items()} for row in loader]
    assert found == rows(open_dataset("small", store=folder))[::50]
    assert sum("/objects/" in request for request in service.proxy.requests) >= 1
    assert "reader" not in vars(dataset)


def test_a_dataset_is_pickled_without_connections_or_secrets(service: ObjectService, folder: Path) -> None:
    address = service.address()
    service.copy(folder, address)
    dataset = open_dataset("small", store=address)
    expected = rows(dataset)
    data = pickle.dumps(dataset)
    assert SECRET.encode() not in data and service.proxy.url.encode() not in data
    empty_cache()
    assert rows(pickle.loads(data)) == expected


def test_cached_objects_are_read_without_the_service(
    service: ObjectService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = service.address()
    service.copy(folder, address)
    dataset = open_dataset("small", store=address)
    expected = rows(dataset)
    data = pickle.dumps(dataset)
    service.proxy.plan(fraction=1, kinds=["drop"], in_a_row=1000)
    assert rows(pickle.loads(data)) == expected
    assert not service.proxy.requests


def test_a_chunk_is_downloaded_when_it_is_first_read(service: ObjectService, folder: Path) -> None:
    address = service.address()
    service.copy(folder, address)
    dataset = open_dataset("small", store=address)
    chunks = [chunk.output for chunk in ArtifactStore(folder).manifest("small").of_split("train")]
    assert len(chunks) > 1
    service.proxy.plan()
    _ = dataset[0]
    assert [request.rpartition("/")[2] for request in service.proxy.requests] == [f"{chunks[0]}.arrow"]
    assert len(rows(dataset)) == 300
    assert sorted(request.rpartition("/")[2][:64] for request in service.proxy.requests) == sorted(chunks)
    _ = dataset[299]
    assert len(service.proxy.requests) == len(chunks)


def test_a_damaged_cached_file_is_downloaded_again(service: ObjectService, folder: Path) -> None:
    address = service.address()
    service.copy(folder, address)
    expected = rows(open_dataset("small", store=address))
    cached = sorted(Path(os.environ["TOKENLOOM_CACHE"]).glob("objects/*/*"))
    for path in cached:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)
    service.proxy.plan()
    assert rows(open_dataset("small", store=address)) == expected
    assert sum("/objects/" in request for request in service.proxy.requests) == len(cached)


def test_a_dataset_larger_than_the_cache_can_be_read(
    service: ObjectService, config: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE_SIZE", "20kB")
    address = service.address()
    build(config, address)
    assert rows(open_dataset("small", store=address)) == rows(open_dataset("small", store=folder))
    sizes = [path.stat().st_size for path in Path(os.environ["TOKENLOOM_CACHE"]).glob("objects/*/*")]
    assert sum(sizes) <= 20_000 or len(sizes) == 1


def test_a_damaged_object_in_the_bucket_is_reported_and_recomputed(
    service: ObjectService, config: Path, folder: Path
) -> None:
    address = service.address()
    service.copy(folder, address)
    chunk = ArtifactStore(address).manifest("small").chunks[0]
    name = ArtifactStore(address).objects.blob(chunk.output)
    service.put(address, name, b"X" * chunk.bytes)
    with pytest.raises(StoreError, match=f"{chunk.output}.* is damaged") as raised:
        rows(open_dataset("small", store=address))
    assert raised.value.exit_code == 4
    with pytest.raises(StoreError, match="build again"):
        ArtifactStore(address).objects.get_verified(chunk.output)
    build(config, address)
    assert rows(open_dataset("small", store=address)) == rows(open_dataset("small", store=folder))


def test_two_stores_share_only_objects_in_the_cache(service: ObjectService, folder: Path) -> None:
    one, two = service.address(), service.address()
    for address in (one, two):
        service.copy(folder, address)
    first = open_dataset("small", store=one)
    digest = Path(first.tokenizer_path).name
    service.put(two, f"tokenizers/{digest}/tokenizer.json", b"{}")
    expected = rows(first)
    service.proxy.plan()
    second = open_dataset("small", store=two)
    assert rows(second) == expected
    assert not any("/objects/" in request for request in service.proxy.requests)
    assert Path(second.tokenizer_path, "tokenizer.json").read_text() == "{}"
    assert Path(first.tokenizer_path, "tokenizer.json").read_text() != "{}"


def test_every_entry_point_accepts_the_address(
    service: ObjectService, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenloom.assets.dagster.names import StoreResource

    address = service.address()
    assert main(["build", str(config), "--store", address, "--json"]) == 0
    assert [stage["name"] for stage in json.loads(capsys.readouterr().out)["stages"]] == list(STAGES)
    monkeypatch.setenv("TOKENLOOM_STORE", address)
    assert main(["preview", str(config), "--row", "1"]) == 0
    assert len(open_dataset("small")) == 300
    assert StoreResource().open().address == StoreResource(root=address).open().address == address
    pipeline = DataPipeline.from_config(config).unwrap()
    assert next(iter(pipeline.get_dataloader().unwrap()))["input_ids"].shape == (8, 256)
    assert not isinstance(pipeline.store.blobs, Folder) and not Path("s3:").exists()
    assert len(pipeline.get_tokenizer().unwrap()) >= 300


def test_gc_refuses_an_age_that_does_not_protect_builds(
    service: ObjectService, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = service.address()
    service.copy(folder, address)
    before = service.contents(address)
    command = ["gc", "--keep", "1", "--store", address, "--older-than"]
    assert main([*command, "11h", "--delete"]) == 2
    assert "--older-than: must be at least 12h with --delete for a store in a bucket" in capsys.readouterr().err
    assert [main([*command, "0s"]), main([*command, "12h", "--delete"])] == [0, 0]
    assert service.contents(address) == before


def test_blob_names_are_the_same_in_buckets_and_folders(service: ObjectService) -> None:
    address = service.address()
    Bucket(address).write("datasets/a?versionId=b/raw.json", b"{}")
    assert (
        service.client.get_object(
            Bucket=BUCKET, Key=f"{address.removeprefix(f's3://{BUCKET}/')}/datasets/a?versionId=b/raw.json"
        )["Body"].read()
        == b"{}"
    )
