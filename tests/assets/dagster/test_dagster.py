"""Materialization through Dagster on a real store: what it builds and shows, and how errors and damage surface."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from support.dagster_project import ROWS, SECTIONS, Project, failure, new_project
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.stages import STAGES, stage_named
from tokenloom.assets.dagster.checks import check_contract
from tokenloom.assets.dagster.names import asset_key
from tokenloom.assets.dagster.store_resource import StoreResource
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.objects import encode_table


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path)


def stage_metadata(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of each materialization, by stage."""
    found = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    return {made.asset_key.path[-1]: {name: entry.value for name, entry in made.metadata.items()} for made in found}


def data_versions(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    found = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    return {made.asset_key.path[-1]: (made.tags or {})["dagster/data_version"] for made in found}


def test_materializing_builds_the_store_and_a_fresh_instance_hits(project: Project) -> None:
    first = project.run()
    assert first.success
    stored = {stage: project.store.manifest("toy", stage) for stage in STAGES}
    assert data_versions(first) == {stage: manifest.digest for stage, manifest in stored.items()}
    checks = first.get_asset_check_evaluations()
    assert len(checks) == len(STAGES) + 1
    assert all(check.passed for check in checks)

    again = project.run()
    assert again.success
    assert data_versions(again) == data_versions(first)
    for stage, metadata in stage_metadata(again).items():
        assert metadata["chunks_reused"] == metadata["chunks"] == len(stored[stage].chunks)
    assert sum(metadata["chunks_reused"] for metadata in stage_metadata(first).values()) == 0


def test_a_materialization_explains_why_it_computed(project: Project) -> None:
    first = stage_metadata(project.run())
    assert {metadata["explanation"] for metadata in first.values()} == {"never built"}
    project.write(tokenizer={**SECTIONS["tokenizer"], "max_length": 48})
    shown = stage_metadata(project.run())
    assert shown["sequences"]["explanation"] == "tokenizer.max_length: 64 → 48"
    assert [stage for stage, metadata in shown.items() if "explanation" in metadata] == ["sequences"]


def test_dagster_and_a_plain_build_give_the_same_digests(project: Project) -> None:
    config, apart = project.config, ArtifactStore(project.folder / "apart")
    built = {report.name: report.digest for report in Build(config, apart).run_all()}
    result = project.run()
    assert data_versions(result) == built
    reports = list(Build(config, project.store).run_all())
    assert all(report.chunks_reused == report.chunks for report in reports)
    assert {report.name: report.digest for report in reports} == built


@pytest.mark.parametrize("packing", ["none", "concat"])
def test_metadata_describes_the_output_of_a_stage(project: Project, packing: str) -> None:
    project.write(length={"packing": packing})
    shown = stage_metadata(project.run())
    store = project.store
    for stage in STAGES:
        manifest, metadata = store.manifest("toy", stage), shown[stage]
        tables = [store.objects.get(chunk.output) for chunk in manifest.chunks]
        for count in ("rows_in", "rows_out", "rejected", "filtered", "tokens"):
            assert metadata[count] == manifest.total(count)
        if stage != "schema":  # its rows are columns
            assert metadata["dagster/row_count"] == sum(table.num_rows for table in tables)
        schema = metadata["dagster/column_schema"]
        assert [(column.name, column.type) for column in schema.columns] == [
            (field.name, str(field.type)) for field in tables[0].schema
        ]
        described = [bool(column.description) for column in schema.columns]
        assert described == [stage not in ("raw", "columns") or column.name == "_row" for column in schema.columns]
        assert isinstance(metadata["seconds"], float)
        for name, count in manifest.counters.items():
            assert metadata[f"counters/{name}"] == count if "/" not in name else f"counters/{name}" not in metadata
    assert shown["sequences"]["tokens"] > 0


def sample_of(result: dg.ExecuteInProcessResult, stage: str, label: str = "sample") -> list[dict[str, Any]]:
    (event,) = result.asset_materializations_for_node(f"toy__{stage}")
    value = event.metadata[label]
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_samples_are_short_and_plain(project: Project) -> None:
    odd = {"instruction": "long " * 1000, "input": "", "output": "\u2028é", "big": 2**60, "none": None}
    project.write(tokenizer={**SECTIONS["tokenizer"], "max_length": 4096})
    odd |= {"deep": {"a": [1.5, None]}, "half": 0.5, "flag": True}
    (project.pipelines / "rows" / "a.jsonl").write_text(json.dumps(odd) + "\n", encoding="utf-8")
    result = project.run()
    assert result.success
    (row,) = sample_of(result, "raw")
    assert row["instruction"].endswith("…")
    assert all(len(cell) <= 160 for cell in row.values() if isinstance(cell, str))
    assert (row["big"], row["none"], row["half"], row["flag"]) == (str(2**60), None, 0.5, True)
    assert len(sample_of(result, "tokens")) == 1
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_the_schema_asset_shows_columns_and_formats(project: Project) -> None:
    result = project.run()
    columns, formats = (sample_of(result, "schema", label) for label in ("columns", "formats"))
    assert [column["column"] for column in columns] == ["instruction", "input", "output"]
    assert all(column["type"] == "string" and column["example"] for column in columns)
    assert formats[0]["format"] == "alpaca" and "prompt: named 'instruction'" in formats[0]["evidence"]


def test_rejects_are_shown_by_code(project: Project) -> None:
    project.write(validation={"max_reject_fraction": 0.5})
    broken = '{"instruction": "a", "input": "b", "output": "c"}\n{"instruction": oops\n[1]\n'
    (project.pipelines / "rows" / "a.jsonl").write_text(broken, encoding="utf-8")
    result = project.run()
    assert result.success
    rows = sample_of(result, "raw", "rejects")
    metadata = stage_metadata(result)["raw"]
    assert sum(row["rows"] for row in rows) == metadata["rejected"] == 2
    assert any("oops" in row["example"] for row in rows)
    assert all(row["code"] in metadata["rejects_summary"] for row in rows)
    assert "rejects" not in stage_metadata(result)["prompts"]


# A user's mistakes and damage.


def test_a_missing_file_fails_the_run_with_one_sentence(project: Project) -> None:
    path = project.write(dataset={"name": "rowz.jsonl"})
    result = project.run()
    assert failure(result) == f"{path}:2: dataset.name: no such file: rowz.jsonl"
    assert data_versions(result) == {}


def test_too_many_rejects_fail_the_run_with_the_reasons(project: Project) -> None:
    (project.pipelines / "rows" / "a.jsonl").write_text("{oops\n" * 9, encoding="utf-8")
    message = failure(project.run())
    assert message.startswith(
        "raw: 9 of 39 rows rejected, more than validation.max_reject_fraction (0.01) allows: 9 × "
    )


def test_a_folder_that_is_not_a_store_fails_the_run_with_one_sentence(project: Project) -> None:
    project.root.mkdir()
    (project.root / "FORMAT").write_text("something else\n", encoding="utf-8")
    assert "something else" in failure(project.run())
    checked = check(project, "raw")
    assert not checked.passed
    assert "something else" in (checked.description or "")


def check(project: Project, stage: str) -> dg.AssetCheckResult:
    return check_contract(project.config, stage_named(stage), StoreResource(root=str(project.root)))


def test_the_check_counts_what_it_read(project: Project) -> None:
    missing = check(project, "raw")
    assert not missing.passed
    assert "no dataset 'toy': no store found at" in (missing.description or "")
    project.run()
    passed = check(project, "tokens")
    assert passed.passed
    assert {name: entry.value for name, entry in passed.metadata.items()} == {
        "chunks": 2,
        "rows": ROWS,
        "failed_chunks": 0,
    }


def publish(project: Project, stage: str, alter: Callable[[Manifest], Manifest]) -> None:
    """Make an altered manifest the stage's latest."""
    project.store.put_manifest(alter(project.store.manifest("toy", stage)))


def swap_output(project: Project, table: pa.Table) -> Callable[[Manifest], Manifest]:
    """Give the second chunk another table."""
    digest = project.store.objects.put(encode_table(table, True))

    def alter(manifest: Manifest) -> Manifest:
        first, second = manifest.chunks
        return replace(manifest, chunks=(first, replace(second, output=digest)))

    return alter


def test_the_check_finds_broken_contracts_and_lost_rows(project: Project) -> None:
    project.run()
    second = project.store.objects.get(project.store.manifest("toy", "tokens").chunks[1].output)
    wrong_type = second.set_column(1, "input_ids", second["input_ids"].cast(pa.list_(pa.int64())))
    publish(project, "tokens", swap_output(project, wrong_type))
    found = check(project, "tokens")
    assert not found.passed
    assert "chunk 1: tokens: output breaks its contract: column input_ids is list<item: int64>" in (
        found.description or ""
    )
    assert found.metadata["failed_chunks"].value == 1

    shorter = second.set_column(1, "input_ids", pa.array([[1]] * second.num_rows, second.schema.field(1).type))
    publish(project, "tokens", swap_output(project, shorter))
    assert "spans partition the tokens" in (check(project, "tokens").description or "")

    def lose_a_row(manifest: Manifest) -> Manifest:
        first, *rest = manifest.chunks
        return replace(manifest, chunks=(replace(first, rows_out=first.rows_out - 1), *rest))

    publish(project, "columns", lose_a_row)
    assert "has 30 rows, but accounts for 29" in (check(project, "columns").description or "")


def flip_a_byte(project: Project, stage: str, chunk: int) -> Path:
    path = project.store.objects.path(project.store.manifest("toy", stage).chunks[chunk].output)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("stage", ["raw", "sequences"])
def test_a_damaged_object_fails_the_check_and_stops_what_is_downstream(project: Project, stage: str) -> None:
    assert project.run().success
    path = flip_a_byte(project, stage, 1)
    damaged = project.run()
    assert not damaged.success
    failed = [check for check in damaged.get_asset_check_evaluations() if not check.passed]
    assert [check.asset_key for check in failed] == [asset_key("toy", stage)]
    assert f"object {path.stem} is damaged; `tokenloom verify` removes it" in (failed[0].description or "")
    assert list(data_versions(damaged)) == list(STAGES[: STAGES.index(stage) + 1])
    path.unlink()
    assert project.run().success


def test_a_damaged_first_chunk_fails_the_run_with_one_sentence(project: Project) -> None:
    assert project.run().success
    path = flip_a_byte(project, "raw", 0)
    assert failure(project.run()).startswith(f"object {path.stem} is damaged")
