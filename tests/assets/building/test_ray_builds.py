"""Builds on a real Ray cluster of two nodes store what local builds store, also while a node or a worker dies."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.builds import build, digests, frozen_tokenizer
from support.dagster_project import failure, new_project
from support.datasets_on_disk import STAGES, write_dataset
from support.golden_datasets import DATASETS, write_golden
from support.object_service import ObjectService, object_service
from support.ray_cluster import NODE, ray_cluster
from support.soak import SOAK, machine, some
from support.waiting import until
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import Progress
from tokenloom.assets.dagster.checks import Checked, stage_checks
from tokenloom.assets.prompts.stage import PromptsStage
from tokenloom.assets.stage.definition import ChunkSize, Context, Work
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.ray_engine import RayEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import verify

pytestmark = machine("cluster")

TINY = ChunkSize(2048, 8192)
SOME = ("without_repeats_and_items", "exact_trees")
CHOSEN = sorted(DATASETS) if SOAK else SOME


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@pytest.fixture(scope="module")
def cluster(service: ObjectService) -> Iterator[Any]:
    """A cluster whose nodes have the credentials of the service in their environment."""
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


def test_a_cluster_builds_in_a_bucket(service: ObjectService, cluster: Any, tmp_path: Path) -> None:
    config, address = write_golden("drop_turns", tmp_path / "data"), service.address()
    engine = RayEngine(address=cluster.address)
    made = Build(PipelineConfig.from_file(config), ArtifactStore(address), engine, chunk_size=TINY)
    assert digests({report.name: report for report in made.run_all()}) == digests(
        build(config, tmp_path / "a", size=TINY)
    )
    again = Build(PipelineConfig.from_file(config), ArtifactStore(address), engine, chunk_size=TINY)
    assert all(report.chunks_reused == report.chunks for report in again.run_all())
    assert verify(ArtifactStore(address)).findings == []


def test_a_dagster_run_builds_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    on_ray, local = new_project(tmp_path / "ray"), new_project(tmp_path / "local")
    on_ray.write(compute={"engine": "ray", "address": cluster.address})
    result = on_ray.run()
    assert result.success, failure(result)
    assert local.run().success
    for stage in STAGES:
        manifest = on_ray.store.manifest("toy", stage)
        assert manifest.digest == local.store.manifest("toy", stage).digest
        assert all(on_ray.store.objects.is_intact(chunk.output) for chunk in manifest.chunks)
    for check in stage_checks(on_ray.config):
        assert check.run(Checked(Build(on_ray.config, on_ray.store))).passed, check


def marked(log: Path) -> Any:
    """Return a `prepare` of prompts whose work logs each chunk, and hangs in one process, for which the others wait.

    That process is on the node that `log/victim` names, if it names one.
    """
    prepare = PromptsStage.prepare

    def prepared(self: PromptsStage, context: Context) -> Work:
        work = prepare(self, context)
        render = work.compute

        def compute(table: Any) -> Any:
            import ray

            with (log / f"{os.getpid()}.log").open("a") as file:
                file.write(f"{table.slice(0, 1).to_pylist()}\n")
            if (log / "victim").read_text() in ("", ray.get_runtime_context().get_node_id()):
                with suppress(FileExistsError):
                    (log / "hanging").symlink_to(str(os.getpid()))  # its content is there as soon as it exists
                    time.sleep(600)
            while not (log / "hanging").is_symlink():
                time.sleep(0.05)
            return render(table)

        return Work(work.chunks, compute, work.sides, work.settings, work.notes)

    return prepared


def doomed(cluster: Any, engine: RayEngine) -> Any:
    """Return a node of the cluster that is neither its head nor the one that this process is connected to."""
    import ray

    assert engine.workers >= 2
    own = ray.get_runtime_context().get_node_id()
    others = [node for node in cluster.worker_nodes if id_of(node) != own]
    return others[0] if others else cluster.add_node(**NODE)


def id_of(node: Any) -> str:
    import ray

    sockets = {found["ObjectStoreSocketName"]: found["NodeID"] for found in ray.nodes()}
    return sockets[node.plasma_store_socket_name]


@pytest.mark.parametrize("what", some(["worker", "node"], 2))
def test_only_chunks_that_were_not_finished_run_again(
    what: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_dataset(tmp_path, 1500, tokenizer=frozen_tokenizer(tmp_path))
    expected = digests(build(config, tmp_path / "local", size=TINY))
    log = tmp_path / "log"
    log.mkdir()
    engine = RayEngine(address=cluster.address)
    node = doomed(cluster, engine)
    (log / "victim").write_text(id_of(node) if what == "node" else "")
    monkeypatch.setattr(PromptsStage, "prepare", marked(log))

    def kill() -> None:
        until(lambda: (log / "hanging").is_symlink())
        if what == "node":
            cluster.remove_node(node, allow_graceful=False)
        os.kill(int((log / "hanging").readlink().name), signal.SIGKILL)

    killer, seen = threading.Thread(target=kill, daemon=True), list[Progress]()
    killer.start()
    config = PipelineConfig.from_file(config)
    made = Build(config, ArtifactStore(tmp_path / "ray"), engine, chunk_size=TINY, on_progress=seen.append)
    found = {report.name: report for report in made.run_all()}
    killer.join()
    assert digests(found) == expected
    runs = Counter(line for file in log.glob("*.log") for line in file.read_text().splitlines())
    assert len(runs) == found["prompts"].chunks > 20
    assert 1 <= sum(runs.values()) - len(runs) <= engine.retries.count <= 4
    assert seen[-1].retried == engine.retries.count
    assert seen[-1].trouble.startswith("small.jsonl:")
