"""Rows with images in a bucket and on a Ray cluster: the same digests, the same batches, and nothing lost by `gc`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.builds import build, digests
from support.object_service import ObjectService, object_service
from support.ray_cluster import ray_cluster
from support.soak import machine, sweep
from support.vision_processors import FAMILIES, save
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.loaders import TokenLoader
from tokenloom.loaders.reading.batch import batch_digest
from tokenloom.resources.engines.ray_engine import RayEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import collect
from tokenloom.resources.store.verify import verify

pytestmark = machine("cluster")

ROWS = 12


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of prompts with one image each, two of which are the same file."""
    folder = tmp_path_factory.mktemp("data")
    save(FAMILIES["qwen2_vl"](), folder / "processor")
    random, rows = np.random.default_rng(0), []
    for number in range(ROWS):
        path = folder / f"{number // 2 * 2}.png"
        if number % 2 == 0:
            size = tuple(int(side) for side in random.integers(20, 90, 2))
            Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(path)
        rows.append({"image": path.name, "prompt": f"what is {number}?", "completion": f" number {number}"})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    yaml = folder / "pictures.yaml"
    settings = "dataset: {name: rows.jsonl}\ntokenizer: {processor: processor, max_length: 512}\n"
    yaml.write_text(settings + "prompt_template: {format_type: completion}\n")
    return yaml


def batches(store: Any) -> list[str]:
    loader = TokenLoader(open_dataset("pictures", store=store), batch_size=4, padding="longest")
    return [batch_digest(batch) for batch in loader]


def test_a_bucket_holds_and_gives_back_what_a_folder_does(
    service: ObjectService, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    address = service.address()
    assert digests(build(config, address)) == digests(build(config, tmp_path / "local"))
    images = list(ArtifactStore(address).blobs.below("media"))
    assert len(images) == ROWS // 2
    assert batches(address) == batches(tmp_path / "local")
    assert not verify(ArtifactStore(address)).findings
    assert not collect(ArtifactStore(address), older_than=timedelta(0)).media
    service.proxy.plan()
    ArtifactStore(address).blobs.delete(images[0].name)
    assert [finding.kind for finding in verify(ArtifactStore(address)).findings] == ["image"]
    assert digests(build(config, address)) == digests(build(config, tmp_path / "local"))
    assert not verify(ArtifactStore(address)).findings


@sweep
def test_a_cluster_stores_what_this_machine_stores(config: Path, tmp_path: Path) -> None:
    with ray_cluster() as cluster:
        made = Build(
            PipelineConfig.from_file(config), ArtifactStore(tmp_path / "ray"), RayEngine(address=cluster.address)
        )
        found = {report.name: report for report in made.run_all()}
    assert digests(found) == digests(build(config, tmp_path / "local"))
    assert batches(tmp_path / "ray") == batches(tmp_path / "local")
