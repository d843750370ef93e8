"""Lines about the turns of conversations: how many are trained, and how many not as at inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenloom.assets.building.stage_report import StageReport
from tokenloom.assets.prompts.trained_turns import NOT_EXACT, TEXTS, TURNS
from tokenloom.assets.stage.texts import LOST
from tokenloom.assets.tokens.stage import FURTHER


def turn_lines(reports: Sequence[StageReport]) -> Iterator[str]:
    """Yield lines about the trained turns, and about the texts of rows that have several."""
    stages = {report.name: report for report in reports}
    if (prompts := stages.get("prompts")) is None or TURNS not in prompts.counters:
        return
    counters = prompts.counters
    line = f"{counters[TURNS]:,} turns trained"
    if counters[NOT_EXACT]:
        line += f", {counters[NOT_EXACT]:,} of them not as at inference (certificate of prompts: turns)"
    yield line
    if counters[TEXTS] == prompts.rows_out:
        return
    line = f"{counters[TEXTS]:,} texts of {prompts.rows_out:,} rows"
    if tokens := stages.get("tokens"):
        further = tokens.counters.get(FURTHER, 0)
        line += f": {further / (tokens.tokens - further):.1%} more tokens than with the longest of each row"
    if lost := stages[reports[-1].name].counters.get(LOST):
        line += f"; {lost:,} of them too long"
    yield line
