"""Checks of a dataset's stages, run without Dagster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.builds import SMALL, build, digests
from support.datasets_on_disk import write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.dagster.checks import Checked, StageCheck, Verdict, stage_checks
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

Place = tuple[str, str]
"""The stage and the name of a check."""

Built = tuple[Path, Path, dict[str, str]]


def build_with_rejects(folder: Path) -> Built:
    """A YAML with a kept column, a store with its build, which has rejects in raw and columns, and the digests."""
    kept = {"name": "small.jsonl", "keep_columns": ["output"], "val_split": 0.2}
    config = write_dataset(folder, 400, dataset=kept, validation={"max_reject_fraction": 0.1})
    data = folder / "small.jsonl"
    lines = data.read_text().splitlines()
    lines[9], lines[300] = "{broken", json.dumps({"instruction": "say nothing", "input": "", "output": " "})
    data.write_text("\n".join(lines) + "\n")
    return config, folder / "store", digests(build(config, folder / "store"))


def checks_of(config: PipelineConfig) -> dict[Place, StageCheck]:
    return {(check.stage, check.name): check for check in stage_checks(config)}


def run_alone(yaml: Path, store: Path, stage: str, name: str) -> Verdict:
    """The verdict of one check on what is stored."""
    config = PipelineConfig.from_file(yaml)
    return checks_of(config)[stage, name].run(Checked(Build(config, ArtifactStore(store), ComputeEngine(2))))


def run_all(yaml: Path, store: Path) -> tuple[dict[str, StageReport], dict[Place, Verdict]]:
    """Build, and return the reports and the verdicts of all checks of that run."""
    config = PipelineConfig.from_file(yaml)
    made = Build(config, ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    reports = {report.name: report for report in made.run_all()}
    checks = checks_of(config).items()
    return reports, {place: check.run(Checked(made, reports[check.stage])) for place, check in checks}


def build_and_check(yaml: Path, store: Path, stage: str, name: str) -> Verdict:
    build(yaml, store)
    return run_alone(yaml, store, stage, name)


def computed(reports: dict[str, StageReport]) -> dict[str, int]:
    """Number of chunks computed by each stage that computed any."""
    found = {name: report.chunks - report.chunks_reused for name, report in reports.items()}
    return {name: count for name, count in found.items() if count}


def numbers(verdict: Verdict) -> dict[str, Any]:
    return {name: value for name, value in verdict.metadata.items() if isinstance(value, int | float)}
