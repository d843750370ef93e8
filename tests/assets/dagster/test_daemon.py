"""Datasets under a real dagster-daemon: schedules, automation, runs that overlap, outages, a faulty YAML."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

import tokenloom
from support.dagster_daemon import Daemon, running_daemon
from support.dagster_project import ROWS, Project, new_project
from support.datasets_on_disk import STAGES
from support.fault_proxy import FaultProxy
from support.free_port import free_port
from support.object_service import object_service
from support.postgres_server import postgres_programs, postgres_server
from support.processes import DEADLINE
from support.soak import machine
from support.waiting import until
from tokenloom.assets.dagster.names import DATASET_TAG

pytestmark = [
    machine("daemon"),
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="ends the processes of runs with their group"),
]
needs_postgres = pytest.mark.skipif(postgres_programs() is None, reason="needs PostgreSQL's programs")

WATCHED = ("toy", "other", "mix")
DATASETS = ("one", "two")
MORE = 20
"""Number of rows that a test adds."""

QUEUED = {
    "run_coordinator": {
        "module": "dagster._core.run_coordinator",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    },
    "concurrency": {"pools": {"granularity": "op", "default_limit": 1}},
}

EVERY_MINUTE = "* * * * *"


def append_rows(path: Path, count: int) -> None:
    """Append rows that no other file has."""
    with path.open("a", encoding="utf-8") as file:
        start = file.tell()
        for number in range(count):
            row = {"instruction": f"{path.stem} {start} {number}", "input": "", "output": f"{number}"}
            file.write(json.dumps(row) + "\n")


def write_project(folder: Path, tokenizer: Path) -> Project:
    """Two datasets and a mixture to watch; datasets, the mixture `both` and a faulty YAML with a schedule."""
    project = new_project(folder)
    shared: dict[str, Any] = {
        "tokenizer": {"name_or_path": str(tokenizer), "max_length": 64},
        "dagster": {"observe": "0 0 1 1 *"},
    }
    project.write("toy", **shared)
    project.write("other", **shared, dataset={"name": "rows/a.jsonl"})
    write_mixture(project, "mix", "toy", "other")
    for name in DATASETS:
        append_rows(project.pipelines / f"{name}.jsonl", ROWS)
        project.write(name, **shared, dataset={"name": f"{name}.jsonl"}, schedule=EVERY_MINUTE)
    write_mixture(project, "both", "one", "two", schedule=EVERY_MINUTE)
    project.write("faulty", **shared, dataset={"nam": "rows"}, schedule=EVERY_MINUTE)
    return project


def write_mixture(project: Project, name: str, *members: str, **sections: Any) -> None:
    settings = {"mixture": [{"dataset": member} for member in members], **sections}
    (project.pipelines / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=needs_postgres)])
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path
) -> Iterator[Daemon]:
    """The project, with the automation of what it watches switched on. Runs start at once."""
    project = write_project(tmp_path_factory.mktemp(request.param), tokenizer_folder)
    with postgres_server() if request.param == "postgres" else nullcontext() as url:
        settings: dict[str, Any] = {"schedules": {"use_threads": True, "num_workers": len(DATASETS) + 1}}
        if url:
            settings["storage"] = {"postgres": {"postgres_url": url}}
        with running_daemon(project, settings, WATCHED) as daemon:
            daemon.start_automation()
            yield daemon


@pytest.fixture(scope="module")
def scheduled(daemon: Daemon) -> dict[str, dg.DagsterRun]:
    """The run that the first tick of each schedule started, when it has finished.

    The test builds the dataset `one` until the two runs of it that start at once have said that they wait.
    """
    last = {**{name: f"{name}/{STAGES[-1]}" for name in DATASETS}, "both": "both/mixture"}

    def started() -> list[list[str]]:
        return [daemon.runs(asset, "dagster/schedule_name", f"{name}_schedule") for name, asset in last.items()]

    with daemon.project.store.building_alone("one", print):
        for name in last:
            daemon.start_schedule(name)
        ticked = until(started, all, seconds=2 * DEADLINE)  # the next minute begins within one
        runs = {name: found[0] for name, found in zip(last, ticked, strict=True)}
        for name in last:
            daemon.stop_schedule(name)
        for name in ("one", "both"):
            until(lambda run=runs[name]: daemon.messages(run), lambda said: any(WAITING in line for line in said))
    return {name: daemon.succeeded(run) for name, run in runs.items()}


def assert_computed_once(daemon: Daemon, dataset: str, *runs: str) -> None:
    """Check that one of two runs of a dataset has computed chunks, and that the other has reused all of them."""
    computed = [sum(daemon.computed(run, dataset).values()) for run in runs]
    assert min(computed) == 0 < max(computed), computed


def stages_of(*datasets: str) -> set[dg.AssetKey]:
    return {dg.AssetKey([dataset, stage]) for dataset in datasets for stage in STAGES}


def test_a_tick_starts_a_run_of_its_dataset(daemon: Daemon, scheduled: dict[str, dg.DagsterRun]) -> None:
    selected = {name: stages_of(name) for name in scheduled if name != "both"}
    selected["both"] = stages_of("one", "two") | {dg.AssetKey(["both", "mixture"])}
    assert {name: run.asset_selection for name, run in scheduled.items()} == selected
    assert {name: run.tags[DATASET_TAG] for name, run in scheduled.items()} == {name: name for name in scheduled}
    assert len(tokenloom.open_dataset("one", "train", daemon.project.root)) == ROWS


def test_runs_of_a_dataset_wait_for_each_other_and_reuse(daemon: Daemon, scheduled: dict[str, dg.DagsterRun]) -> None:
    assert_computed_once(daemon, "one", *(scheduled[name].run_id for name in ("one", "both")))


def test_a_faulty_yaml_stops_no_schedule(daemon: Daemon, scheduled: dict[str, dg.DagsterRun]) -> None:
    assert all(run.is_success for run in scheduled.values())
    faulty = daemon.ask(ASSET, key={"path": ["faulty", STAGES[-1]]})
    assert not faulty["isExecutable"]
    assert "faulty.yaml:2: dataset.nam: unknown setting" in faulty["description"]


def test_a_changed_source_is_built_and_its_mixture_follows(daemon: Daemon) -> None:
    assets = ("toy/raw", "mix/mixture", "other/raw")
    before = daemon.settled(*assets)
    version = daemon.project.store.manifest("mix", "mixture").digest
    append_rows(daemon.project.pipelines / "rows" / "c.jsonl", MORE)  # `toy` reads the folder, `other` a file of it
    daemon.succeeded(daemon.launch("toy/source", "other/source"))
    after = daemon.settled(*assets)
    runs = {asset: [daemon.succeeded(run) for run in after[asset][len(before[asset]) :]] for asset in assets}
    built = runs["toy/raw"]  # a second run can find that all is up to date
    assert {frozenset(run.asset_selection or ()) for run in built} == {frozenset(stages_of("toy"))}
    assert sum(any(daemon.computed(run.run_id, "toy").values()) for run in built) == 1
    assert [run.asset_selection for run in runs["mix/mixture"]] == [{dg.AssetKey(["mix", "mixture"])}]
    assert runs["other/raw"] == []
    assert len(tokenloom.open_dataset("toy", "train", daemon.project.root)) == ROWS + MORE
    assert daemon.project.store.manifest("mix", "mixture").digest != version


@dataclass(frozen=True)
class Outage:
    """A run that started while the store in the bucket was away, and one of the same dataset that was queued then."""

    daemon: Daemon
    first: str
    second: str


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """A daemon that queues runs and lets one run of each pool in at a time, after an outage of its store."""
    project, port = new_project(tmp_path_factory.mktemp("queued")), free_port()
    with object_service(project.folder / "cache") as service:
        environment = {"TOKENLOOM_STORE": service.address(), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        with running_daemon(project, QUEUED, **environment) as daemon:
            stages = [f"toy/{stage}" for stage in STAGES[:3]]
            first = daemon.launch(*stages)
            until(lambda: daemon.run(first).status is dg.DagsterRunStatus.STARTED)
            second = daemon.launch(*stages)
            until(lambda: f"Run {second} is blocked by global concurrency limits" in daemon.log.read_text())
            until(lambda: [*daemon.events(first)], lambda events: dg.DagsterEventType.STEP_UP_FOR_RETRY in dict(events))
            with FaultProxy(*service.proxy.upstream, listen=port):
                for run in (first, second):
                    daemon.succeeded(run)
                yield Outage(daemon, first, second)


def test_a_run_survives_an_outage_of_its_store(outage: Outage) -> None:
    events = [event for event, _ in outage.daemon.events(outage.first)]
    retried = [dg.DagsterEventType.STEP_UP_FOR_RETRY, dg.DagsterEventType.STEP_RESTARTED]
    assert [event for event in events if event in retried] == retried
    assert any("trying again in 5 s (retry 1 of 3)" in message for message in outage.daemon.messages(outage.first))


def test_a_pool_lets_one_step_of_a_dataset_in_at_a_time(outage: Outage) -> None:
    runs = (outage.first, outage.second)
    events = [(at, run, event) for run in runs for event, at in outage.daemon.events(run)]
    steps = [(run, event in BEGINS) for _, run, event in sorted(events) if event in (*BEGINS, *ENDS)]
    assert steps == [(run, begins) for run, _ in steps[::2] for begins in (True, False)]
    assert_computed_once(outage.daemon, "toy", *runs)


BEGINS = (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED)
ENDS = (dg.DagsterEventType.STEP_UP_FOR_RETRY, dg.DagsterEventType.STEP_SUCCESS)
WAITING = "another run is building one; waiting for it, to reuse what it computes"
ASSET = """
query Asset($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) { __typename ... on AssetNode { description isExecutable } }
}"""
