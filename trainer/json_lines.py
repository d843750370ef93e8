"""Files of a run with one JSON object per line, each with its `step`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file, oldest first."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def cut_log(path: Path, step: int) -> list[dict[str, Any]]:
    """Remove the lines of all steps after one, which a resumed run writes again, and return the others."""
    kept = [line for line in read_log(path) if line["step"] <= step]
    if path.exists():
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
        partial.replace(path)
    return kept


def append_log(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines, and wait until they are on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
