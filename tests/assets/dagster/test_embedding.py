"""Datasets in a user's own Dagster project: upstream assets, arguments, the YAML's section `dagster:`, overriding."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
import yaml
from dagster.components.component_scaffolding import scaffold_object

from support.dagster_project import SECTIONS, new_project
from support.datasets_on_disk import STAGES
from support.growing_project import WAYS, new_package
from support.soak import SOAK, machine
from tokenloom.assets.building.target import DeclaredFolder, read_folder
from tokenloom.assets.dagster.definitions import declared_definitions
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.config import PipelineConfig
from tokenloom.dagster import StoreResource, TokenloomDatasets, dataset_definitions
from tokenloom.resources.store import ArtifactStore

UPSTREAM = dg.AssetKey(["crawl", "pages"])
RAW, SEQUENCES = dg.AssetKey(["pages", "raw"]), dg.AssetKey(["pages", "sequences"])


def imported(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])  # Dagster removes the first one in its processes
    return importlib.import_module(f"{new_package(folder, way)}.definitions")


def materialized(instance: dg.DagsterInstance, run_id: str) -> dict[dg.AssetKey, dg.AssetMaterialization]:
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    made = [record.event_log_entry.asset_materialization for record in records]
    return {each.asset_key: each for each in made if each is not None}


def assert_each_run_reads_its_own_file(runs: int, instance: dg.DagsterInstance, run: Callable[[], str]) -> None:
    rows, versions = 0, list[str]()
    for number in range(runs):
        made = materialized(instance, run())
        rows += 20 + number
        assert made[UPSTREAM].metadata["written"].value == 20 + number
        assert [made[key].metadata["dagster/row_count"].value for key in (RAW, SEQUENCES)] == [rows, rows]
        versions.append((made[SEQUENCES].tags or {})["dagster/data_version"])
    assert len(set(versions)) == runs


@machine("daemon")
@pytest.mark.parametrize("way", WAYS)
def test_each_run_reads_the_file_of_its_own_run(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(tmp_path, way, monkeypatch)
    job = module.defs.resolve_job_def("in_process")
    with dg.DagsterInstance.ephemeral() as instance:
        assert_each_run_reads_its_own_file(10, instance, lambda: job.execute_in_process(instance=instance).run_id)


@machine("daemon")
@pytest.mark.parametrize("way", WAYS if SOAK else ["function"])
def test_each_run_reads_the_file_of_its_own_run_in_processes(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(tmp_path, way, monkeypatch)
    with dg.instance_for_test() as instance:

        def run() -> str:
            with dg.execute_job(dg.reconstructable(module.multiprocess), instance=instance) as result:
                assert result.success
                return result.run_id

        assert_each_run_reads_its_own_file(10 if SOAK else 3, instance, run)


def test_a_subclass_changes_specs_and_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defs: dg.Definitions = imported(tmp_path, "subclass", monkeypatch).defs
    specs = {spec.key: spec for spec in defs.resolve_all_asset_specs()}
    del specs[UPSTREAM]
    assert {spec.metadata["license"] for spec in specs.values()} == {"CC0"}
    assert {dep.asset_key for dep in specs[RAW].deps} == {UPSTREAM, dg.AssetKey(["pages", "source"])}
    with dg.DagsterInstance.ephemeral() as instance:
        run = defs.resolve_job_def("in_process").execute_in_process(instance=instance)
        made = materialized(instance, run.run_id)
    assert [made[key].metadata["dataset"].value for key in specs if key in made] == ["pages"] * len(STAGES)


# What a project passes, and the section `dagster:`. Neither changes what is built.

SECTION = {
    "owners": ["team:text"],
    "tags": {"domain": "web", "tier": "raw"},
    "deps": ["crawl/pages"],
    "group": "in_yaml",
    "freshness": {"fail": "24h", "warn": "12h"},
}
PASSED: dict[str, Any] = {
    "deps": [["lake", "files"], dg.AssetKey("plain")],
    "key_prefix": "team/text",
    "group": "passed",
    "owners": ["ann@example.com"],
    "tags": {"tier": "gold"},
    "automation_condition": dg.AutomationCondition.eager(),
    "executor": dg.in_process_executor,
}


def specs_of(config: PipelineConfig, **passed: Any) -> dict[str, dg.AssetSpec]:
    """The specs, by the last part of their keys."""
    specs = dataset_definitions(config, **{"store": StoreResource(), **passed}).resolve_all_asset_specs()
    return {spec.key.path[-1]: spec for spec in specs if "toy" in spec.key.path}


def keys(*texts: str) -> set[dg.AssetKey]:
    return {dg.AssetKey.from_user_string(text) for text in texts}


def upstream(spec: dg.AssetSpec) -> set[dg.AssetKey]:
    return {dep.asset_key for dep in spec.deps}


def in_yaml(**section: Any) -> PipelineConfig:
    return PipelineConfig.from_mapping({"name": "toy", **SECTIONS, "dagster": section})


def test_the_section_dagster_reaches_the_specs() -> None:
    specs = specs_of(in_yaml(**SECTION))
    assert set(specs) == set(STAGES)  # the upstream asset takes the place of the source
    for spec in specs.values():
        assert (spec.group_name, spec.owners) == ("in_yaml", ["team:text"])
        assert spec.tags.items() >= SECTION["tags"].items()
    assert upstream(specs["raw"]) == keys("crawl/pages")
    policy = dg.FreshnessPolicy.time_window(timedelta(hours=24), timedelta(hours=12))
    assert {stage: spec.freshness_policy for stage, spec in specs.items()} == {
        **dict.fromkeys(STAGES),
        "sequences": policy,
    }


def test_the_cron_line_of_observations_is_that_of_the_yaml() -> None:
    condition = specs_of(in_yaml(observe="7 4 * * *"))["source"].automation_condition
    assert condition is not None
    assert condition == specs_of(in_yaml(observe="7 4 * * *"))["source"].automation_condition
    assert condition != specs_of(in_yaml())["source"].automation_condition
    assert "7 4 * * *" in str(condition.get_label())


def test_what_python_passes_comes_before_the_yaml() -> None:
    specs = specs_of(in_yaml(**SECTION), **PASSED)
    assert {spec.key for spec in specs.values()} == keys(*(f"team/text/toy/{stage}" for stage in STAGES))
    for spec in specs.values():
        assert (spec.group_name, set(spec.owners)) == ("passed", {"ann@example.com", "team:text"})
        assert spec.tags.items() >= {"domain": "web", "tier": "gold"}.items()
        assert spec.automation_condition == dg.AutomationCondition.eager()
    assert upstream(specs["raw"]) == keys("lake/files", "plain", "crawl/pages")
    assert upstream(specs["schema"]) == keys("team/text/toy/raw")
    assert dataset_definitions(in_yaml(), **PASSED).executor is dg.in_process_executor


def test_nothing_of_it_changes_what_is_built(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    plain = project.run()
    assert plain.success
    digests = {stage: project.store.manifest("toy", stage).digest for stage in STAGES}
    versions = {stage: spec.code_version for stage, spec in specs_of(project.config).items()}
    project.write("toy", dagster=SECTION)
    passed = {**PASSED, "store": StoreResource(root=str(project.root))}
    assert {stage: versions[stage] for stage in STAGES} == {
        stage: spec.code_version for stage, spec in specs_of(project.config, **passed).items()
    }
    job = dataset_definitions(project.config, **passed).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        made = materialized(instance, job.execute_in_process(instance=instance).run_id)
    assert {key.path[-1]: (each.tags or {})["dagster/data_version"] for key, each in made.items()} == digests
    assert all(each.metadata["chunks_reused"] == each.metadata["chunks"] for each in made.values())


def test_datasets_of_one_job_can_have_stores_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to the project's resource `store`, and to an address from the environment."""
    monkeypatch.setenv("OTHER_STORE", str(tmp_path / "b"))
    project = new_project(tmp_path)
    configs = [project.config.model_copy(update={"name": name}) for name in ("one", "two", "three")]
    stores = [StoreResource(root=str(tmp_path / "a")), StoreResource(root=dg.EnvVar("OTHER_STORE")), None]
    defs = dg.Definitions.merge(
        dg.Definitions(resources={"store": StoreResource(root=str(tmp_path / "c"))}),
        *(dataset_definitions(config, store=store) for config, store in zip(configs, stores, strict=True)),
    )
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success
    for folder, config in zip("abc", configs, strict=True):
        assert ArtifactStore(tmp_path / folder).manifest(config.dataset_name, "sequences").chunks


