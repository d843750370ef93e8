"""What Dagster's automation requests, evaluated as the daemon does, on real observations and materializations."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from support.dagster_project import Project, new_project
from support.datasets_on_disk import STAGES
from tokenloom.assets.dagster.names import asset_key
from tokenloom.dagster import StoreResource
from tokenloom.definitions import load_definitions

TOY = {asset_key("toy", stage) for stage in STAGES}
SOURCE, MIXTURE = asset_key("toy", "source"), asset_key("mix", "mixture")


@dataclass
class Automated:
    """A project whose automation is evaluated tick by tick."""

    project: Project
    instance: dg.DagsterInstance
    cursor: Any = None
    definitions: dg.Definitions = field(init=False)

    def __post_init__(self) -> None:
        resource = dg.Definitions(resources={"store": StoreResource(root=str(self.project.root))})
        self.definitions = dg.Definitions.merge(load_definitions_without_store(self.project), resource)

    def requested(self) -> set[dg.AssetKey]:
        """The assets that one tick requests."""
        result = dg.evaluate_automation_conditions(self.definitions, self.instance, cursor=self.cursor)
        self.cursor = result.cursor
        return {each.key for each in result.results if result.get_num_requested(each.key)}

    def run(self, keys: set[dg.AssetKey]) -> None:
        """Observe or materialize assets, as the daemon does with what was requested."""
        for observed in (True, False):
            wanted = [key for key in keys if (key.path[-1] == "source") == observed]
            if wanted:
                job = self.definitions.resolve_implicit_global_asset_job_def()
                assert job.execute_in_process(instance=self.instance, asset_selection=wanted).success

    def settle(self) -> list[set[dg.AssetKey]]:
        """Run what each tick requests until one requests nothing; returns what was requested."""
        found = []
        while requested := self.requested():
            found.append(requested)
            self.run(requested)
            assert len(found) < 10
        return found


def load_definitions_without_store(project: Project) -> dg.Definitions:
    made = load_definitions(project.pipelines)
    return dg.Definitions(made.assets, asset_checks=made.asset_checks, executor=dg.in_process_executor)


@pytest.fixture
def automated(tmp_path: Path) -> Automated:
    project = new_project(tmp_path)
    mixture = {"mixture": [{"dataset": "toy"}]}
    (project.pipelines / "mix.yaml").write_text(yaml.safe_dump(mixture), encoding="utf-8")
    return Automated(project, dg.DagsterInstance.ephemeral())


def append_row(project: Project) -> None:
    with (project.pipelines / "rows" / "a.jsonl").open("a") as rows:
        rows.write('{"instruction": "Square 99", "input": "", "output": "9801"}\n')


def test_what_is_missing_is_built_once(automated: Automated) -> None:
    assert automated.settle() == [{SOURCE}, TOY, {MIXTURE}]
    assert automated.settle() == []


def test_a_source_that_was_observed_before_is_built_too(automated: Automated) -> None:
    automated.run({SOURCE})
    requested = automated.settle()
    assert set().union(*requested) >= TOY
    assert sum(TOY & each != set() for each in requested) == 1


def test_a_changed_source_is_built_and_an_unchanged_one_is_not(automated: Automated) -> None:
    automated.settle()
    automated.run({SOURCE})
    assert automated.settle() == []
    append_row(automated.project)
    automated.run({SOURCE})
    assert automated.settle() == [TOY, {MIXTURE}]
    automated.run({SOURCE})
    assert automated.settle() == []


def test_what_was_built_before_automation_is_not_built_again(automated: Automated) -> None:
    automated.run({SOURCE})
    automated.run(TOY)
    automated.run({MIXTURE})
    assert automated.settle() == [{SOURCE}]


def test_rows_that_change_no_sequence_leave_the_mixture(automated: Automated) -> None:
    automated.settle()
    rows = automated.project.pipelines / "rows" / "a.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"instruction":', b'"instruction" :'))
    automated.run({SOURCE})
    assert automated.settle() == [TOY]
