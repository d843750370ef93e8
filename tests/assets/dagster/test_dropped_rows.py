"""Dagster shows which rows `decontaminate` and `dedup` dropped, and for what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.dagster_project import Project, failure, new_project, runnable
from support.datasets_on_disk import STAGES
from tokenloom.assets.dagster.names import asset_key
from tokenloom.assets.stage.names import DECONTAMINATE, DEDUP, FINGERPRINTS
from tokenloom.config import PipelineConfig


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A dataset with two rows that repeat others, and one that is an item."""
    made = new_project(tmp_path)
    rows = [json.loads(line) for line in (made.pipelines / "rows" / "a.jsonl").read_text().splitlines()]
    rows[9] = {"instruction": "Which is the longest river of them all?", "input": "", "output": "The Nile."}
    (made.pipelines / "rows" / "a.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in [*rows, rows[3], rows[4]])
    )
    (made.pipelines / "asked.txt").write_text("Which is the longest river of them all?\nNo\n")
    made.write(decontaminate={"against": ["asked.txt"]}, dedup={"near": None})
    return made


def test_the_assets_show_what_was_dropped(project: Project) -> None:
    stages = [*STAGES[:3], DECONTAMINATE, FINGERPRINTS, DEDUP, *STAGES[3:]]
    result = project.run(*stages)
    assert result.success, failure(result)
    found = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    assert [one.asset_key.path[-1] for one in found] == stages
    metadata = {one.asset_key.path[-1]: {name: entry.value for name, entry in one.metadata.items()} for one in found}

    def listed(stage: str, name: str) -> list[Any]:
        table: Any = metadata[stage][name]
        return [record.data for record in table.records]

    assert listed(DECONTAMINATE, "evaluations") == [{"evaluation": "asked", "items": 2, "not checkable": 1, "rows": 1}]
    assert [(row["code"], row["first"]) for row in listed(DECONTAMINATE, "rejects")] == [("contaminated", "a.jsonl:10")]
    assert listed(DEDUP, "dropped") == [{"similarity": "the same", "rows": 2}]
    checks = {(check.asset_key.path[-1], check.check_name): check for check in result.get_asset_check_evaluations()}
    assert all(check.passed for check in checks.values())
    assert "1 of" in (checks[DECONTAMINATE, "contamination"].description or "")


def test_a_dataset_depends_on_those_whose_rows_come_first(project: Project) -> None:
    project.write("more", dedup={"near": None, "against": ["toy"]})
    config = PipelineConfig.from_file(project.pipelines / "more.yaml")
    graph = runnable(config, project.root).resolve_asset_graph()
    assert asset_key("toy", FINGERPRINTS) in graph.get(asset_key("more", DEDUP)).parent_keys
