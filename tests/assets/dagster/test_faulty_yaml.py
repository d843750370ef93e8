"""One faulty YAML among others: it becomes an asset that says why it cannot run, and the others are as before."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml

from support.dagster_project import Project, new_project
from support.datasets_on_disk import STAGES
from tokenloom.assets.building import target
from tokenloom.assets.dagster.names import asset_key
from tokenloom.config.dataset import load_config
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
    "freshness of nothing": ("dataset: {name: rows}\ndagster: {freshness: 0m}\n", "must be at least 1m, got '0m'"),
    "freshness upside down": (
        "dataset: {name: rows}\ndagster: {freshness: {fail: 1h, warn: 2h}}\n",
        "warn (2h) must be shorter than fail (1h)",
    ),
    "owner": ("dataset: {name: rows}\ndagster: {owners: [a@b.c]}\n", "'a@b.c' is neither an e-mail address"),
    "no team": ("dataset: {name: rows}\ndagster: {owners: ['team:']}\n", "'team:' is neither"),
    "deps on itself": ("dataset: {name: rows}\ndagster: {deps: [faulty/columns]}\n", "faulty → faulty"),
    "deps of a mixture": (
        "mixture: [{dataset: one}]\ndagster: {deps: [two/raw]}\n",
        "dagster.deps: a mixture depends on its datasets alone",
    ),
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


def test_a_circle_through_a_mixture_is_the_fault_of_the_dataset(project: Project) -> None:
    mixture = {"mixture": [{"dataset": "one"}]}
    (project.pipelines / "mix.yaml").write_text(yaml.safe_dump(mixture), encoding="utf-8")
    project.write("one", dagster={"deps": ["mix/mixture"]})
    definitions = load_definitions(project.pipelines)
    dg.Definitions.validate_loadable(definitions)
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    assert asset_key("one", "raw") not in specs
    description = specs[asset_key("one", "sequences")].description or ""
    assert "waits for what is made of the dataset itself" in description and "mix" in description
    assert {asset_key("mix", "mixture"), asset_key("two", "raw")} <= set(specs)
    assert (specs[asset_key("mix", "mixture")].description or "").startswith("Interleaves")


def test_what_dagster_refuses_is_the_fault_of_its_yaml(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of Dagster that the YAML's schema does not have."""
    project.write("one", dagster={"owners": ["team:data"]})
    monkeypatch.setattr("dagster._core.definitions.utils.is_valid_owner", lambda owner: False)
    definitions = load_definitions(project.pipelines)
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    assert "dagster: Dagster does not accept it: Invalid owner 'team:data'" in (
        specs[asset_key("one", "sequences")].description or ""
    )
    assert asset_key("two", "raw") in specs


def test_each_yaml_is_read_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mix", "mixed"):
        mixture = {"mixture": [{"dataset": "one"}, {"dataset": "two"}]}
        (project.pipelines / f"{name}.yaml").write_text(yaml.safe_dump(mixture), encoding="utf-8")
    read: list[str] = []
    monkeypatch.setattr(target, "load_config", lambda path: read.append(path.name) or load_config(path))
    load_definitions(project.pipelines)
    assert sorted(read) == sorted(path.name for path in project.pipelines.glob("*.yaml"))


@pytest.mark.parametrize("owner", ["team:a-b", "team:Data Science", "first.last+x@data.example.com"])
def test_owners_that_dagster_accepts_are_accepted(project: Project, owner: str) -> None:
    project.write("one", dagster={"owners": [owner]})
    (spec,) = [
        spec
        for spec in load_definitions(project.pipelines).resolve_all_asset_specs()
        if spec.key == asset_key("one", "raw")
    ]
    assert spec.owners == [owner]


NAMES = {
    "- and _": ("a-b.yaml", "a_b.yaml"),
    "- . and _": ("a-b.yaml", "a.b.yaml", "a_b.yaml"),
    "two suffixes": ("a.yaml", "a.yml"),
    "names of files": ("a.yaml", "a.yml", "a_yml.yaml", "a_yml.yml"),
    "a dataset of the same name": ("one.yml",),
    "a dataset of the name of a file": ("two.yml", "two.yml.yaml"),
    "other letters": ("\u00e9.yaml", "\u00fc.yaml"),
    "case": ("A.yaml", "a.yaml", "One.yaml"),
    "words of Dagster": ("config.yaml", "type.yaml", "config.yml"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_faulty_yamls_of_like_names_have_an_asset_each(project: Project, names: tuple[str, ...]) -> None:
    before = {spec.key for spec in load_definitions(project.pipelines).resolve_all_asset_specs()}
    for name in names:
        (project.pipelines / name).write_text("dataset: {nam: rows}\n", encoding="utf-8")
    definitions = load_definitions(project.pipelines)
    dg.Definitions.validate_loadable(definitions)
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    assert before <= specs.keys()
    added = [specs[key].description or "" for key in specs.keys() - before]
    assert sorted(text.partition(" is faulty")[0] for text in added) == sorted(names)
    checked = {key.asset_key for key in definitions.resolve_asset_graph().asset_check_keys if key.name == "yaml"}
    assert checked == specs.keys() - before
