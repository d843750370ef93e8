"""Datasets in a bucket are read like local ones: each chunk is downloaded once per host and epoch, and when needed."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import processes
from support.far_rank import Step, steps_of
from support.object_service import ObjectService, object_service
from support.paths import ROOT
from support.soak import machine
from support.stored_sequences import write_sequences
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, batch_digest, open_dataset
from tokenloom.loaders.order import batch_plan, row_order
from tokenloom.loaders.reading import ahead
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("bucket")

CHUNKS, TOKENS, MEAN = 48, 3000, 20
ROWS = CHUNKS * TOKENS // MEAN
WINDOW_ROWS = ROWS // 6
ARGUMENTS: dict[str, Any] = {"batch_size": 16, "shuffle": "block", "seed": 3, "padding": "longest"}
DELAY = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the dataset `far`, and a smaller one, `few`."""
    path = tmp_path_factory.mktemp("far")
    write_sequences(path, "far", [TOKENS] * CHUNKS, MEAN)
    write_sequences(path, "few", [TOKENS] * 3, MEAN, seed=1)
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@pytest.fixture(scope="module")
def address(shared: ObjectService, folder: Path) -> str:
    address = shared.address()
    shared.copy(folder, address)
    return address


@pytest.fixture
def service(
    shared: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[ObjectService]:
    """The service with an empty cache of half of the dataset, and small windows."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENLOOM_CACHE_SIZE", str(size_of(folder) // 2))
    monkeypatch.setattr(row_order, "WINDOW_ROWS", WINDOW_ROWS)
    monkeypatch.setattr(batch_plan, "WINDOW_ROWS", WINDOW_ROWS // 16)
    shared.proxy.plan()
    yield shared
    shared.proxy.delay = 0.0


def chunks_of(folder: Path, name: str = "far") -> dict[str, int]:
    """Return the size of each chunk's object, by its digest."""
    return {chunk.output: chunk.bytes for chunk in ArtifactStore(folder).manifest(name).chunks}


def size_of(folder: Path) -> int:
    return sum(chunks_of(folder).values())


def downloads(service: ObjectService, chunks: dict[str, int]) -> list[str]:
    """Return the chunks that were downloaded, in order."""
    names = [request.rpartition("/")[2].partition(".")[0] for request in service.proxy.requests]
    return [name for name in names if name in chunks]


def bytes_of(service: ObjectService, chunks: dict[str, int]) -> int:
    sent = service.proxy.sent
    return sum(size for request, size in sent.items() if request.rpartition("/")[2].partition(".")[0] in chunks)


def run(store: str, out: Path, arguments: dict[str, Any], ranks: int = 1, state: Path | None = None) -> list[Any]:
    """Run `support.far_rank` on some ranks of this host. Return what each has written."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    out.mkdir()
    given = json.dumps({**arguments, "window_rows": WINDOW_ROWS})
    command = [sys.executable, *torchrun, "-m", "support.far_rank", store, out, given, *([state] if state else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")}
    processes.run(command, env=environment, check=True)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


def local_steps(folder: Path, rank: int, world_size: int) -> list[Step]:
    return steps_of(TokenLoader(open_dataset("far", store=folder), rank=rank, world_size=world_size, **ARGUMENTS))


def test_two_ranks_share_what_they_download(service: ObjectService, address: str, folder: Path, tmp_path: Path) -> None:
    service.proxy.delay = DELAY
    written = run(address, tmp_path / "ranks", ARGUMENTS, ranks=2)
    for rank, found in enumerate(written):
        assert [tuple(step) for step in found["steps"]] == local_steps(folder, rank, 2)
    rows = Counter(tuple(row) for found in written for _, step in found["steps"] for row in step)
    loader = TokenLoader(open_dataset("far", store=folder), batch_size=64, shuffle="none", padding="longest")
    assert rows == Counter(tuple(row) for _, step in steps_of(loader) for row in step)
    chunks = chunks_of(folder)
    downloaded = downloads(service, chunks)
    assert {*downloaded} == {*chunks}
    assert bytes_of(service, chunks) <= 1.1 * size_of(folder)
    cached = sum(path.stat().st_size for path in (tmp_path / "cache" / "objects").rglob("*.arrow"))
    assert cached <= size_of(folder) / 2


@pytest.mark.parametrize("shuffle", ["block", "full"])
def test_a_resumed_rank_first_downloads_what_its_next_batch_needs(
    service: ObjectService, address: str, folder: Path, tmp_path: Path, shuffle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE_SIZE", "1GB")
    arguments = {**ARGUMENTS, "shuffle": shuffle}
    local = open_dataset("far", store=folder)
    loader = TokenLoader(local, rank=0, world_size=1, **arguments)
    batches = iter(loader)
    for _ in range(len(loader) // 2 + 3):
        next(batches)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(loader.state_dict()))
    rows = next(loader.steps()).rows
    service.proxy.delay = DELAY
    (found,) = run(address, tmp_path / "resumed", arguments, state=state)
    print(f"{shuffle}: first batch after {found['seconds']:.2f} s")
    digests = [*chunks_of(folder)]
    assert found["first"] == batch_digest(next(batches))
    needed = {digests[chunk] for chunk in local.reader.chunks_of(rows).tolist()}
    assert {*downloads(service, chunks_of(folder))[: len(needed)]} == needed
    before = next(
        number for number, request in enumerate(service.proxy.requests) if request.rpartition("/")[2][:64] in needed
    )
    assert before <= 6, service.proxy.requests[:before]


def mixed(store: str | Path) -> MixedDataset:
    opened = {name: open_dataset(name, store=store) for name in ("far", "few")}
    return MixedDataset(opened, {"far": 3, "few": 1}, by="rows")


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("one", {}),
        ("one", {"shuffle": "none"}),
        ("one", {"num_workers": 2}),
        ("one", {"prefetch_factor": 2}),
        ("one", {"token_budget": 512}),
        ("one", {"rank": 1, "world_size": 3}),
        ("mixed", {}),
        ("mixed", {"token_budget": 512, "num_workers": 1}),
    ],
)
def test_every_kind_of_loader_reads_the_same_as_from_a_folder(
    service: ObjectService, address: str, folder: Path, arguments: dict[str, Any], kind: str
) -> None:
    """And downloads each chunk once; of a mixture, some chunks are read in several passes."""
    datasets = [mixed(store) if kind == "mixed" else open_dataset("far", store=store) for store in (address, folder)]
    sizes = {} if "token_budget" in arguments else {"batch_size": 16}
    options: Any = {"rank": 0, "world_size": 1, "shuffle": "block", "seed": 3, "padding": "longest"}
    loaders = [TokenLoader(dataset, **(options | sizes | arguments)) for dataset in datasets]
    assert steps_of(loaders[0]) == steps_of(loaders[1])
    chunks = chunks_of(folder)
    assert kind == "mixed" or sorted(downloads(service, chunks)) == sorted(chunks)


def test_rows_before_the_position_are_not_downloaded(service: ObjectService, address: str, folder: Path) -> None:
    local = TokenLoader(open_dataset("far", store=folder), rank=0, world_size=1, **ARGUMENTS)
    running, half = iter(local), len(local) // 2
    for _ in range(half):
        next(running)
    loader = TokenLoader(open_dataset("far", store=address), rank=0, world_size=1, **ARGUMENTS)
    loader.load_state_dict(local.state_dict())
    rows = np.concatenate([step.rows for step in loader.steps()])
    digests = [*chunks_of(folder)]
    expected = {digests[chunk] for chunk in open_dataset("far", store=folder).reader.chunks_of(rows).tolist()}
    assert steps_of(loader) == steps_of(running)
    assert {*downloads(service, chunks_of(folder))} == expected
    assert len(expected) < 0.7 * CHUNKS


def test_read_ahead_is_limited(
    service: ObjectService, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = chunks_of(folder)
    monkeypatch.setattr(ahead, "AHEAD_BYTES", 5 * max(chunks.values()))
    loader = TokenLoader(open_dataset("far", store=address), **{**ARGUMENTS, "shuffle": "none"})
    batches = iter(loader)
    for number in range(0, len(loader), 40):
        for _ in range(40 if number else 1):
            next(batches, None)
        read = {*loader._data.reader.chunks_of(np.arange(min(loader.place.position, ROWS)))}  # pyright: ignore
        settle(service)
        assert len(downloads(service, chunks)) <= len(read) + 6


def settle(service: ObjectService) -> None:
    """Wait until no more requests arrive."""
    last, waiting = -1, threading.Event()
    while last != len(service.proxy.requests):
        last = len(service.proxy.requests)
        waiting.wait(0.1)


def test_chunks_read_long_ago_are_unmapped(service: ObjectService, address: str, folder: Path) -> None:
    dataset = open_dataset("far", store=address)
    limit = int(os.environ["TOKENLOOM_CACHE_SIZE"])
    seen = [mapped_bytes(Path(os.environ["TOKENLOOM_CACHE"])) for _ in TokenLoader(dataset, **ARGUMENTS)]
    assert max(seen) <= limit / 2 + 16 * max(chunks_of(folder).values())
    dataset = open_dataset("far", store=address)
    rows = [dataset[row]["input_ids"].tolist() for row in (0, ROWS // 2, ROWS - 1, 0)]
    local = open_dataset("far", store=folder)
    assert rows == [local[row]["input_ids"].tolist() for row in (0, ROWS // 2, ROWS - 1, 0)]


def mapped_bytes(folder: Path) -> int:
    """Return the bytes of files below a folder, deleted ones too, that this process has mapped."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in (line[0].split("-") for line in maps))


def test_readers_of_several_threads_unmap_nothing_in_use(
    service: ObjectService, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread reads other chunks, of which few can be mapped at a time."""
    monkeypatch.setenv("TOKENLOOM_CACHE_SIZE", str(4 * max(chunks_of(folder).values())))
    dataset, local = (open_dataset("far", store=store) for store in (address, folder))
    policy, rows = local.padding("longest"), np.random.default_rng(0).integers(0, len(local), (6, 5, 4, 8))

    def is_same(part: Any) -> bool:
        for groups in part:
            batches = [*dataset.reader.batches([*groups], policy)]
            expected = [*local.reader.batches([*groups], policy)]
            for one, other in zip(batches, expected, strict=True):
                if not all(np.array_equal(one[name], other[name]) for name in ("input_ids", "labels")):
                    return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(is_same, rows))


def test_a_cache_smaller_than_a_window_is_reported(
    service: ObjectService, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = size_of(folder) // 6
    for limit, shuffle, warned in ((3 * window, "block", False), (window, "block", True), (3 * window, "full", True)):
        monkeypatch.setenv("TOKENLOOM_CACHE_SIZE", str(limit))
        dataset: TokenDataset = open_dataset("far", store=address)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            TokenLoader(dataset, shuffle=shuffle)  # pyright: ignore[reportArgumentType]
            TokenLoader(open_dataset("far", store=folder), shuffle="full")
        assert ["TOKENLOOM_CACHE_SIZE" in str(each.message) for each in caught] == [True] * warned
