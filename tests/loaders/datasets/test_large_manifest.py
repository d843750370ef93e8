"""Datasets of very many chunks: right rows, few files opened, bounded memory."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from support.format_reader import read_object
from support.processes import run
from support.soak import sweep
from support.store_files import chunks, latest
from tokenloom import open_dataset
from tokenloom.loaders import TokenLoader, batch_digest
from tokenloom.loaders.reading import reader

CHUNKS, OBJECTS, ROWS, LONGEST = 20_000, 2_000, 6, 30
KINDS: list[dict[str, Any]] = [
    {"batch_size": 8, "shuffle": "full"},
    {"batch_size": 8, "shuffle": "block"},
    {"token_budget": 600, "shuffle": "full"},
    {"token_budget": 600, "shuffle": "block"},
]


def writer() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "large_store.py"
    spec = spec_from_file_location("large_store", path)
    assert spec and spec.loader
    sys.modules["large_store"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "store"
    writer().write_large(folder, CHUNKS, OBJECTS, ROWS, LONGEST)
    return folder


@pytest.fixture(scope="module")
def rows(store: Path) -> list[list[int]]:
    """The tokens of every row, read without tokenloom."""
    outputs = [chunk["output"] for chunk in chunks(store, latest(store, "large")["sequences"])]
    tables = {output: read_object(store, output)["input_ids"].to_pylist() for output in {*outputs}}
    return [ids for output in outputs for ids in tables[output]]


@contextmanager
def opened_files(folder: Path) -> Iterator[set[str]]:
    """Collect the names of the files below a folder that are opened meanwhile; the set is filled on leaving."""
    libc, names = ctypes.CDLL(None, use_errno=True), set[str]()
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        assert libc.inotify_add_watch(descriptor, os.fsencode(path), 0x20) > 0  # IN_OPEN
    try:
        yield names
        while True:
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return
            while data:
                _, mask, _, size = struct.unpack_from("iIII", data)
                assert not mask & 0x4000, "too many events"  # IN_Q_OVERFLOW
                names |= {data[16 : 16 + size].rstrip(b"\0").decode()}
                data = data[16 + size :]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_and_batches_are_right_also_after_a_resume(
    store: Path, rows: list[list[int]], kind: dict[str, Any]
) -> None:
    dataset = open_dataset("large", store=store)
    assert len(dataset) == len(rows)
    for row in np.random.default_rng(0).integers(0, len(rows), 50).tolist():
        assert dataset[row]["input_ids"].tolist() == rows[row]
    loader = TokenLoader(dataset, padding="longest", seed=3, **kind)
    state = {**loader.state_dict(), "position": len(rows) // 2 // 4096 * 4096}
    loader.load_state_dict(state)
    steps, batches = loader.steps(), iter(loader)
    for _ in range(20):
        step, batch = next(steps), next(batches)
        assert batch["attention_mask"].sum(1).tolist() == [len(rows[row]) for row in step.rows]
        for row, ids in zip(step.rows.tolist(), batch["input_ids"].tolist(), strict=True):
            assert ids[: len(rows[row])] == rows[row]
        assert kind.get("batch_size") or batch["input_ids"].numel() <= kind["token_budget"]
    saved, expected = loader.state_dict(), [batch_digest(next(batches)) for _ in range(5)]
    again = TokenLoader(open_dataset("large", store=store), padding="longest", seed=3, **kind)
    again.load_state_dict(saved)
    resumed = iter(again)
    assert [batch_digest(next(resumed)) for _ in range(5)] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="counts files with inotify")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_first_batch_opens_few_files(store: Path, kind: dict[str, Any]) -> None:
    with opened_files(store) as names:
        dataset = open_dataset("large", store=store)
        loader = TokenLoader(dataset, padding="longest", **kind)
        batch = next(iter(loader))
    opened = {name for name in names if name.endswith(".arrow")}
    groups = 2 * CHUNKS // 1024  # about twice as many as there are
    assert 2 <= len(opened) <= 2 + len(batch["input_ids"]) + groups * ("token_budget" in kind)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_maps_a_limited_number_of_chunks(
    store: Path, rows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_MAPS", 50)
    loader = TokenLoader(open_dataset("large", store=store), batch_size=8, shuffle="none", padding="longest")
    position, most = 0, 0
    for batch, _ in zip(loader, range(2 * OBJECTS * ROWS // 8), strict=False):
        for ids, mask in zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True):
            assert ids[: sum(mask)] == rows[position]
            position += 1
        if position % 4000 == 0:
            most = max(most, Path("/proc/self/maps").read_text().count(f"{store}/objects/"))
    assert position == 2 * OBJECTS * ROWS
    assert 0 < most < OBJECTS


MEASURE = """
import json, resource, sys, time
from tokenloom.loaders import TokenLoader, open_dataset
started = time.perf_counter()
loader = TokenLoader(open_dataset("large", store=sys.argv[1]), padding="longest", **json.loads(sys.argv[2]))
next(iter(loader))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([time.perf_counter() - started, peak]))
"""


@sweep
def test_a_million_distinct_chunks_open_in_bounded_memory(tmp_path: Path) -> None:
    writer().write_large(tmp_path / "store", 10**6, 10**6, 16, 12)
    for kind in KINDS:
        command = [sys.executable, "-c", MEASURE, tmp_path / "store", json.dumps(kind)]
        seconds, peak = json.loads(run(command, check=True).stdout)
        print(f"{kind}: first batch after {seconds:.2f} s, {peak / 1e6:,.0f} MB")
        assert peak < 1e9
