"""One faulty YAML among others: it becomes an asset that says why it cannot run, and the others are as before."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml

from support.dagster_project import Project, new_project
from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.names import asset_key
from tokenloom.dagster import StoreResource
from tokenloom.definitions import load_definitions


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    for name in ("one", "two", "three", "four"):
        made.write(name, schedule="0 3 * * *")
    return made


FAULTS = {
    "typo": ("dataset: {nam: rows}\n", "dataset.nam: unknown setting"),
    "not YAML": ("dataset: [\n", "not valid YAML"),
    "bytes": ("\0\0", "faulty.yaml"),
    "cron": ("dataset: {name: rows}\nschedule: 99 3 * * *\n", "must be a cron expression"),
    "same name": ("name: one\ndataset: {name: rows}\n", "dataset 'one' is already declared in"),
    "unknown member": ("mixture: [{dataset: one}, {dataset: one}]\n", "listed twice"),
    "misfit": ("mixture: [{dataset: one}, {dataset: packed}]\n", "packed is packed, but one is not"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_others_load_and_the_faulty_one_says_why(project: Project, fault: str) -> None:
    text, message = FAULTS[fault]
    if fault == "misfit":
        project.write("packed", length={"packing": "concat"})
    before = {spec.key: spec.code_version for spec in load_definitions(project.pipelines).resolve_all_asset_specs()}
    path = project.pipelines / ("zz faulty.yaml" if fault == "same name" else "faulty.yaml")
    path.write_text(text, encoding="utf-8")
    definitions = load_definitions(project.pipelines)
    dg.Definitions.validate_loadable(definitions)
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    assert {key: specs[key].code_version for key in before} == before
    (faulty,) = [spec for key, spec in specs.items() if key not in before]
    assert message in (faulty.description or "")
    graph = definitions.resolve_asset_graph()
    assert not graph.get(faulty.key).is_executable
    (check,) = [key for key in graph.asset_check_keys if key.asset_key == faulty.key]
    job = dg.define_asset_job("checked", selection=dg.AssetSelection.checks(check))
    with_job = dg.Definitions(asset_checks=definitions.asset_checks, assets=definitions.assets, jobs=[job])
    resource = dg.Definitions(resources={"store": StoreResource(root=str(project.root))})
    result = dg.Definitions.merge(with_job, resource).resolve_job_def("checked").execute_in_process()
    (evaluated,) = result.get_asset_check_evaluations()
    assert not evaluated.passed
    assert message in (evaluated.description or "")
    assert len([*(definitions.schedules or [])]) == 4


def test_a_mixture_of_a_faulty_dataset_is_faulty_too(project: Project) -> None:
    sources = [{"dataset": "one"}, {"dataset": "two"}]
    (project.pipelines / "mix.yaml").write_text(yaml.safe_dump({"mixture": sources}), encoding="utf-8")
    (project.pipelines / "two.yaml").write_text("dataset: {nam: rows}\n", encoding="utf-8")
    specs = {spec.key: spec for spec in load_definitions(project.pipelines).resolve_all_asset_specs()}
    for name in ("mix", "two"):
        assert "dataset.nam: unknown setting" in (specs[asset_key(name, "sequences")].description or "")
    assert {asset_key(name, stage) for name in ("one", "three", "four", "toy") for stage in STAGES} <= set(specs)


def test_a_repaired_yaml_has_its_assets_again(project: Project) -> None:
    path = project.pipelines / "one.yaml"
    good = path.read_text()
    path.write_text("dataset: {nam: rows}\n", encoding="utf-8")
    assert asset_key("one", "raw") not in {s.key for s in load_definitions(project.pipelines).resolve_all_asset_specs()}
    path.write_text(good, encoding="utf-8")
    assert asset_key("one", "raw") in {s.key for s in load_definitions(project.pipelines).resolve_all_asset_specs()}
