"""Checks that run alone: what is damaged is named and removed, and the next build computes just that, the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.builds import build, digests
from support.datasets_on_disk import STAGES
from support.stage_checks import (
    Built,
    build_with_rejects,
    checks_of,
    computed,
    numbers,
    run_alone,
)
from support.store_files import chunks, flip, latest, object_path, read_object
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.objects import encode_table


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_with_rejects(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def built(whole: Built, tmp_path: Path) -> Built:
    """The same, in a separate copy of the store."""
    shutil.copytree(whole[1], tmp_path / "store")
    return whole[0], tmp_path / "store", whole[2]


def place_of(chunk: dict[str, Any]) -> str:
    run = chunk["runs"][0]
    return f"{run['source']}:{run['offset'] + 1}" if run["offset"] >= 0 else run["source"]


@pytest.mark.parametrize("name", ["contract", "stored"])
@pytest.mark.parametrize("stage", STAGES)
def test_flipped_bytes_of_a_stage_are_named_and_heal(built: Built, stage: str, name: str) -> None:
    config, store, expected = built
    stored = chunks(store, latest(store, "small")[stage])
    damaged = stored[:: max(len(stored) - 1, 1)]  # the first and the last
    for chunk in damaged:
        path = object_path(store, chunk["output"])
        flip(path, path.stat().st_size // 2)
    on = stage if name == "contract" else "sequences"
    verdict = run_alone(config, store, on, name)
    assert not verdict.passed and not verdict.warns
    for chunk in damaged:
        assert not object_path(store, chunk["output"]).exists()
        line = next(line for line in verdict.description.splitlines() if chunk["output"] in line)
        assert stage in line and f"output of {place_of(chunk)}" in line
    assert numbers(verdict)["failed_chunks" if name == "contract" else "faulty"] == len(damaged)
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {stage: len(damaged)})
    assert run_alone(config, store, on, name).passed


@pytest.mark.parametrize("name", ["contract", "stored"])
@pytest.mark.parametrize(("stage", "kind"), [("raw", "rejects"), ("columns", "rejects"), ("sequences", "lengths")])
def test_flipped_bytes_beside_an_output_are_named_and_heal(built: Built, stage: str, kind: str, name: str) -> None:
    config, store, expected = built
    chunk = [one for one in chunks(store, latest(store, "small")[stage]) if one[kind]][-1]
    path = object_path(store, chunk[kind])
    flip(path, path.stat().st_size // 2)
    on = stage if name == "contract" else "sequences"
    verdict = run_alone(config, store, on, name)
    assert not verdict.passed
    assert f"{kind} of {place_of(chunk)}" in verdict.description and chunk[kind] in verdict.description
    assert not path.exists()
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {stage: 1})
    assert run_alone(config, store, on, name).passed


def test_damaged_sidecars_manifests_and_tokenizer_files_are_named_and_heal(built: Built) -> None:
    config, store, expected = built
    opened = ArtifactStore(store)
    sidecars = opened.manifest("small").sidecars
    assert sidecars is not None
    sidecar = object_path(store, opened.manifest_at(sidecars).chunks[1].output)
    (tokenizer,) = (store / "tokenizers").glob("*/tokenizer.json")
    manifests = [object_path(store, latest(store, "small")[stage]) for stage in STAGES]
    for path in (sidecar, tokenizer, *manifests):
        flip(path, path.stat().st_size // 2)
        verdict = run_alone(config, store, "sequences", "stored")
        assert not verdict.passed and numbers(verdict)["faulty"] == 1
        assert (path.stem if path != tokenizer else "tokenizer of tokenizer.json is damaged") in verdict.description
        rebuilt = build(config, store)
        assert (digests(rebuilt), computed(rebuilt)) == (expected, {})
        assert run_alone(config, store, "sequences", "stored").passed


def test_rereading_counts_what_it_reads(built: Built) -> None:
    config, store, _ = built
    sizes = [path.stat().st_size for path in store.glob("objects/*/*")]
    verdict = run_alone(config, store, "sequences", "stored")
    assert verdict.passed
    assert numbers(verdict) == {"objects": len(sizes), "bytes": sum(sizes), "faulty": 0, "dropped": 0}
    assert run_alone(config, store, "sequences", "overlap").passed
    assert len(list(store.glob("objects/*/*"))) == len(sizes) + 1  # its result, which no manifest names
    tokens = run_alone(config, store, "tokens", "contract")
    assert tokens.passed
    assert numbers(tokens) == {
        "chunks": len(chunks(store, latest(store, "small")["tokens"])),
        "rows": 398,
        "failed_chunks": 0,
    }


def test_checks_of_a_dataset_that_is_not_built_say_so(whole: Built, tmp_path: Path) -> None:
    config = PipelineConfig.from_file(whole[0])
    for stage, name in checks_of(config):
        verdict = run_alone(whole[0], tmp_path / "store", stage, name)
        assert not verdict.passed
        assert "no store found at" in verdict.description, (stage, name)


def swap_output(store: Path, stage: str, table: pa.Table) -> str:
    """Give the second chunk of a stage another table; returns the object's digest."""
    opened = ArtifactStore(store)
    manifest, digest = opened.manifest("small", stage), opened.objects.put(encode_table(table, True))
    first, second, *others = manifest.chunks
    opened.put_manifest(replace(manifest, chunks=(first, replace(second, output=digest), *others)))
    return digest


def test_the_contract_finds_wrong_types_and_broken_properties(built: Built) -> None:
    config, store, expected = built
    second = read_object(store, chunks(store, latest(store, "small")["tokens"])[1]["output"])
    field = second.schema.field("input_ids")
    wrong_type = second.set_column(1, "input_ids", second["input_ids"].cast(pa.list_(pa.int64())))
    shorter = second.set_column(1, "input_ids", pa.array([[1]] * second.num_rows, field.type))
    for table, problem in (
        (wrong_type, "output breaks its contract: column input_ids is list<item: int64>"),
        (shorter, "spans partition the tokens"),
    ):
        digest = swap_output(store, "tokens", table)
        verdict = run_alone(config, store, "tokens", "contract")
        assert not verdict.passed and numbers(verdict)["failed_chunks"] == 1
        assert problem in verdict.description and digest in verdict.description
        assert not object_path(store, digest).exists()
        assert digests(build(config, store)) == expected


def test_counts_that_do_not_add_up_are_found(built: Built) -> None:
    config, store, _ = built

    def lose(manifest: Manifest) -> Manifest:
        first, *others = manifest.chunks
        return replace(manifest, chunks=(replace(first, rows_out=first.rows_out - 1), *others))

    opened = ArtifactStore(store)
    before = opened.manifest("small", "columns")
    opened.put_manifest(lose(before))
    rows_in = before.chunks[0].rows_in
    assert f"has {rows_in} rows, but accounts for {rows_in - 1}" in (
        run_alone(config, store, "columns", "contract").description
    )
