"""Lines about progress: seldom, for the stage at work, with rate and time left where they are known."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from support.builds import SMALL
from support.datasets_on_disk import write_dataset
from tokenloom.assets.building import report
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import Progress, ProgressLog
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore


def test_a_line_says_how_far_how_fast_and_how_long() -> None:
    lines: list[str] = []
    now = 100.0
    log = ProgressLog(lines.append, every=10, clock=lambda: now)
    for second in range(35):
        now = 100.0 + second
        log(Progress("tokens", second + 1, 1, 50 * (second + 1), total=71))
    assert lines == [
        "tokens: chunk 11 of 71, 1 reused, 50 rows/s, about 60 s left",
        "tokens: chunk 21 of 71, 1 reused, 50 rows/s, about 50 s left",
        "tokens: chunk 31 of 71, 1 reused, 50 rows/s, about 40 s left",
    ]


def test_without_a_total_there_is_no_time_left() -> None:
    lines: list[str] = []
    now = 0.0
    log = ProgressLog(lines.append, every=1, clock=lambda: now)
    for second in range(3):
        now = float(second)
        log(Progress("raw", second + 1, 0, 10 * (second + 1)))
    assert lines == ["raw: chunk 2, 0 reused, 10 rows/s", "raw: chunk 3, 0 reused, 10 rows/s"]


@pytest.mark.parametrize("val_split", [0, 0.3])
def test_the_chunks_of_a_source_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, val_split: float
) -> None:
    monkeypatch.setattr(report, "ESTIMATE_AFTER", 0.0)
    config = PipelineConfig.from_file(
        write_dataset(tmp_path, 2000, dataset={"name": "small.jsonl", "val_split": val_split})
    )
    seen: list[Progress] = []
    build = Build(config, ArtifactStore(tmp_path / "store"), chunk_size=SMALL, on_progress=seen.append)
    chunks = build.run("raw").chunks
    assert chunks > 10
    assert all(each.estimated and each.total and each.chunks <= each.total for each in seen)
    assert all(abs((each.total or 0) - chunks) <= chunks / 4 for each in seen[chunks // 2 :])
    assert (seen[-1].total, seen[-1].done) == (chunks, f"{chunks} of about {chunks}")


def test_a_source_of_unknown_size_has_no_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ESTIMATE_AFTER", 0.0)
    path = write_dataset(tmp_path, 400, dataset={"name": "small.jsonl.gz"})
    (tmp_path / "small.jsonl.gz").write_bytes(gzip.compress((tmp_path / "small.jsonl").read_bytes()))
    seen: list[Progress] = []
    Build(PipelineConfig.from_file(path), ArtifactStore(tmp_path / "store"), on_progress=seen.append).run("raw")
    assert {each.total for each in seen} == {None}


def test_a_stage_that_reads_another_knows_its_number_of_chunks(tmp_path: Path) -> None:
    config = PipelineConfig.from_file(write_dataset(tmp_path, 400))
    seen: dict[str, set[int | None]] = {}
    build = Build(
        config,
        ArtifactStore(tmp_path / "store"),
        chunk_size=SMALL,
        on_progress=lambda each: seen.setdefault(each.stage, set()).add(each.total),
    )
    reports = {report.name: report for report in build.run_all()}
    assert seen["raw"] == {None}
    assert seen["tokens"] == {reports["tokens"].chunks}


@pytest.mark.parametrize("retried", [1, 2])
def test_a_chunk_that_is_computed_again_has_a_line_at_once(retried: int) -> None:
    lines: list[str] = []
    now = 0.0
    log = ProgressLog(lines.append, every=10, clock=lambda: now)
    for second in range(12):
        now = float(second)
        again = {"retried": retried, "trouble": "rows.jsonl:7: its node was lost; trying again"} if second > 4 else {}
        log(Progress("tokens", second + 1, 0, 10 * (second + 1), **again))
    assert lines == [
        "tokens: rows.jsonl:7: its node was lost; trying again",
        f"tokens: chunk 11, 0 reused, 10 rows/s, {retried} retried",
    ]