def test_a_component_has_the_same_arguments(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    project.write("toy", dagster=SECTION)
    attributes = {name: PASSED[name] for name in ("key_prefix", "group", "owners", "tags")}
    component = TokenloomDatasets(path="pipelines", deps=["lake/files", "plain"], **attributes)
    context = cast(dg.ComponentLoadContext, SimpleNamespace(path=tmp_path))
    found = {
        spec.key.path[-1]: spec
        for spec in component.build_defs(context).resolve_all_asset_specs()
        if "toy" in spec.key.path
    }
    alone = {name: value for name, value in PASSED.items() if name not in ("automation_condition", "executor")}
    assert found == specs_of(project.config, **alone)


def test_a_subclass_changes_the_specs_of_mixtures(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    (project.pipelines / "mix.yaml").write_text("mixture: [{dataset: toy}]\n", encoding="utf-8")
    licensed = Embedding(get_asset_spec=lambda spec: spec.merge_attributes(metadata={"license": "CC0"}))
    definitions = declared_definitions(read_folder(project.pipelines), replace(licensed, store=StoreResource()))
    found = {spec.key: spec.metadata.get("license") for spec in definitions.resolve_all_asset_specs()}
    assert found == dict.fromkeys(keys("mix/mixture", "toy/source", *(f"toy/{stage}" for stage in STAGES)), "CC0")


def test_a_subclass_cannot_change_keys() -> None:
    def renamed(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(key=["other", *spec.key.path])

    with pytest.raises(dg.DagsterInvariantViolationError, match="set key_prefix"):
        declared_definitions(DeclaredFolder({Path("toy.yaml"): in_yaml()}, {}), Embedding(get_asset_spec=renamed))


def test_a_component_is_scaffolded_with_the_yaml_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `dg scaffold defs` does it with its option `--rows`, without its processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    rows = (json.dumps({"instruction": f"Square {n}", "output": f"{n * n}"}) for n in range(60))
    (tmp_path / "squares.jsonl").write_text("\n".join(rows))
    given = json.dumps({"rows": "squares.jsonl"})
    scaffold_object(tmp_path / "text", "tokenloom.TokenloomDatasets", given, "yaml", tmp_path)
    made = yaml.safe_load((tmp_path / "text" / "defs.yaml").read_text())
    assert made == {"type": "tokenloom.TokenloomDatasets", "attributes": {"path": "pipelines"}}
    folder = tmp_path / "text" / "pipelines"
    assert [*read_folder(folder).configs] == [folder / "squares.yaml"]
