"""A real dagster-daemon and code server for a project, used over GraphQL as the UI does."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import dagster as dg
import yaml
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_graphql.cli import execute_query

from support.dagster_browser import LAUNCH, REPOSITORY
from support.dagster_project import WORKSPACE, Project
from support.free_port import free_port
from support.processes import DEADLINE, started
from support.waiting import listens, until

AUTOMATED = "dagster/from_automation_condition"
SENSOR = "often"
LOCATION = f"""
import dagster as dg
import tokenloom.definitions

watched = dg.AssetSelection.groups(*GROUPS, include_sources=True)
often = dg.AutomationConditionSensorDefinition("{SENSOR}", target=watched, minimum_interval_seconds=1)
defs = dg.Definitions.merge(tokenloom.definitions.defs, dg.Definitions(sensors=[often]))
"""
"""The definitions of a project, with automation for some groups that is evaluated as often as Dagster can: every 5
seconds, the default sensor every 30."""


@dataclass(frozen=True)
class Daemon:
    """A running dagster-daemon and code server.

    Args:
        instance: what they and the runs store.
        workspace: the code location, as the UI sees it.
        log: what the daemon logs.
    """

    project: Project
    instance: dg.DagsterInstance
    workspace: WorkspaceProcessContext
    log: Path

    def ask(self, query: str, **variables: Any) -> Any:
        """Return the answer to a query with one field."""
        answer: Any = execute_query(self.workspace, query, variables)
        assert "errors" not in answer, answer
        (field,) = answer["data"].values()
        assert field["__typename"] not in ("PythonError", "UnauthorizedError"), field
        return field

    def start_automation(self) -> None:
        self.ask(START_SENSOR, selector={**REPOSITORY, "sensorName": SENSOR})

    def settled(self, *assets: str) -> dict[str, list[str]]:
        """Wait until automation has nothing more to do, and return the runs that it has started of each asset."""

        asked = time.time()

        def has_settled() -> bool:
            runs = self.instance.get_run_records(dg.RunsFilter(tags={AUTOMATED: "true"}))
            sensor = self.ask(SENSOR_TICKS, selector={**REPOSITORY, "sensorName": SENSOR})
            busy_until = max([asked, *(run.end_time or math.inf for run in runs)])
            ticks = sensor["sensorState"]["ticks"]  # the last one
            idle = any(tick["status"] == "SKIPPED" and tick["timestamp"] > busy_until for tick in ticks)
            return idle and bool(runs)

        until(has_settled)
        return {asset: self.runs(asset, AUTOMATED, "true") for asset in assets}

    def start_schedule(self, dataset: str) -> None:
        self.ask(START_SCHEDULE, selector={**REPOSITORY, "scheduleName": f"{dataset}_schedule"})

    def stop_schedule(self, dataset: str) -> None:
        schedule = self.ask(SCHEDULE, selector={**REPOSITORY, "scheduleName": f"{dataset}_schedule"})
        self.ask(STOP_SCHEDULE, id=schedule["scheduleState"]["id"])

    def launch(self, *assets: str) -> str:
        """Materialize or observe assets, and return the id of the run."""
        paths = [{"path": asset.split("/")} for asset in assets]
        selector = {**REPOSITORY, "jobName": "__ASSET_JOB", "assetSelection": paths}
        launched = self.ask(LAUNCH, params={"selector": selector, "runConfigData": {}})
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def runs(self, asset: str, tag: str, value: str) -> list[str]:
        """Return the ids of the runs with a tag that materialize or observe an asset, the oldest first."""
        key = dg.AssetKey(asset.split("/"))
        found = self.instance.get_runs(dg.RunsFilter(tags={tag: value}))
        return [run.run_id for run in reversed(found) if key in (run.asset_selection or ())]

    def run(self, id: str) -> dg.DagsterRun:
        run = self.instance.get_run_by_id(id)
        assert run is not None
        return run

    def succeeded(self, id: str) -> dg.DagsterRun:
        """Wait for a run to finish, and return it."""
        run = until(lambda: self.run(id), lambda run: run.is_finished)
        assert run.is_success, "\n".join(self.messages(id))
        return run

    def messages(self, run: str) -> list[str]:
        """Return what a run has logged."""
        return [entry.user_message or entry.message for entry in self.instance.all_logs(run)]

    def events(self, run: str) -> list[tuple[dg.DagsterEventType, float]]:
        """Return the types of the events of a run, and when they occurred, in order."""
        return [
            (entry.dagster_event.event_type, entry.timestamp)
            for entry in self.instance.all_logs(run)
            if entry.dagster_event
        ]

    def computed(self, run: str, dataset: str) -> dict[str, int]:
        """Return the number of chunks that a run has computed, not reused, for each stage of a dataset."""
        counts = {}
        for entry in self.instance.all_logs(run, dg.DagsterEventType.ASSET_MATERIALIZATION):
            assert entry.dagster_event
            made = entry.dagster_event.step_materialization_data.materialization
            if made.asset_key.path[0] == dataset:
                chunks, reused = (int(str(made.metadata[name].value)) for name in ("chunks", "chunks_reused"))
                counts[made.asset_key.path[-1]] = chunks - reused
        return counts


START_SENSOR = """
mutation Start($selector: SensorSelector!) { startSensor(sensorSelector: $selector) { __typename } }"""
SENSOR_TICKS = """
query Ticks($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) {
    __typename ... on Sensor { sensorState { ticks(limit: 1) { status timestamp } } }
  }
}"""
START_SCHEDULE = """
mutation Start($selector: ScheduleSelector!) { startSchedule(scheduleSelector: $selector) { __typename } }"""
SCHEDULE = """
query Schedule($selector: ScheduleSelector!) {
  scheduleOrError(scheduleSelector: $selector) { __typename ... on Schedule { scheduleState { id } } }
}"""
STOP_SCHEDULE = """
mutation Stop($id: String!) { stopRunningSchedule(id: $id) { __typename } }"""


@contextmanager
def running_daemon(
    project: Project, settings: Mapping[str, Any], groups: Sequence[str] = (), **environment: str
) -> Iterator[Daemon]:
    """Run a dagster-daemon and a code server for a project.

    Args:
        settings: replace those of the repository's dagster.yaml.
        groups: assets that the sensor of `start_automation` evaluates.
        environment: of the processes, in addition to the project's.
    """
    home = project.folder / "home"
    home.mkdir()
    shared = yaml.safe_load(WORKSPACE.with_name("dagster.yaml").read_text(encoding="utf-8"))
    (home / "dagster.yaml").write_text(yaml.safe_dump({**shared, **settings}), encoding="utf-8")
    (project.folder / "location.py").write_text(f"GROUPS = {[*groups]}\n{LOCATION}", encoding="utf-8")
    port = free_port()
    server = {"host": "127.0.0.1", "port": port, "location_name": REPOSITORY["repositoryLocationName"]}
    workspace = project.folder / "workspace.yaml"
    workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}), encoding="utf-8")
    env = project.environment(DAGSTER_HOME=str(home), **environment)
    code_server = ["dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(port), "-f", "location.py"]
    with ExitStack() as stack:
        code_log, log = home / "code_server.log", home / "daemon.log"
        stack.enter_context(_running(code_server, project.folder, env, code_log, lambda: listens(port)))
        stack.enter_context(_running(["dagster._daemon", "run", "-w", str(workspace)], project.folder, env, log))
        instance = stack.enter_context(dg.DagsterInstance.from_config(str(home)))
        context = WorkspaceProcessContext(instance, WorkspaceFileTarget([str(workspace)]))
        yield Daemon(project, instance, stack.enter_context(context), log)


@contextmanager
def _running(
    command: list[str], folder: Path, env: dict[str, str], log: Path, is_ready: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Run a module until the `with` block ends, and then end the processes that it started too."""
    with started([sys.executable, "-m", *command], log=log, cwd=folder, env=env) as process:
        until(lambda: is_ready() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        try:
            yield
        finally:
            process.terminate()
            with suppress(TimeoutExpired):
                process.wait(DEADLINE)
