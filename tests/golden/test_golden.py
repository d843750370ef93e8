"""Keys, output digests and rejects of many datasets: a changed output needs a new stage version.

If a stage's code changes its output on purpose, bump its `version` and write the new digests:
`PYTHONPATH=tests python tests/golden/test_golden.py`; with TOKENLOOM_REAL_DATA=DIR, also those of real data.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from blake3 import blake3

from support.golden_datasets import LIMITS, NAMES, REAL, write_golden, write_mixture, write_real
from support.object_service import ObjectService, object_service
from support.pickling_engine import PicklingEngine
from support.soak import REAL_DATA, machine
from tokenloom import DataPipeline
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.loaders import open_mixture
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

GOLDEN = Path(__file__).parent / "golden_digests.json"
GOLDEN_REAL = Path(__file__).parent / "golden_real_digests.json"
SMALL = ChunkSize(target=24_000, maximum=96_000)
TINY = ChunkSize(target=8_000, maximum=32_000)
MIDDLE = ChunkSize(target=100_000, maximum=400_000)
MIXTURE = "mixture"
IN_BUCKETS = ("json_by_id", "files_of_a_folder", "saved_by_datasets", "without_repeats_and_items")
"""Datasets that are also built into a store in a bucket."""
FROM_BUCKETS = {"json_array": "rows.json", "files_of_a_folder": "rows/", "gz_with_bad_lines": "part*.jsonl.gz"}
"""Datasets whose source is also read from a bucket, with its name below the folder."""

Stages = dict[str, dict[str, Any]]


def stages_of(
    config: Path, store: Path | str, size: ChunkSize, limit: int | None = None, engine: ComputeEngine | None = None
) -> Stages:
    """Return by stage and version: digest of the output, digest of all keys, and the number of rejects by code."""
    build = Build(PipelineConfig.from_file(config), ArtifactStore(store), engine, limit, size)
    reports = {report.name: report for report in build.run_all()}
    found: Stages = {}
    for name in build.stages:
        chunks = build.manifest(name).chunks
        codes: Counter[str] = Counter()
        for chunk in chunks:
            if chunk.rejects:
                codes.update(build.store.objects.get(chunk.rejects)["code"].to_pylist())
        keys = blake3("\n".join(chunk.key for chunk in chunks).encode()).hexdigest()
        stage = {"digest": reports[name].digest, "keys": keys, "chunks": len(chunks)}
        stage |= {"filtered": reports[name].filtered} if reports[name].filtered else {}
        stage |= {"rejected": dict(sorted(codes.items()))} if codes else {}
        found[f"{name} {stage_named(name).version}"] = stage
    return found


def made(name: str, folder: Path, store: Path | str | None = None, engine: ComputeEngine | None = None) -> Stages:
    """Build a generated dataset."""
    config = write_golden(name, folder / "data")
    return stages_of(config, store or folder / "store", size_of(name), LIMITS.get(name), engine)


def size_of(name: str) -> ChunkSize:
    return SMALL if name in ("small", "quickstart") else TINY


def real(name: str, data: Path, folder: Path) -> Stages:
    """Build a real dataset."""
    return stages_of(write_real(name, data, folder / "data"), folder / "store", MIDDLE, LIMITS.get(name))


def mixed(folder: Path) -> Stages:
    """Build a mixture; returns its digest and shares."""
    config, store = write_mixture(folder / "data"), folder / "store"
    DataPipeline.from_config(config, store).unwrap().build().unwrap()
    opened = open_mixture(MIXTURE, store=store)
    shares = {share.dataset: [share.taken, share.rows, round(share.token_share, 6)] for share in opened.shares()}
    digest = ArtifactStore(store).manifest(MIXTURE, MIXTURE).digest
    return {"mixture": {"digest": digest, "loaded": opened.digest, "shares": shares}}


def golden(name: str, path: Path = GOLDEN) -> Stages:
    return json.loads(path.read_text())[name]


def check(name: str, found: Stages, expected: Stages) -> None:
    for stage, facts in found.items():
        assert facts == expected.get(stage), f"{name}: {stage} has different keys or bytes; see {Path(__file__).name}"
    assert list(found) == list(expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_output_comes_with_a_new_stage_version(name: str, tmp_path: Path) -> None:
    """The digests were written with the local engine. Here all tasks are pickled, as they are for another machine."""
    check(name, made(name, tmp_path, engine=PicklingEngine(2)), golden(name))


@pytest.mark.parametrize("name", REAL)
def test_real_data_keeps_its_digests(name: str, real_data: Path, tmp_path: Path) -> None:
    check(name, real(name, real_data, tmp_path), golden(name, GOLDEN_REAL))


def test_a_mixture_keeps_its_digest_and_shares(tmp_path: Path) -> None:
    check(MIXTURE, mixed(tmp_path), golden(MIXTURE))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@machine("bucket")
@pytest.mark.parametrize("name", IN_BUCKETS)
def test_a_store_in_a_bucket_has_the_same_keys(name: str, service: ObjectService, tmp_path: Path) -> None:
    check(name, made(name, tmp_path, service.address()), golden(name))


@machine("bucket")
@pytest.mark.parametrize("name", FROM_BUCKETS)
def test_a_source_in_a_bucket_has_the_same_keys(name: str, service: ObjectService, tmp_path: Path) -> None:
    config, address = write_golden(name, tmp_path / "data"), service.address()
    service.copy(tmp_path / "data", address)
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings["dataset"]["name"] = f"{address}/{FROM_BUCKETS[name]}"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    check(name, stages_of(config, tmp_path / "store", size_of(name)), golden(name))


def write(path: Path, found: dict[str, Stages]) -> None:
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as at:
        folders = {name: Path(at) / name for name in (*NAMES, *REAL, MIXTURE)}
        write(GOLDEN, {**{name: made(name, folders[name]) for name in NAMES}, MIXTURE: mixed(folders[MIXTURE])})
        if REAL_DATA:
            write(GOLDEN_REAL, {name: real(name, REAL_DATA, folders[name]) for name in REAL})
    sys.exit(0)
