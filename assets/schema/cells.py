"""Profiles and candidates as the texts of a table's rows: for a terminal, and for Dagster's UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLE_CHARACTERS, NAME_CHARACTERS, REASON_CHARACTERS = 60, 32, 240


def column_cells(column: Mapping[str, Any]) -> dict[str, str]:
    """One path's profile as the texts of a row."""
    lengths = column["lengths"] or {}
    return {
        "column": _line(column["path"], NAME_CHARACTERS),
        "type": _line(column["type"] if column["kind"] not in ("list", "struct") else column["kind"], NAME_CHARACTERS),
        "null": _share(column["nulls"], column["rows"]),
        "empty": _share(column["empty"], column["rows"]),
        "distinct": "" if column["distinct"] is None else f"{column['distinct']:,}",
        "p50": f"{lengths['p50']:,}" if lengths else "",
        "p99": f"{lengths['p99']:,}" if lengths else "",
        "scripts": ", ".join(f"{name} {share:.0%}" for name, share in column["scripts"].items() if share >= 0.01),
        "example": _line(column["examples"][0], EXAMPLE_CHARACTERS) if column["examples"] else "",
    }


def format_cells(found: Mapping[str, Any]) -> dict[str, str]:
    """One format candidate as the texts of a row."""
    against = (f"but {role}: {reason}" for role, reason in found.get("doubts", {}).items())
    evidence = "\n".join(_line(reason, REASON_CHARACTERS) for reason in (*found["evidence"], *against))
    return {"format": found["format"], "confidence": f"{found['confidence']:.2f}", "evidence": evidence}


def _share(count: int, rows: int) -> str:
    """A share in per cent, a small one not as nothing."""
    if not count:
        return "·"
    return f"{count / rows:.0%}" if count >= 0.01 * rows else "<1%"


def _line(text: str, characters: int) -> str:
    """Text of the data on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"
