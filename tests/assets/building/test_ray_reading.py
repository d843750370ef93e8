"""Tasks of a real Ray cluster read a large file, and find what one reader finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.ray_cluster import ray_cluster
from support.soak import machine
from tokenloom.assets.building.build import Build
from tokenloom.assets.raw.formats import record_file, tables
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.engines.ray_engine import RayEngine
from tokenloom.resources.sources import large_file, source_file
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("cluster")

BLOCK = 50_000
ROWS = [{"text": f"{number} " * (number % 50)} for number in range(10_000)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tasks_read_what_one_reader_reads(
    kind: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (source_file, large_file, record_file):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(large_file, "LARGE_BYTES", 1)
    monkeypatch.setattr(tables, "_PART_BYTES", BLOCK)
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        lines = [json.dumps(row).encode() for row in ROWS]
        lines[5_000] = b'{"cut": '
        path.write_bytes(b"\n".join(lines))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=500)
    config = PipelineConfig.from_mapping({"dataset": {"name": str(path)}})
    here: list[int] = []

    class Here(ComputeEngine):
        def beside(self, most: int) -> ComputeEngine:
            here.append(most)
            return super().beside(most)

    monkeypatch.setattr(RayEngine, "here", property(lambda engine: Here(2)))
    found = [
        Build(config, ArtifactStore(tmp_path / str(number)), engine, None, ChunkSize(20_000, 80_000)).run("raw")
        for number, engine in enumerate([RayEngine(address=cluster.address), ComputeEngine(1)])
    ]
    assert found[0].digest == found[1].digest
    assert found[0].rejected == (kind == "jsonl")
    assert not here
