"""A mixture in Dagster: an asset downstream of its datasets' sequences, its metadata, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from support.dagster_project import SECTIONS, Project, failure, new_project
from support.datasets_on_disk import STAGES
from tokenloom import DataPipeline
from tokenloom.assets.dagster.embedding import JOB
from tokenloom.assets.dagster.names import StoreResource, asset_key
from tokenloom.definitions import load_definitions
from tokenloom.errors import ConfigError
from tokenloom.loaders import open_mixture


@pytest.fixture
def project(tmp_path: Path, tokenizer_folder: Path) -> Project:
    """Two datasets with the same tokenizer, and the mixture `mix` of both."""
    made = new_project(tmp_path)
    tokenizer = {"name_or_path": str(tokenizer_folder), "max_length": 64}
    made.write(tokenizer=tokenizer)
    made.write("other", tokenizer=tokenizer, dataset={"name": "rows/a.jsonl"})
    mix(made)
    return made


def mix(project: Project, *weights: float, **sections: Any) -> Path:
    one, other = weights or (0.75, 0.25)
    sources = [{"dataset": "toy", "weight": one, "by": "rows"}, {"dataset": "other", "weight": other, "epochs": 2.0}]
    path = project.pipelines / "mix.yaml"
    path.write_text(yaml.safe_dump({"mixture": sources, **sections}), encoding="utf-8")
    return path


def run(project: Project) -> dg.ExecuteInProcessResult:
    resource = dg.Definitions(resources={"store": StoreResource(root=str(project.root))})
    loaded = load_definitions(project.pipelines)
    with_store = dg.Definitions(assets=loaded.assets, asset_checks=loaded.asset_checks, resources=resource.resources)
    keys = list(with_store.resolve_asset_graph().materializable_asset_keys)
    with dg.DagsterInstance.ephemeral() as instance:
        job = with_store.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(instance=instance, asset_selection=keys, raise_on_error=False)


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    found = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    return {"/".join(made.asset_key.path): made for made in found}


def test_the_asset_is_downstream_of_the_sequences(project: Project) -> None:
    mix(project, schedule="0 3 * * *")
    definitions = load_definitions(project.pipelines)
    dg.Definitions.validate_loadable(definitions)
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    assert len(specs) == 2 * (len(STAGES) + 1) + 1
    spec = specs[asset_key("mix", "mixture")]
    assert {dep.asset_key for dep in spec.deps} == {asset_key("toy", "sequences"), asset_key("other", "sequences")}
    (schedule,) = list(definitions.schedules or [])
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.job_name) == ("0 3 * * *", JOB)
    with dg.DagsterInstance.ephemeral() as instance:
        tick = schedule.evaluate_tick(dg.build_schedule_context(instance))
    (request,) = tick.run_requests or []
    sources = {asset_key("toy", "source"), asset_key("other", "source")}
    assert set(request.asset_selection or []) == set(specs) - sources


def test_a_run_publishes_what_a_build_publishes(project: Project) -> None:
    result = run(project)
    assert result.success
    made = materialized(result)["mix/mixture"]
    mixed = open_mixture("mix", store=project.root)
    stored = project.store.manifest("mix", "mixture").digest
    assert (made.tags or {})["dagster/data_version"] == stored
    shown = {name: entry.value for name, entry in made.metadata.items()}
    assert (shown["dagster/row_count"], shown["digest"]) == (len(mixed), stored)
    for share in mixed.shares():
        assert shown[f"row_share/{share.dataset}"] == share.row_share
        assert abs(share.row_share - {"toy": 0.75, "other": 0.25}[share.dataset]) < 1 / len(mixed)
        assert shown[f"epochs/{share.dataset}"] == share.epochs
    assert [record.data["dataset"] for record in shown["shares"].records] == ["toy", "other"]
    DataPipeline.from_config(project.pipelines / "mix.yaml", project.root).unwrap().build().unwrap()
    assert project.store.manifest("mix", "mixture").digest == stored


def test_other_weights_give_another_code_version_and_digest(project: Project) -> None:
    def identity() -> tuple[Any, str]:
        (spec,) = [s for s in load_definitions(project.pipelines).resolve_all_asset_specs() if s.key.path[0] == "mix"]
        assert run(project).success
        return spec.code_version, project.store.manifest("mix", "mixture").digest

    before = identity()
    mix(project, dataloader={"batch_size": 3})
    assert identity() == before
    mix(project, 0.5, 0.5)
    assert all(one != other for one, other in zip(identity(), before, strict=True))


def test_a_wrong_yaml_fails_validation(project: Project) -> None:
    path = mix(project)
    project.write("other", length={"packing": "concat"}, tokenizer=SECTIONS["tokenizer"])
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines, strict=True)
    (fault,) = caught.value.faults
    assert (fault.place, fault.message.partition(";")[0]) == (f"{path}:1", "mixture: other is packed, but toy is not")
    project.write("other", dataset={"nam": "x"})
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines, strict=True)
    assert len(caught.value.faults) == len(set(caught.value.faults)) == 2


def test_an_undeclared_dataset_fails_the_step_with_its_name(project: Project) -> None:
    (project.pipelines / "other.yaml").rename(project.folder / "other.yaml")
    dg.Definitions.validate_loadable(load_definitions(project.pipelines))
    result = run(project)
    assert "declares 'other', and the store does not hold it" in failure(result)
    assert set(materialized(result)) == {f"toy/{stage}" for stage in STAGES}
