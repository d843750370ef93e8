"""Detects what is a row of plain text: a file of prose is one document, lines of a list are records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenloom.assets.raw.formats.record_file import open_records
from tokenloom.config import PipelineConfig
from tokenloom.resources.sources import resolve as sources
from tokenloom.resources.sources.source_file import SourceFile, SourceFiles

SAMPLED_FILES, SAMPLED_CHARACTERS = 16, 1 << 16
"""Files that are read, and characters of each."""

LONGEST_RECORD = 80
"""Most characters that a line of a list usually has."""

MOST_PUNCTUATED, MOST_BLANK = 0.2, 0.05
"""Largest fractions of the lines of a list that have punctuation between or after words, and that are blank."""

_PUNCTUATED = re.compile(r"[.,;:!?…](?:[\"')\]”’»]*)(?:\s|$)|[。，；：！？、۔؟।]")
_TITLE = re.compile(r"\s*(?:=\s[^=]+\s=|#\s\S.*)\s*")
"""A heading of the first level, as in wikitext and Markdown."""

Unit = Literal["line", "paragraph", "file"]


@dataclass(frozen=True)
class TextRows:
    """What is a row of plain text.

    Args:
        unit: the value of `dataset.reader.lines_per_row`.
        reason: why, in a sentence that names the setting.
    """

    unit: Unit
    reason: str


def detect_text_rows(config: PipelineConfig) -> TextRows | None:
    """Return what is a row of a source of plain text; None for other sources, and if the setting is declared.

    Raises:
        TokenloomError: a file cannot be read.
    """
    found = sources.locate(config)
    declared = "lines_per_row" in config.dataset.reader.model_fields_set
    if declared or not isinstance(found, SourceFiles) or any(file.format != "text" for file in found.files):
        return None
    files = found.files
    sampled = files[:: -(-len(files) // SAMPLED_FILES)]
    texts = {file.name: _start(config, file) for file in sampled}
    prose = {name: lines for name, lines in texts.items() if not _is_list(lines)}
    if not prose:
        short = sum(len(line) <= LONGEST_RECORD for lines in texts.values() for line in lines)
        found = f"{short} of {sum(map(len, texts.values()))} lines read are short and without punctuation"
        return _rows("line", f"{found}, as in a list", "file makes each file one row")
    name, lines = next(iter(prose.items()))
    found = f"{name} is prose" if len(files) == 1 else f"{len(prose)} of {len(texts)} files read are prose"
    limit = config.dataset.reader.max_record_bytes
    if large := next((file.name for file in files if (file.local_size or 0) > limit), None):
        unit: Unit = "paragraph" if any(not line.strip() for line in lines) else "line"
        larger = f"{found}, and {large} is larger than dataset.reader.max_record_bytes ({limit:,} bytes)"
        return _rows(unit, larger, "file makes each file one row")
    titles = [line.strip() for line in lines if _TITLE.fullmatch(line)]
    if len(titles) > 1 and len(files) == 1:
        found += f" with several titles ({titles[0]!r}, {titles[1]!r}), at which it is not divided"
    return _rows("file", found, "line makes each line one row, paragraph each paragraph")


def with_text_rows(config: PipelineConfig, rows: TextRows) -> PipelineConfig:
    """Return a config that reads plain text in the given rows."""
    reader = config.dataset.reader.model_copy(update={"lines_per_row": rows.unit})
    return config.model_copy(update={"dataset": config.dataset.model_copy(update={"reader": reader})})


def _rows(unit: Unit, found: str, otherwise: str) -> TextRows:
    each = (
        f"each {unit} is one document"
        if unit != "file"
        else "each file is one document; long ones are split at max_length"
    )
    return TextRows(unit, f"{found}: {each}. dataset.reader.lines_per_row: {otherwise}.")


def _start(config: PipelineConfig, file: SourceFile) -> Sequence[str]:
    """Return the first lines of a file."""
    data = b""
    for block in open_records(config.dataset, file).text:
        data += block
        if len(data) > SAMPLED_CHARACTERS:
            break
    lines = data[:SAMPLED_CHARACTERS].decode(errors="replace").splitlines()
    return lines[:-1] if len(data) > SAMPLED_CHARACTERS and len(lines) > 1 else lines


def _is_list(lines: Sequence[str]) -> bool:
    """Return whether nearly all lines are short, without punctuation, and not blank."""
    filled = [line.strip() for line in lines if line.strip()]
    if len(filled) < 2:
        return False
    long = sum(len(line) > LONGEST_RECORD for line in filled)
    punctuated = sum(bool(_PUNCTUATED.search(line)) for line in filled)
    blank = len(lines) - len(filled)
    return (
        long <= MOST_BLANK * len(filled)
        and punctuated <= MOST_PUNCTUATED * len(filled)
        and blank <= max(1, MOST_BLANK * len(lines))
    )
