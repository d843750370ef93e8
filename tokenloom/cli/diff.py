"""What `tokenloom diff` prints: rows and tokens of each split, places, and settings that differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenloom.assets.building.diff import DatasetDiff, SettingDiff, SplitDiff, diff_datasets
from tokenloom.cli.visible import say, visible
from tokenloom.resources.store import ArtifactStore

_SHOWN = 60
"""Characters of a setting's value that are shown."""


def run_diff(a: str, b: str, store: str | None, as_json: bool) -> int:
    """Print what differs between two datasets or versions; returns the exit code."""
    found = diff_datasets(ArtifactStore(store), a, b)
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=120)

    for name, side in (("A", found.a), ("B", found.b)):
        say(console, f"{name}: {side.dataset}, version {side.version}")
    console.print(split_table(found.splits), highlight=False)
    if found.settings:
        console.print(setting_table(found.settings), highlight=False)
    for line in diff_lines(found):
        say(console, line)
    return 0


def split_table(splits: list[SplitDiff]) -> Table:
    """Rows and tokens on both sides; ? where the store no longer tells."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("split", style="bold")
    table.add_column("")
    for name in ("A", "B", "added", "removed", "changed"):
        table.add_column(name, justify="right", no_wrap=True)
    for split in splits:
        for what, counts in (("rows", split.rows), ("tokens", split.tokens)):
            cells = [_count(counts[name]) for name in ("a", "b", "added", "removed")]
            names = ("changed",) if "changed" in counts else ("changed_from", "changed_to")
            changed = " → ".join(dict.fromkeys(_count(counts[name]) for name in names))
            table.add_row(visible(split.split) if what == "rows" else "", what, *cells, changed)
    return table


def setting_table(settings: list[SettingDiff]) -> Table:
    """The settings, library versions and side inputs that are not the same."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("stage", "what", "A", "B"):
        table.add_column(name, overflow="fold", style="bold" if name == "stage" else "")
    for found in settings:
        table.add_row(*(Text(cell) for cell in (found.stage, visible(found.name), _value(found.a), _value(found.b))))
    return table


def diff_lines(diff: DatasetDiff) -> Iterator[str]:
    """Examples of places, what could not be compared, and whether anything differs."""
    for split in diff.splits:
        for kind, places in split.examples.items():
            if places:
                yield f"{split.split}, {kind}: e.g. {', '.join(places)}"
    yield from diff.notes
    if diff.a.version.digest == diff.b.version.digest:
        yield "A and B hold the same sequences"
    elif not diff.settings and all(split.is_empty for split in diff.splits):
        yield "A and B hold the same rows in another order or in other chunks"


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}" if value else "·"


def _value(value: Any) -> str:
    text = "·" if value is None else visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
