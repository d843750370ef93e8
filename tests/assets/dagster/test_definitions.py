"""Definitions from YAML files: assets, checks, jobs, schedules, code versions, and errors in a file."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from subprocess import STDOUT
from typing import Any

import dagster as dg
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator

from support.dagster_project import SECTIONS, WORKSPACE, Project, new_project, runnable
from support.datasets_on_disk import STAGES
from support.processes import Ended, run
from tokenloom.assets.building.chain import code_versions, stage_named
from tokenloom.assets.dagster.embedding import JOB
from tokenloom.assets.dagster.names import DATASET_TAG, asset_key
from tokenloom.config import PipelineConfig
from tokenloom.definitions import load_definitions
from tokenloom.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path)


def test_assets_follow_the_stages(project: Project) -> None:
    specs = {spec.key: spec for spec in load_definitions(project.pipelines).resolve_all_asset_specs()}
    versions = code_versions(project.config)
    source = asset_key("toy", "source")
    assert set(specs) == {source, *(asset_key("toy", stage) for stage in STAGES)}
    for stage in STAGES:
        spec = specs[asset_key("toy", stage)]
        above = {asset_key("toy", above) for above in stage_named(stage).upstream} or {source}
        assert {dep.asset_key for dep in spec.deps} == above
        assert (spec.group_name, spec.kinds, spec.code_version) == ("toy", {"arrow"}, versions[stage])
        assert spec.description


def test_one_step_makes_the_stages_of_a_dataset(project: Project) -> None:
    graph = load_definitions(project.pipelines).resolve_asset_graph()
    (made,) = {graph.get(asset_key("toy", stage)).assets_def for stage in STAGES}
    assert (made.keys, made.can_subset) == ({asset_key("toy", stage) for stage in STAGES}, True)
    assert made.op.pool == made.op.name == "toy__build"


def test_every_stage_has_a_blocking_check(project: Project) -> None:
    graph = load_definitions(project.pipelines).resolve_asset_graph()
    assert {key.asset_key for key in graph.asset_check_keys} == {asset_key("toy", stage) for stage in STAGES}
    blocking = [key for key in graph.asset_check_keys if graph.get_check_spec(key).blocking]
    assert {key.asset_key for key in blocking} == {asset_key("toy", stage) for stage in STAGES}
    assert {key.name for key in blocking} == {"contract"}


@pytest.mark.parametrize("name", ["a-b.c", "2024.01", "config", "class", "x_y"])
def test_any_dataset_name_gives_valid_definitions(project: Project, name: str) -> None:
    project.write(name, schedule="0 3 * * *")
    definitions = load_definitions(project.pipelines)
    dg.Definitions.validate_loadable(definitions)
    assert definitions.resolve_job_def(JOB).asset_layer.selected_asset_keys >= {asset_key(name, "raw")}
    alone = runnable(PipelineConfig.from_file(project.pipelines / f"{name}.yaml"))
    dg.Definitions.validate_loadable(alone)
    assert alone.resolve_job_def(JOB).asset_layer.selected_asset_keys >= {asset_key(name, "raw")}


def test_a_schedule_has_the_cron_line_and_starts_stopped(project: Project) -> None:
    project.write("nightly", schedule="30 2 * * 1-5")
    definitions = load_definitions(project.pipelines)
    (schedule,) = list(definitions.schedules or [])
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.job_name) == ("30 2 * * 1-5", JOB)
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    assert schedule.execution_timezone == "UTC" and "30 2 * * 1-5, UTC time" in (schedule.description or "")
    with dg.DagsterInstance.ephemeral() as instance:
        tick = schedule.evaluate_tick(
            dg.build_schedule_context(instance, repository_def=definitions.get_repository_def())
        )
    (request,) = tick.run_requests or []
    assert set(request.asset_selection or []) == {asset_key("nightly", stage) for stage in STAGES}
    assert request.tags[DATASET_TAG] == "nightly"


def test_a_schedule_has_the_time_zone_of_the_yaml(project: Project) -> None:
    project.write("nightly", schedule={"cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    (schedule,) = list(load_definitions(project.pipelines).schedules or [])
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 2 * * *", "Europe/Berlin")
    assert "30 2 * * *, Europe/Berlin time" in (schedule.description or "")
    for day, expected in (("03-28", ["01:30", "01:00", "00:30"]), ("10-24", ["00:30", "01:30", "01:30"])):
        # On 29 March 2026, 02:30 does not exist in Berlin; on 25 October it exists twice, and the schedule ticks once.
        start = datetime.fromisoformat(f"2026-{day}T00:00+00:00").timestamp()
        ticks = schedule_execution_time_iterator(start, schedule.cron_schedule, schedule.execution_timezone)
        assert [f"{tick.astimezone(UTC):%H:%M}" for tick in islice(ticks, 3)] == expected


@pytest.mark.parametrize("zone", ["Europe/Berlni", "europe/berlin", "Berlin"])
def test_an_unknown_time_zone_is_refused_with_the_nearest(project: Project, zone: str) -> None:
    path = project.write("cron", schedule={"cron": "0 3 * * *", "timezone": zone})
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines, strict=True)
    (fault,) = caught.value.faults
    assert fault.place == f"{path}:{line_of(path, '  timezone:')}"
    assert fault.message == f"schedule.timezone: '{zone}' is not a known time zone; did you mean Europe/Berlin?"


def test_a_folder_without_schedules_has_no_job(project: Project) -> None:
    assert not load_definitions(project.pipelines).jobs


def changed_versions(**sections: Any) -> set[str]:
    """The stages whose code version differs from that of `SECTIONS`."""

    def versions(settings: dict[str, Any]) -> dict[str, str | None]:
        definitions = runnable(PipelineConfig.from_mapping({"name": "toy", **settings}))
        return {spec.key.path[-1]: spec.code_version for spec in definitions.resolve_all_asset_specs()}

    before, after = versions(SECTIONS), versions({**SECTIONS, **sections})
    return {stage for stage in STAGES if before[stage] != after[stage]}


@pytest.mark.parametrize(
    ("sections", "changed"),
    [
        ({"length": {"packing": "concat"}}, {"sequences"}),
        ({"tokenizer": {**SECTIONS["tokenizer"], "max_length": 32}}, {"sequences"}),
        ({"prompt_template": {**SECTIONS["prompt_template"], "template": "{input}{output}"}}, set(STAGES[2:])),
        ({"dataloader": {"batch_size": 3}, "schedule": "0 3 * * *", "compute": {"workers": 1}}, set()),
    ],
    ids=["packing", "max_length", "template", "settings that no stage reads"],
)
def test_an_edit_changes_the_code_versions_of_its_stage_and_downstream(
    sections: dict[str, Any], changed: set[str]
) -> None:
    assert changed_versions(**sections) == changed


def line_of(path: Path, start: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(start))


@pytest.mark.parametrize("cron", ["daily", "61 3 * * *", "0 3 * *", "0 3 * * * *", ""])
def test_a_schedule_that_dagster_does_not_accept_is_refused_at_its_line(project: Project, cron: str) -> None:
    path = project.write("cron", schedule=cron)
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines, strict=True)
    (fault,) = caught.value.faults
    assert fault.place == f"{path}:{line_of(path, 'schedule:')}"
    assert fault.message.startswith("schedule: ")


def test_every_fault_of_every_file_is_reported(project: Project) -> None:
    cron = project.write("cron", schedule="99 3 * * *")
    project.write("typo", dataset={"name": "rows", "colunms": ["a"]}, tokenizer={"max_length": 0})
    project.write("a name", dataset={"name": "rows"})
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines, strict=True)
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{project.pipelines}/").split(": ")[0] for line in lines] == [
        "a name.yaml:1",
        f"cron.yaml:{line_of(cron, 'schedule:')}",
        "typo.yaml:3",
        "typo.yaml:6",
    ]
    assert "did you mean columns?" in lines[2]


@pytest.mark.parametrize("other", ["toy", "t-y"])
def test_two_files_with_the_same_name_are_refused(project: Project, other: str) -> None:
    first = project.write("second", name=other)
    second = project.write("toy", name=other.replace("-", "."))
    with pytest.raises(ConfigError) as caught:
        load_definitions(project.pipelines, strict=True)
    (fault,) = caught.value.faults
    assert fault.place == f"{second}:{line_of(second, 'name:')}"
    assert str(first) in fault.message


@pytest.mark.parametrize("folder", ["none", "empty"])
def test_without_yaml_the_definitions_are_empty(tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".swap.yaml").write_text("not: [a", encoding="utf-8")
    assert list(load_definitions(tmp_path / folder).resolve_all_asset_specs()) == []
    assert str(tmp_path / folder) in caplog.text


def test_definitions_load_no_heavy_library(project: Project) -> None:
    code = (
        "import sys, tokenloom.definitions as d;"
        "assert len(d.defs.resolve_all_asset_specs()) == 8;"
        "print(sorted({'torch', 'transformers', 'pandera', 'datasets', 'polars', 'tokenizers'} & set(sys.modules)))"
    )
    done = run([sys.executable, "-c", code], env=project.environment())
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def validate(project: Project, **environment: str) -> Ended:
    home = project.folder / "home"
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", WORKSPACE]
    env = project.environment(DAGSTER_HOME=str(home), **environment)
    return run(command, cwd=project.folder, env=env, stderr=STDOUT)


def test_the_workspace_validates(project: Project) -> None:
    done = validate(project, TOKENLOOM_PIPELINES="")  # uses pipelines/ in the working directory
    assert done.returncode == 0, done.stdout
    assert "Validation successful for code location tokenloom" in done.stdout


def test_a_faulty_yaml_fails_validation_with_its_line(project: Project) -> None:
    path = project.write("wrong", tokenizer={"max_length": "many"})
    done = validate(project)
    assert done.returncode != 0
    assert f"{path}:4: tokenizer.max_length: expected an integer, got 'many'" in done.stdout
