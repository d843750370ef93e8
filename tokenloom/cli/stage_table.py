"""The table of stages that a build prints, and its JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from tokenloom.assets.building.build import StageReport
from tokenloom.assets.sequences.length_histogram import fill

_COUNTS = {
    "rows in": "rows_in",
    "rows out": "rows_out",
    "rejected": "rejected",
    "filtered": "filtered",
    "tokens": "tokens",
    "chunks": "chunks",
    "reused": "chunks_reused",
}


def stage_table(name: str, reports: Sequence[StageReport]) -> Table:
    """Rows, tokens, chunks, seconds and digest of each stage; nothing filtered, no such column."""
    shown = {
        title: count
        for title, count in _COUNTS.items()
        if count != "filtered" or any(report.filtered for report in reports)
    }
    table = Table(
        title=name, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("stage", style="bold", no_wrap=True)
    for title in (*shown, "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("digest", style="dim", no_wrap=True)
    for report in reports:
        counts = {title: getattr(report, count) for title, count in shown.items()}
        cells = [
            f"[yellow]{value:,}[/]" if title == "rejected" and value else f"{value:,}" if value else "·"
            for title, value in counts.items()
        ]
        table.add_row(report.name, *cells, f"{report.seconds:.2f}", report.digest[:8])
    return table


def stage_json(name: str, reports: Sequence[StageReport], max_length: int) -> dict[str, Any]:
    """What `--json` prints; of sequences also their packing efficiency, `fill`."""
    stages = [asdict(report) for report in reports]
    for stage in stages:
        if stage["name"] == "sequences":
            stage["fill"] = round(fill(stage["counters"], stage["tokens"], max_length), 6)
    return {"dataset": name, "stages": stages}


def summary(reports: Sequence[StageReport]) -> str:
    """One line: what a reader wants to know first."""
    last = reports[-1]
    chunks, reused = sum(report.chunks for report in reports), sum(report.chunks_reused for report in reports)
    seconds = sum(report.seconds for report in reports)
    rejected = sum(report.rejected for report in reports)
    found = f"{last.rows_out:,} rows" + (f", {last.tokens:,} tokens" if last.tokens else "")
    cut = last.counters.get("tokens_cut", 0)
    lost = (f"; {rejected:,} rejected" if rejected else "") + (f"; {cut:,} tokens cut off" if cut else "")
    return f"{found}{lost}; {reused} of {chunks} chunks reused; {seconds:.2f} s"
