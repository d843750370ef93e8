"""Builds on a real Ray cluster of two nodes store what local builds store, also while a node or a worker dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.builds import build, digests, frozen_tokenizer
from support.datasets_on_disk import write_dataset
from support.golden_datasets import DATASETS, write_golden
from support.ray_cluster import NODE, ray_cluster
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.progress import Progress
from tokenloom.assets.prompts.stage import PromptsStage
from tokenloom.assets.stage.definition import ChunkSize, Context, Work
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.ray_engine import RayEngine
from tokenloom.resources.store import ArtifactStore

TINY = ChunkSize(2048, 8192)
SOME = ("drop_turns", "gz_with_bad_lines", "saved_by_datasets")
CHOSEN = sorted(DATASETS) if os.environ.get("TOKENLOOM_SOAK") else SOME


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster() as cluster:
        from ray import cloudpickle

        # Workers cannot import this module.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pyright: ignore[reportPrivateImportUsage]
        yield cluster


@pytest.mark.parametrize("name", CHOSEN)
def test_a_cluster_stores_what_this_machine_stores(name: str, cluster: Any, tmp_path: Path) -> None:
    config = write_golden(name, tmp_path / "data")
    engine = RayEngine(address=cluster.address)
    made = Build(PipelineConfig.from_file(config), ArtifactStore(tmp_path / "ray"), engine, chunk_size=TINY)
    found = {report.name: report for report in made.run_all()}
    assert digests(found) == digests(build(config, tmp_path / "local", size=TINY))
    warm = build(config, tmp_path / "ray", size=TINY)
    assert all(report.chunks_reused == report.chunks for report in warm.values())


def slowly(log: Path, first: str) -> Any:
    """Return a `prepare` of prompts whose work takes a while and logs the rows and the process of each chunk.

    Args:
        first: what happens in the process that is the first to compute: `dies` or nothing.
    """
    prepare = PromptsStage.prepare

    def prepared(self: PromptsStage, context: Context) -> Work:
        work = prepare(self, context)

        def compute(table: Any) -> Any:
            with (log / f"{os.getpid()}").open("a") as file:
                file.write(f"{table.slice(0, 1).to_pylist()}\n")
            if first == "dies" and not (log / "dead").exists():
                (log / "dead").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.15)
            return work.compute(table)

        return Work(work.chunks, compute, work.sides, work.settings, work.notes)

    return prepared


@pytest.mark.parametrize("what", ["worker", "node"])
def test_only_chunks_that_were_not_finished_run_again(
    what: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_dataset(tmp_path, 700, tokenizer=frozen_tokenizer(tmp_path))
    expected = digests(build(config, tmp_path / "local", size=TINY))
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(PromptsStage, "prepare", slowly(tmp_path / "log", "dies" if what == "worker" else ""))
    seen: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        seen.append(progress)
        if what == "node" and len(cluster.worker_nodes) and (progress.stage, progress.chunks) == ("prompts", 6):
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    engine = RayEngine(address=cluster.address)
    store = ArtifactStore(tmp_path / "ray")
    made = Build(PipelineConfig.from_file(config), store, engine, chunk_size=TINY, on_progress=on_progress)
    found = {report.name: report for report in made.run_all()}
    if what == "node":
        cluster.add_node(**NODE)
    assert digests(found) == expected
    runs = Counter(line for file in (tmp_path / "log").iterdir() for line in file.read_text().splitlines())
    assert len(runs) == found["prompts"].chunks > 20
    assert 1 <= engine.retries.count <= 4
    assert sum(runs.values()) - len(runs) <= engine.retries.count
    assert seen[-1].retried == engine.retries.count
    assert seen[-1].trouble.startswith("small.jsonl:")
