"""What `tokenloom explain` prints: a table of stages, then why each will do something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from tokenloom.assets.building.explain import StageExplanation

_STYLES = {"hit": "green", "miss": "yellow", "waits": "cyan"}


def explanation_table(name: str, stages: Sequence[StageExplanation]) -> Table:
    """Whether each stage hits, misses or waits, and how many of its chunks do."""
    table = Table(
        title=name, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("stage", style="bold", no_wrap=True)
    table.add_column("", no_wrap=True)
    for title in ("chunks", "hits", "misses", "waits"):
        table.add_column(title, justify="right", no_wrap=True)
    for stage in stages:
        counts = (stage.chunks, stage.hits, stage.misses, stage.waits)
        cells = [f"{count:,}" if count else "·" for count in counts]
        table.add_row(stage.name, f"[{_STYLES[stage.state]}]{stage.state}[/]", *cells)
    return table


def explanation_lines(stages: Sequence[StageExplanation]) -> Iterator[str]:
    """The reasons, each behind its stage."""
    told = [(stage.name, reason) for stage in stages for reason in stage.reasons]
    yield from (f"{name}: {reason}" for name, reason in told)
    if all(stage.state == "hit" for stage in stages):
        yield "nothing would be computed"


def explanation_json(name: str, stages: Sequence[StageExplanation]) -> dict[str, Any]:
    """What `--json` prints."""
    return {"dataset": name, "stages": [{**asdict(stage), "state": stage.state} for stage in stages]}
