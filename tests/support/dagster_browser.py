"""A real dagster-webserver, queried over GraphQL, and its pages in a real browser."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.dagster_project import WORKSPACE, Project
from support.html_page import Browser
from support.stray_processes import processes_with

REPOSITORY = {"repositoryLocationName": "tokenloom", "repositoryName": "__repository__"}


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

    def launch(self, *assets: str) -> str:
        """Materialize assets."""
        paths = [{"path": asset.split("/")} for asset in assets]
        selector = {**REPOSITORY, "jobName": "__ASSET_JOB", "assetSelection": paths}
        launched = self.ask(LAUNCH, params={"selector": selector, "runConfigData": {}})["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def runs(self) -> set[str]:
        """Return the ids of all runs."""
        return set(self.ask(RUNS)["runIdsOrError"]["results"])

    def finished(self, run: str) -> dict[str, Any]:
        """Wait for a run to finish."""
        deadline = time.monotonic() + 600
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

RUNS = "{ runIdsOrError { ... on RunIds { results } } }"

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


@contextmanager
def web_server(project: Project) -> Iterator[WebServer]:
    """Serve a project's UI on a free port, with the repository's workspace.yaml and dagster.yaml."""
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
    deadline = time.monotonic() + 600
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


@dataclass(frozen=True)
class Pages:
    """The UI's pages in a browser's tab."""

    server: WebServer
    tab: Browser

    def open(self, address: str, width: int = 3000, height: int = 900) -> None:
        """Show a page of the UI, wide enough for the graph to show the state of each asset."""
        self.tab.open(f"{self.server.url}{address}", width, height)

    def graph(self) -> dict[str, str]:
        """Return what the graph shows of each asset, by the last part of its key."""
        nodes = "[...document.querySelectorAll('foreignObject')].map((node) => node.firstElementChild?.innerText || '')"
        shown = [text for text in self.tab.run(f"return {nodes}") if "\nLatest event" in text]
        return {text.split("\nLatest event")[0].split("\n")[-1].strip(): text for text in shown}

    def text(self) -> str:
        """Return what the page shows."""
        return self.tab.run("return document.body.innerText")

    def shows(self, *texts: str) -> str:
        """Wait until the page shows some texts, and return all that it shows."""
        return self.wait(self.text, lambda shown: all(text in shown for text in texts))

    def wait(self, read: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
        """Read until what is read fits, and return it."""
        deadline = time.monotonic() + 600
        while not fits(found := read()):
            assert time.monotonic() < deadline, f"{found}\n\nThe page shows:\n{self.text()}"
            time.sleep(0.2)
        return found

    def click(self, label: str) -> None:
        """Wait for a button that can be clicked, and click it."""
        fits = f"(button) => button.innerText.trim() === {json.dumps(label)} && !button.disabled"
        script = f"const found = [...document.querySelectorAll('button')].find({fits}); found?.click(); return !!found"
        self.wait(lambda: self.tab.run(script), bool)

    def click_to_run(self, label: str) -> dict[str, Any]:
        """Click a button that starts a run, and wait for the run to finish."""
        before = self.server.runs()
        self.click(label)
        (run,) = self.wait(lambda: self.server.runs() - before, bool)
        return self.server.finished(run)
