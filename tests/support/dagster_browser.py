"""A real dagster-webserver, queried over GraphQL, and its pages in a real browser."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.browsers import Browser
from support.dagster_project import WORKSPACE, Project
from support.free_port import free_port
from support.processes import DEADLINE, Process, finish, started
from support.stray_processes import processes_with
from support.waiting import until

REPOSITORY = {"repositoryLocationName": "tokenloom", "repositoryName": "__repository__"}


@dataclass(frozen=True)
class WebServer:
    """A running dagster-webserver, queried as a browser does."""

    url: str

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
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
        return until(lambda: self.ask(RUN, run=run)["runOrError"], lambda found: found["status"] in FINISHED)


FINISHED = ("SUCCESS", "FAILURE", "CANCELED")
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
    port, log = free_port(), project.folder / "server.log"
    command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", port, "-w", WORKSPACE]
    env = project.environment(DAGSTER_HOME=str(home))
    made = WebServer(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return bool(made.ask("{ version }"))
        return False

    with started(command, log=log, cwd=project.folder, env=env) as server:
        try:
            until(lambda: server.poll() is not None or answers())
            assert server.poll() is None, log.read_text()
            yield made
        finally:
            _stop(server, f"DAGSTER_HOME={home}")


def _stop(server: Process, marker: str) -> None:
    """End the server, its code server and its run workers, all of them children with `marker` in the environment."""
    server.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while (server.poll() is None or processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in processes_with(marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    finish(server)


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
        try:
            return until(read, fits)
        except AssertionError as late:
            raise AssertionError(f"{late}\n\nThe page shows:\n{self.text()}") from None

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
