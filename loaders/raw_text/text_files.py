"""Texts in small local files: a text on each line, or an object with a `text`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenloom.errors import SourceError

JSONL = (".jsonl", ".ndjson", ".json")
PLAIN = (".txt", ".text")


def text_files(path: Path) -> list[Path]:
    """The file, or the files below a folder whose names end as those of texts do, hidden ones apart, in order.

    Raises:
        SourceError: a folder holds none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(entry for entry in path.rglob("*") if entry.suffix.lower() in JSONL + PLAIN and entry.is_file())
    shown = [entry for entry in found if not any(part.startswith(".") for part in entry.relative_to(path).parts)]
    if not shown:
        raise SourceError(f"{path}: the folder holds no file that ends with {', '.join(JSONL + PLAIN)}")
    return shown


def read_texts(path: Path, jsonl: bool | None = None) -> Iterator[tuple[int, str]]:
    """The texts of a UTF-8 file, each with its line, counted from 1; blank lines are left out.

    Args:
        jsonl: each line is an object with a `text`; default: by the file's name.

    Raises:
        SourceError: the file cannot be read, or a line is no such object.
    """
    objects = path.suffix.lower() in JSONL if jsonl is None else jsonl
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if not line.isspace():
                    yield number, _text(line, f"{path}:{number}") if objects else line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: the file cannot be read as UTF-8 text: {error}") from error


def _text(line: str, place: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        remedy = "plain text is in files that end with .txt, or give create_dataloaders is_jsonl=False"
        raise SourceError(f"{place}: this is no JSON: {error}; {remedy}") from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        found = f"it has {', '.join(map(repr, row))}" if isinstance(row, dict) else f"it is a {type(row).__name__}"
        raise SourceError(f"{place}: there is no object with a text in its field 'text'; {found}")
    return text
