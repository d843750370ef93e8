"""Materialization through Dagster on a real store: what it builds and shows, and how errors and damage surface."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from support.dagster_project import SECTIONS, Project, failure, new_project, runnable
from support.datasets_on_disk import STAGES
from support.processes import DEADLINE
from support.waiting import until
from tokenloom.assets.building.build import Build
from tokenloom.assets.dagster.checks import stage_checks
from tokenloom.assets.dagster.names import asset_key
from tokenloom.resources.store import ArtifactStore


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
    expected = {(check.stage, check.name) for check in stage_checks(project.config)}
    assert {(check.asset_key.path[-1], check.check_name) for check in checks} == expected
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
        for count in ("rows_in", "rows_out", "rejected", "filtered"):
            assert metadata[count] == manifest.total(count)
        assert metadata.get("tokens", 0) == manifest.total("tokens")
        if stage != "schema":  # its rows are columns
            assert metadata["dagster/row_count"] == sum(table.num_rows for table in tables)
        schema = metadata["dagster/column_schema"]
        assert [(column.name, column.type) for column in schema.columns] == [
            (field.name, str(field.type)) for field in tables[0].schema
        ]
        assert all(column.description for column in schema.columns)
        assert isinstance(metadata["seconds"], float)
        path = metadata["dagster/uri"]
        assert Path(path) == store.objects.path(manifest.chunks[0].output)
    found = shown["sequences"]
    tables = [store.objects.get(chunk.output) for chunk in store.manifest("toy", "sequences").chunks]
    trained = sum(sum(map(sum, table["trained"].to_pylist())) for table in tables)
    tokens = sum(len(ids) for table in tables for ids in table["input_ids"].to_pylist())
    assert found["tokens"] == tokens
    assert found["trained_fraction"] == trained / tokens
    assert sum(count for name, count in found.items() if name.startswith("trained_tokens/")) == trained
    assert next(iter(found)) == "sample"
    assert ("fill" in found) == (packing != "none")


def sample_of(result: dg.ExecuteInProcessResult, stage: str, label: str = "sample") -> list[dict[str, Any]]:
    made = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    (event,) = [each for each in made if each.asset_key.path[-1] == stage]
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


@pytest.mark.parametrize("length", [5, 3000])
def test_the_page_shows_one_marked_row_at_once(project: Project, length: int) -> None:
    """Dagster's page shows a Markdown text of less than 1,000 characters, and a link to a longer one."""
    rows = [{"instruction": "ask " * length, "input": "", "output": f"{row} answers " * length} for row in range(6)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (project.pipelines / "rows" / "a.jsonl").write_text(lines, encoding="utf-8")
    project.write(tokenizer={**SECTIONS["tokenizer"], "max_length": 16384})
    metadata = stage_metadata(project.run())
    for stage in ("prompts", "sequences"):
        sample = metadata[stage]["sample"]
        assert len(sample) < 1000 and sample.count("```text") == (4 if length == 5 else 1)
        assert sample.count("⟦") == sample.count("⟧") >= 2 and "⟦0 answers" in sample
        assert metadata[stage].get("more_samples", "").count("```text") == (0 if length == 5 else 4)


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


def test_a_failed_stage_shows_its_rejects(project: Project) -> None:
    (project.pipelines / "rows" / "a.jsonl").write_text("{oops\n" * 9, encoding="utf-8")
    result = project.run()
    (event,) = [event for event in result.all_events if event.is_step_failure]
    failed = event.step_failure_data.user_failure_data
    (observed,) = [
        event.asset_observation_data.asset_observation
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_OBSERVATION
    ]
    assert observed.asset_key == asset_key("toy", "raw")
    assert failed is not None
    for metadata in (failed.metadata, observed.metadata):
        table = metadata["rejects"]
        assert isinstance(table, dg.TableMetadataValue)
        (row,) = [dict(record.data) for record in table.records]
        assert (row["rows"], row["first"], row["example"]) == (9, "a.jsonl:1", "{oops")
    (check,) = [check for check in result.get_asset_check_evaluations() if not check.passed]
    assert (check.asset_key, check.check_name) == (asset_key("toy", "sequences"), "rejects")


def test_nothing_after_a_stage_that_breaks_its_contract_is_materialized(project: Project) -> None:
    for _ in Build(project.config, project.store).run_all():
        pass
    manifest = project.store.manifest("toy", "columns")
    first, *others = manifest.chunks
    fewer = replace(first, rows_in=first.rows_in - 1, rows_out=first.rows_out - 1)
    project.store.put_manifest(replace(manifest, chunks=(fewer, *others)))
    result = project.run("prompts", "tokens")
    assert not result.success
    assert [*data_versions(result)] == ["prompts"]
    (check,) = [check for check in result.get_asset_check_evaluations() if not check.passed]
    assert (check.asset_key, check.check_name) == (asset_key("toy", "prompts"), "contract")
    assert check.severity == dg.AssetCheckSeverity.ERROR


def flip_a_byte(project: Project, stage: str, chunk: int) -> Path:
    path = project.store.objects.path(project.store.manifest("toy", stage).chunks[chunk].output)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def run_check(project: Project, stage: str, name: str) -> dg.AssetCheckEvaluation:
    """The result of one check, run alone."""
    definitions = runnable(project.config, project.root)
    key = dg.AssetCheckKey(asset_key("toy", stage), name)
    job = dg.define_asset_job("alone", selection=dg.AssetSelection.checks(key))
    with_job = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
    with dg.DagsterInstance.ephemeral() as instance:
        result = with_job.resolve_job_def("alone").execute_in_process(instance=instance)
    assert data_versions(result) == {}
    (evaluated,) = result.get_asset_check_evaluations()
    return evaluated


@pytest.mark.parametrize("stage", STAGES)
def test_rereading_names_the_damage_and_the_next_run_heals_it(project: Project, stage: str) -> None:
    intact = data_versions(project.run())
    assert run_check(project, "sequences", "stored").passed
    chunk = len(project.store.manifest("toy", stage).chunks) - 1
    path = flip_a_byte(project, stage, chunk)
    found = run_check(project, "sequences", "stored")
    assert not found.passed
    assert stage in (found.description or "") and path.stem in (found.description or "")
    healed = project.run()
    assert healed.success
    assert data_versions(healed) == intact
    shown = stage_metadata(healed)
    assert {name: one["chunks"] - one["chunks_reused"] for name, one in shown.items()} == {
        name: int(name == stage) for name in STAGES
    }
    assert run_check(project, "sequences", "stored").passed


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_heals_what_it_reads(project: Project, stage: str) -> None:
    intact = data_versions(project.run())
    path = flip_a_byte(project, stage, 0)  # the sample is read from the first chunk
    healed = project.run()
    assert healed.success
    assert data_versions(healed) == intact
    assert run_check(project, "sequences", "stored").passed
    assert path.exists()


def test_one_stage_alone_is_materialized(project: Project) -> None:
    assert project.run().success
    made = project.run("tokens")
    assert made.success
    assert list(data_versions(made)) == ["tokens"]
    assert {check.asset_key for check in made.get_asset_check_evaluations()} == {asset_key("toy", "tokens")}


def test_a_second_run_waits_for_the_first_and_reuses_it(project: Project) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(1) as thread, project.store.building_alone("toy", said.append):
        second = thread.submit(project.run)
        lock = next((project.root / "scratch").glob("*.only"))
        until(second.running)
        first = {report.name: report.digest for report in Build(project.config, project.store).run_all()}
        assert not second.done() and lock.exists()
    result = second.result(DEADLINE)
    assert data_versions(result) == first
    assert all(one["chunks_reused"] == one["chunks"] for one in stage_metadata(result).values())
    assert not said
