"""Formats profiles and format candidates as the cells of a table, for the terminal and the Dagster UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLE_CHARACTERS, NAME_CHARACTERS, REASON_CHARACTERS = 60, 32, 240
NO_ROWS = "·"
"""The cell of a percentage of no rows."""


def column_cells(column: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a row for the profile of one path."""
    lengths = column["lengths"] or {}
    return {
        "column": _line(column["path"], NAME_CHARACTERS),
        "type": _line(column["type"] if column["kind"] not in ("list", "struct") else column["kind"], NAME_CHARACTERS),
        "null": _percentage(column["nulls"], column["rows"]),
        "empty": _percentage(column["empty"], column["rows"]),
        "distinct": "" if column["distinct"] is None else f"{column['distinct']:,}",
        "p50": f"{lengths['p50']:,}" if lengths else "",
        "p99": f"{lengths['p99']:,}" if lengths else "",
        "scripts": ", ".join(f"{name} {part:.0%}" for name, part in column["scripts"].items() if part >= 0.01),
        "example": _line(column["examples"][0], EXAMPLE_CHARACTERS) if column["examples"] else "",
    }


def format_cells(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a row for one format candidate."""
    against = (f"but {role}: {reason}" for role, reason in found.get("doubts", {}).items())
    evidence = "\n".join(_line(reason, REASON_CHARACTERS) for reason in (*found["evidence"], *against))
    return {"format": found["format"], "confidence": f"{found['confidence']:.2f}", "evidence": evidence}


def _percentage(count: int, rows: int) -> str:
    """Return a percentage; less than one percent is not shown as 0."""
    if not count:
        return NO_ROWS
    return f"{count / rows:.0%}" if count >= 0.01 * rows else "<1%"


def _line(text: str, characters: int) -> str:
    """Return text of the data on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"
