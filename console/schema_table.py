"""What `tokenloom inspect` prints: the columns found, and the formats that they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from tokenloom.console.preview import visible

EXAMPLE_CHARACTERS, TYPE_CHARACTERS = 60, 32


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
        table.add_row(*(Text(cell) for cell in column_cells(column).values()))
    return table


def column_cells(column: Mapping[str, Any]) -> dict[str, str]:
    """One path's profile as the texts of a row."""
    lengths = column["lengths"] or {}
    return {
        "column": _line(column["path"], TYPE_CHARACTERS),
        "type": _line(column["type"] if column["kind"] not in ("list", "struct") else column["kind"], TYPE_CHARACTERS),
        "null": _share(column["nulls"], column["rows"]),
        "empty": _share(column["empty"], column["rows"]),
        "distinct": "" if column["distinct"] is None else f"{column['distinct']:,}",
        "p50": f"{lengths['p50']:,}" if lengths else "",
        "p99": f"{lengths['p99']:,}" if lengths else "",
        "scripts": ", ".join(f"{name} {share:.0%}" for name, share in column["scripts"].items() if share >= 0.01),
        "example": _line(column["examples"][0], EXAMPLE_CHARACTERS) if column["examples"] else "",
    }


def format_table(formats: Sequence[Mapping[str, Any]]) -> Table:
    """The formats that the data may be, the likeliest first, with confidence and evidence."""
    table = _table("formats")
    table.add_column("format", style="bold")
    table.add_column("confidence", justify="right")
    table.add_column("evidence", overflow="fold")
    for found in formats:
        table.add_row(*(Text(cell) for cell in format_cells(found).values()))
    return table


def format_cells(found: Mapping[str, Any]) -> dict[str, str]:
    """One format candidate as the texts of a row."""
    evidence = "\n".join(_line(reason, 4 * EXAMPLE_CHARACTERS) for reason in found["evidence"])
    return {"format": found["format"], "confidence": f"{found['confidence']:.2f}", "evidence": evidence}


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )


def _share(count: int, rows: int) -> str:
    """A share in per cent, a small one not as nothing."""
    if not count:
        return "·"
    return f"{count / rows:.0%}" if count >= 0.01 * rows else "<1%"


def _line(text: str, characters: int) -> str:
    """Text of the data on one line, shortened."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= characters else f"{line[: characters - 1]}…"
