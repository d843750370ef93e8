"""Materializes a dataset through the UI: a real dagster-webserver, queried over GraphQL as a browser does."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokenloom
from support.dagster_browser import web_server
from support.dagster_project import ROWS, new_project
from support.datasets_on_disk import STAGES
from support.soak import machine, smoke

pytestmark = machine("daemon")

KEYS = [f"toy/{stage}" for stage in STAGES]


@smoke
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to end through /proc")
def test_the_ui_materializes_a_dataset(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    with web_server(project) as server:
        run = server.finished(server.launch(*KEYS))
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
        assert len(shown["raw"]["sample"]["table"]["records"]) == 5
        assert len(tokenloom.open_dataset("toy", "train", project.root)) == ROWS

        path = project.write(dataset={"name": "gone.jsonl"})
        failed = server.finished(server.launch(*KEYS))
        assert failed["status"] == "FAILURE"
        messages = [event["error"]["message"] for event in failed["eventConnection"]["events"] if event.get("error")]
        expected = f"{path}:2: dataset.name: no such file: gone.jsonl"
        assert any(message.strip().endswith(expected) for message in messages)
