"""What `tokenloom inspect` prints: the columns found, and the formats that they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from tokenloom.assets.schema.cells import column_cells, format_cells
from tokenloom.cli.visible import visible


def column_table(title: str, columns: Sequence[Mapping[str, Any]]) -> Table:
    """Type, nulls, empties, distinct values, lengths, scripts and an example of every path."""
    table = _table(title)
    table.add_column("column", overflow="fold", style="bold")
    table.add_column("type", overflow="fold")
    for name in ("null", "empty", "distinct", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("scripts")
    table.add_column("example", overflow="ellipsis", no_wrap=True, style="dim")
    for column in columns:
        table.add_row(*(Text(visible(cell)) for cell in column_cells(column).values()))
    return table


def format_table(formats: Sequence[Mapping[str, Any]]) -> Table:
    """The formats that the data may be, the likeliest first, with confidence and evidence."""
    table = _table("formats")
    table.add_column("format", style="bold")
    table.add_column("confidence", justify="right")
    table.add_column("evidence", overflow="fold")
    for found in formats:
        table.add_row(*(Text(visible(cell)) for cell in format_cells(found).values()))
    return table


def _table(title: str) -> Table:
    return Table(
        title=Text(visible(title), style="bold"),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
