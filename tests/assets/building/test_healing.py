"""Damage that a build reads is computed again in that same build: every stage, every kind of object, any chunk."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.builds import SMALL, build, digests
from support.datasets_on_disk import STAGES, write_dataset
from support.soak import some
from support.stage_checks import build_with_rejects
from support.store_files import chunks, latest, object_path
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.building.report import Progress
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.store.objects import ObjectStore

READ_BY: dict[str, dict[str, Any]] = {
    "raw": {"dataset": {"column_mapping": {"prompt": "instruction", "completion": "output"}}},
    "columns": {"prompt_template": {"template": "{instruction}\n{input}\n{output}\n"}},
    "prompts": {"tokenizer": {"train": {"vocab_size": 400, "min_frequency": 2}}},
    "tokenizer": {"tokenizer": {"control_tokens_in_content": "keep"}},
    "tokens": {"tokenizer": {"max_length": 100}},
}
"""A change after which a build must read the output of a stage. Sketches of `schema` are read only with new ones."""


def flip(store: Path, stage: str, number: int, kind: str = "output") -> str:
    """Flip a byte in the middle of an object of a chunk; returns its digest."""
    listed = chunks(store, latest(store, "small")[stage])
    digest = listed[number % len(listed)][kind]
    damage(object_path(store, digest))
    return digest


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # memory maps of the intact file stay as they are
    path.write_bytes(data)


def change(config: Path, **sections: Any) -> None:
    settings = yaml.safe_load(config.read_text())
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    if "column_mapping" in settings["dataset"]:
        settings["prompt_template"] = {"format_type": "completion"}
    config.write_text(yaml.safe_dump(settings, sort_keys=False))


@pytest.mark.parametrize(("stage", "number", "keep"), some(product(READ_BY, [0, -1], ["all", "sequences"]), 3))
def test_a_damaged_output_that_is_read_is_healed(tmp_path: Path, stage: str, number: int, keep: str) -> None:
    config, store = write_dataset(tmp_path, 400, keep=keep), tmp_path / "store"
    before = build(config, store)
    change(config, **READ_BY[stage])
    whole = digests(build(config, tmp_path / "whole"))
    digest = flip(store, stage, number)
    missed = Counter[str]()  # most chunks of a stage that one pass over it computed

    def on_progress(progress: Progress) -> None:
        missed[progress.stage] = max(missed[progress.stage], progress.chunks - progress.reused)

    opened = Build(
        PipelineConfig.from_file(config),
        ArtifactStore(store),
        ComputeEngine(2),
        chunk_size=SMALL,
        on_progress=on_progress,
    )
    after = {report.name: report for report in opened.run_all()}
    assert digests(after) == whole
    assert ArtifactStore(store).objects.is_intact(digest)
    assert before[stage].chunks == after[stage].chunks
    if keep == "all":
        assert missed[stage] == 1
    notices = [notice for report in after.values() for notice in report.notices if "damaged" in notice]
    assert len(notices) == 1 and notices[0].startswith(f"computed again, because it was damaged: {stage} of ")


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_chunk_is_read_whatever_happened_to_it(tmp_path: Path, stage: str) -> None:
    config, store = write_dataset(tmp_path, 400), tmp_path / "store"
    build(config, store)
    opened = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    intact = opened.first_chunk(stage)
    digest = flip(store, stage, 0)
    assert opened.first_chunk(stage).equals(intact)
    object_path(store, digest).unlink()
    assert opened.first_chunk(stage).equals(intact)


@pytest.mark.parametrize("stage", ["columns", "tokens"])
def test_one_stage_alone_heals_what_it_reads(tmp_path: Path, stage: str) -> None:
    config, store = write_dataset(tmp_path, 400), tmp_path / "store"
    build(config, store)
    above = STAGES[STAGES.index(stage) - 2]
    change(config, **READ_BY["raw" if stage == "columns" else "tokenizer"])
    digests_before = [flip(store, above, number) for number in (0, 1, -1)]
    opened = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    report = opened.run(stage)
    assert report.name == stage
    assert all(map(ArtifactStore(store).objects.is_intact, digests_before))


@pytest.mark.parametrize("stage", STAGES[:-1])
def test_a_damaged_manifest_that_is_read_is_written_again(tmp_path: Path, stage: str) -> None:
    config, store = write_dataset(tmp_path, 400), tmp_path / "store"
    before = digests(build(config, store))
    manifest = object_path(store, latest(store, "small")[stage])
    damage(manifest)
    opened = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    below = next(name for name in STAGES if stage in stage_named(name).upstream)
    (report,) = opened.run_stages([below])
    assert f"written again, because it was damaged: the manifest of {stage}" in report.notices
    assert ArtifactStore(store).objects.is_intact(manifest.stem)
    assert digests(build(config, store)) == before


def test_damaged_rejects_that_are_shown_between_two_reports_are_healed(tmp_path: Path) -> None:
    config, store, expected = build_with_rejects(tmp_path)
    made = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    shown = {stage: made.reject_reasons(stage) for stage in ("raw", "columns")}
    found, notices = dict[str, str](), list[str]()
    opened = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    for report in opened.run_all():
        found[report.name] = report.digest
        notices += report.notices
        if report.name in shown:
            listed = chunks(store, latest(store, "small")[report.name])
            (digest,) = (chunk["rejects"] for chunk in listed if chunk["rejects"])
            damage(object_path(store, digest))
            assert opened.reject_reasons(report.name) == shown[report.name]
            assert ArtifactStore(store).objects.is_intact(digest)
    assert found == expected
    assert len([notice for notice in notices if "because it was damaged" in notice]) == 2


def test_a_disk_that_damages_what_is_written_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, store = write_dataset(tmp_path, 400), tmp_path / "store"
    build(config, store)
    change(config, **READ_BY["prompts"])
    damaged = flip(store, "prompts", 0)
    write = Folder.write

    def write_damaged(self: Folder, name: str, data: bytes | memoryview) -> None:
        write(self, name, data)
        if name == ObjectStore.blob(damaged):
            object_path(store, damaged).write_bytes(bytes(data)[:-9] + b"!" * 9)

    monkeypatch.setattr(Folder, "write", write_damaged)
    with pytest.raises(StoreError, match="it was damaged again: check the disk"):
        build(config, store)
