"""Lines about progress: seldom, for the stage at work, with rate and time left where they are known."""

from __future__ import annotations

from pathlib import Path

from support.builds import SMALL
from support.datasets_on_disk import write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.progress import Progress, ProgressLog
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


def test_a_stage_that_reads_another_knows_its_number_of_chunks(tmp_path: Path) -> None:
    config = PipelineConfig.from_file(write_dataset(tmp_path, 400))
    seen: dict[str, set[int | None]] = {}
    build = Build(
        config,
        ArtifactStore(tmp_path / "store"),
        chunk_size=SMALL,
        on_progress=lambda progress: seen.setdefault(progress.stage, set()).add(progress.total),
    )
    reports = {report.name: report for report in build.run_all()}
    assert seen["raw"] == {None}
    assert seen["tokens"] == {reports["tokens"].chunks}
