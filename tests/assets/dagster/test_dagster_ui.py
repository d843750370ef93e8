"""Materializes a dataset through the UI: a real dagster-webserver, queried over GraphQL as a browser does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tokenloom
from support.dagster_project import ROWS, WORKSPACE, Project, new_project
from tokenloom.assets.building.stages import STAGES


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path)


@dataclass(frozen=True)
class WebServer:
    """A running dagster-webserver, queried as a browser does."""

    url: str

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer
        return answer["data"]

    def launch(self, job: str) -> str:
        selector = {"repositoryLocationName": "tokenloom", "repositoryName": "__repository__", "jobName": job}
        launched = self.ask(LAUNCH, params={"selector": selector, "runConfigData": {}})["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def finished(self, run: str) -> dict[str, Any]:
        """Wait for a run to finish."""
        deadline = time.monotonic() + 180
        while True:
            found = self.ask(RUN, run=run)["runOrError"]
            if found["status"] in ("SUCCESS", "FAILURE", "CANCELED"):
                return found
            assert time.monotonic() < deadline, f"the run is still {found['status']}"
            time.sleep(0.2)


LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}"""

RUN = """
query Run($run: ID!) {
  runOrError(runId: $run) {
    ... on Run {
      status
      assetMaterializations {
        assetKey { path }
        metadataEntries {
          label
          ... on IntMetadataEntry { intRepr }
          ... on TableMetadataEntry { table { records } }
          ... on TableSchemaMetadataEntry { schema { columns { name type } } }
        }
      }
      eventConnection { events { ... on ExecutionStepFailureEvent { error { message } } } }
    }
  }
}"""


def processes_with(marker: str) -> set[int]:
    """Return the other processes whose environment contains `marker`."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found - {os.getpid()}


@pytest.fixture
def web_server(project: Project) -> Iterator[WebServer]:
    """The UI on a free port, with the repository's workspace.yaml and dagster.yaml."""
    home = project.folder / "home"
    home.mkdir()
    shutil.copy(WORKSPACE.with_name("dagster.yaml"), home)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-w", str(WORKSPACE)]
    env = project.environment(DAGSTER_HOME=str(home))
    with (project.folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=project.folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        made = WebServer(f"http://127.0.0.1:{port}")
        _await(made, server, project.folder / "server.log")
        yield made
    finally:
        _stop(server, f"DAGSTER_HOME={home}")


def _await(made: WebServer, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            made.ask("{ version }")
            return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def _stop(server: subprocess.Popen[bytes], marker: str) -> None:
    """End the server, its code server and its run workers, all of them children with `marker` in the environment."""
    server.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while (server.poll() is None or processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in processes_with(marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    server.wait(60)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to end through /proc")
def test_the_ui_materializes_a_dataset(web_server: WebServer, project: Project) -> None:
    run = web_server.finished(web_server.launch("toy"))
    assert run["status"] == "SUCCESS"
    shown = {
        made["assetKey"]["path"][-1]: {entry["label"]: entry for entry in made["metadataEntries"]}
        for made in run["assetMaterializations"]
    }
    assert list(shown) == list(STAGES)
    assert shown["sequences"]["dagster/row_count"]["intRepr"] == str(ROWS)
    assert shown["raw"]["chunks"]["intRepr"] == "2"
    columns = [column["name"] for column in shown["tokens"]["dagster/column_schema"]["schema"]["columns"]]
    assert columns == ["_row", "input_ids", "spans"]
    assert len(shown["prompts"]["sample"]["table"]["records"]) == 5
    assert len(tokenloom.open_dataset("toy", "train", project.root)) == ROWS

    path = project.write(dataset={"name": "gone.jsonl"})
    failed = web_server.finished(web_server.launch("toy"))
    assert failed["status"] == "FAILURE"
    messages = [event["error"]["message"] for event in failed["eventConnection"]["events"] if event.get("error")]
    assert any(message.strip().endswith(f"{path}:2: dataset.name: no such file: gone.jsonl") for message in messages)
