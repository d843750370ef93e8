"""Reads and tokenizes the texts of local files: one text per line, or one JSON object with a `text` per line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from tokenloom.errors import SourceError
from tokenloom.loaders.raw_text.encoding import TextEncoder, encode_texts
from tokenloom.resources.tables.json_depth import read_json_value
from tokenloom.resources.tables.ragged import Ints

JSONL = (".jsonl", ".ndjson", ".json")
PLAIN = (".txt", ".text")

TEXTS_AT_ONCE = 1024
"""Texts tokenized in one call."""
MAX_CHARACTERS = 64 << 20
"""The length of a line; longer ones are an error before they fill the memory."""


def text_files(path: Path) -> list[Path]:
    """Return the file, or, for a folder, its text files at any depth in sorted order, without hidden ones.

    Raises:
        SourceError: the folder has no text files.
    """
    if not path.is_dir():
        return [path]
    files = sorted(entry for entry in path.rglob("*") if entry.suffix.lower() in JSONL + PLAIN and entry.is_file())
    visible = [entry for entry in files if not any(part.startswith(".") for part in entry.relative_to(path).parts)]
    if not visible:
        raise SourceError(f"{path}: the folder has no files ending in {', '.join(JSONL + PLAIN)}")
    return visible


def tokenized_file(
    path: Path, tokenizer: TextEncoder, max_length: int | None = None, jsonl: bool | None = None
) -> Iterator[tuple[Ints, list[Ints]]]:
    """Tokenize the texts of a UTF-8 file, block by block. Blank lines are skipped.

    Args:
        max_length: truncates each text, in tokens.
        jsonl: whether each line is an object with a `text`; default: by the file's name.

    Yields:
        for each block, the line numbers of its texts, counted from 1, int64 [texts], and the token ids of each text,
        int64 [tokens].

    Raises:
        SourceError: the file cannot be read, or a line is not such an object or longer than `MAX_CHARACTERS`.
        TypeError: `encode` returned neither ids, nor a mapping with `input_ids`, nor an Encoding.
    """
    texts = _texts(path, path.suffix.lower() in JSONL if jsonl is None else jsonl)
    while block := list(islice(texts, TEXTS_AT_ONCE)):
        ids = encode_texts(tokenizer, [text for _, text in block], max_length)
        yield np.array([line for line, _ in block]), ids


def _texts(path: Path, jsonl: bool) -> Iterator[tuple[int, str]]:
    """Yield each text with its line number."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MAX_CHARACTERS + 1), ""), 1):
                if len(line) > MAX_CHARACTERS:
                    raise SourceError(f"{path}:{number}: the line has more than {MAX_CHARACTERS:,} characters")
                if not line.isspace():
                    yield number, _json_text(line, f"{path}:{number}") if jsonl else line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read the file as UTF-8 text: {error}") from error


def _json_text(line: str, place: str) -> str:
    try:
        row = read_json_value(line)
    except ValueError as error:
        remedy = "use the ending .txt for plain text, or pass is_jsonl=False to create_dataloaders"
        raise SourceError(f"{place}: not valid JSON: {error}; {remedy}") from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        got = f"an object with {', '.join(map(repr, row))}" if isinstance(row, dict) else f"a {type(row).__name__}"
        raise SourceError(f"{place}: expected an object with a string in its field 'text', got {got}")
    return text
