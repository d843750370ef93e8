"""A stage that only some YAMLs ask for: later stages read its rows; without it, a build is as if it did not exist."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from support.builds import SMALL
from support.datasets_on_disk import STAGES, TOKENIZER, write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import code_versions
from tokenloom.assets.building.explain import explain, outdated
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.dagster.checks import Checked, stage_checks
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.assets.stage import names
from tokenloom.assets.stage.contract import Contract
from tokenloom.assets.stage.definition import ChunkOutput, Context, Stage, Work, stage_named
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

NAME = "schedule"
"""The stage is named after a section that a YAML can lack."""

ALONE = [*STAGES]
TALK = [{"role": "user", "content": "Name a river."}, {"role": "assistant", "content": "The Elbe. " * 20}]


def every_other(rows: pa.Table) -> ChunkOutput:
    kept = rows.filter(pa.array(np.arange(rows.num_rows) % 2 == 0))
    return ChunkOutput(kept, rows.num_rows, filtered=rows.num_rows - kept.num_rows)


class HalfStage(Stage):
    name = NAME
    description = "Every other row."
    version = 1
    upstream = (names.COLUMNS,)
    replaces = names.COLUMNS
    libraries = ("pyarrow",)
    facts_ahead = True

    def prepare(self, context: Context) -> Work:
        return Work(self.inputs(context), every_other)

    def contract(self, columns: pa.Schema) -> Contract:
        return stage_named(names.COLUMNS).contract(columns)

    def probe(self) -> list[pa.Table]:
        return []


@pytest.fixture(autouse=True)
def _half(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stages = [*STAGES]
    stages.insert(stages.index(names.PROMPTS), NAME)
    monkeypatch.setattr(names, "STAGES", tuple(stages))
    monkeypatch.setitem(sys.modules, f"tokenloom.assets.{NAME}.stage", SimpleNamespace(STAGE=HalfStage()))
    yield
    stage_named.cache_clear()


def made(config: Path, store: Path) -> tuple[Build, dict[str, StageReport]]:
    build = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    return build, {report.name: report for report in build.run_all()}


def reused(reports: dict[str, StageReport]) -> set[str]:
    return {name for name, report in reports.items() if report.chunks_reused == report.chunks}


def test_later_stages_read_the_rows_of_the_optional_stage(tmp_path: Path) -> None:
    store, config = tmp_path / "store", write_dataset(tmp_path, 400)
    _, without = made(config, store)
    assert list(without) == ALONE
    asked = write_dataset(tmp_path, 400, schedule="0 3 * * *")
    build, reports = made(asked, store)
    assert list(reports) == list(names.STAGES)
    assert reused(reports) == {"raw", "schema", "columns"}
    half = reports[NAME]
    assert (half.rows_in, half.rows_out, half.filtered) == (400, half.rows_out, 400 - half.rows_out)
    assert 195 <= half.rows_out <= 205 + half.chunks
    assert reports["prompts"].rows_in == reports["sequences"].rows_out == half.rows_out
    assert {stage.state for stage in explain(build)} == {"hit"}
    assert outdated(build, 1) is None
    assert set(build.store.versions.of("small")[-1].stages) == set(names.STAGES)
    assert [*code_versions(build.config)] == list(names.STAGES)
    contracts = [check for check in stage_checks(build.config) if check.name == "contract"]
    assert [check.stage for check in contracts] == list(names.STAGES)
    assert all(check.run(Checked(build, reports[check.stage])).passed for check in contracts)
    reader = RowReader(build.store, "small", build.stages)
    assert [reader.read(row).absence for row in range(4)] == ["", "filtered", "", "filtered"]
    again, back = made(write_dataset(tmp_path, 400), store)
    assert {name: report.digest for name, report in back.items()} == {
        name: report.digest for name, report in without.items()
    }
    assert reused(back) == set(ALONE)
    assert set(again.store.versions.of("small")[-1].stages) == set(ALONE)


def test_turns_are_dropped_from_the_rows_of_the_optional_stage(tmp_path: Path) -> None:
    turns = [*TALK, {"role": "user", "content": "Another?"}, {"role": "assistant", "content": "The Rhine."}]
    config = write_dataset(
        tmp_path,
        schedule="0 3 * * *",
        tokenizer={**TOKENIZER, "chat_template": "chatml", "max_length": 80},
        prompt_template={"format_type": "chat"},
        length={"strategy": "drop_turns"},
    )
    lines = (json.dumps({"messages": [{**turns[0], "content": f"River {number}?"}, *turns[1:]]}) for number in range(9))
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    _, reports = made(config, tmp_path / "store")
    assert reports["columns"].rows_out == 9
    assert reports[NAME].rows_out == reports["sequences"].rows_out == 5
    assert reports["sequences"].tokens < reports["tokens"].tokens
