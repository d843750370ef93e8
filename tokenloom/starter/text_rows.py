"""Detects what is a row of plain text: a document, a line of a list, or a text that is templated already."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.record_file import open_records
from tokenloom.assets.stage.definition import InputChunk
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.sources import resolve as sources
from tokenloom.resources.sources.source_file import SourceFile, SourceFiles
from tokenloom.resources.store.manifest_chunks import source_place
from tokenloom.resources.tables.json_text import is_json, json_texts
from tokenloom.resources.tables.nested_paths import is_list, list_values, plain
from tokenloom.resources.tables.ragged import Flags, any_of, flags_of, one_array

MOST_CHUNKS = 32
"""Chunks of rows that are searched."""

MOST_TOKENS = 6
"""Tokens that are named."""

_EXAMPLES, _AROUND = 100, 20
_MARKS = (
    r"<\|[A-Za-z0-9_:/. -]{1,40}\|>",
    r"<｜[^｜<>]{1,40}｜>",
    r"\[/?INST\]|<</?SYS>>",
    r"<(?:start|end)_of_turn>|<bos>|<eos>",
    r'(?:\A|")\s*<s>|</s>\s*(?:\z|")',
)
"""Marks of ChatML, Llama, Phi, DeepSeek, Mistral, Gemma and others; `<s>` is HTML unless it starts or ends a text."""

_SET = "prompt_template.format_type: text and tokenizer.control_tokens_in_content: keep"


def templated_rows(
    chunks: Iterable[tuple[InputChunk, pa.Table]], tokenizer: tuple[str, Collection[str]] | None
) -> list[str]:
    """Return a line about raw rows that hold control tokens or marks of chat templates; nothing if there are none.

    Args:
        chunks: the raw chunks, each with its rows.
        tokenizer: name and control tokens of the tokenizer, if one is chosen.
    """
    # An alternation takes the first that matches, so longer tokens come before those that they begin with.
    own = sorted(tokenizer[1], key=len, reverse=True) if tokenizer else []
    pattern = "|".join([*map(re.escape, own), *_MARKS])
    # The end of a text is \z for Arrow's regular expressions, and \Z for Python's.
    search = re.compile(pattern.replace(r"\z", r"\Z"))
    rows, searched, tokens, example = 0, 0, dict[str, None](), ""
    for chunk, table in islice(chunks, MOST_CHUNKS):
        searched += table.num_rows
        found = np.zeros(table.num_rows, bool)
        for name in table.column_names:
            if name == ROW:
                continue
            array = one_array(table[name])
            flags = _flags(array, pattern)
            found |= flags
            for row in np.flatnonzero(flags)[:_EXAMPLES] if len(tokens) < MOST_TOKENS else ():
                text = _text(array[int(row)], is_json(array.type))
                tokens |= dict.fromkeys(match.group().strip('" \n') for match in search.finditer(text))
                if not example:
                    at, end = next(search.finditer(text)).span()
                    place = source_place(chunk.runs, chunk.unit, table[ROW][int(row)].as_py())
                    example = f"{name} of {place} ({text[max(at - _AROUND, 0) : end + _AROUND]!r})"
        rows += int(found.sum())
    if not rows:
        return []
    named = [token for token in tokens if token.isprintable()][:MOST_TOKENS]
    foreign = [token for token in named if tokenizer and token not in tokenizer[1]]
    of_rows = f"{rows:,} of {searched:,} rows" if rows < searched else f"All {rows:,} rows"
    marked = f"{of_rows} have control tokens, or marks of a chat template, in their texts: {', '.join(named)}"
    remedy = f"They become plain text; if the rows are templated already, map them to text and set {_SET}."
    more = f" {', '.join(foreign)}: not among the control tokens of {tokenizer[0]}." if foreign and tokenizer else ""
    return [f"{marked}; e.g. {example}. {remedy}{more}"]


def _flags(array: pa.Array, pattern: str) -> Flags:
    """Return which values contain a text that matches, at any depth."""
    array = json_texts(array) if is_json(array.type) else plain(array)
    if pa.types.is_string(array.type):
        return flags_of(pc.match_substring_regex(array, pattern))
    if pa.types.is_struct(array.type):
        inner = [_flags(values, pattern) for values in array.flatten()]
        return np.logical_or.reduce(inner) if inner else np.zeros(len(array), bool)
    if is_list(array.type):
        lengths, values = list_values(array)
        return any_of(_flags(values, pattern), lengths)
    return np.zeros(len(array), bool)


def _text(value: pa.Scalar, written: bool) -> str:
    """Return a value as text: a string itself, others as JSON."""
    found = json.loads(value.value.as_py()) if written else value.as_py()
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)


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
    # Every n-th file, n rounded up: at most `SAMPLED_FILES`, spread over all of them.
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
    each = f"each {unit} is one document{'; long ones are split at max_length' if unit == 'file' else ''}"
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
    few_long = sum(len(line) > LONGEST_RECORD for line in filled) <= MOST_BLANK * len(filled)
    few_punctuated = sum(bool(_PUNCTUATED.search(line)) for line in filled) <= MOST_PUNCTUATED * len(filled)
    # One blank line does not separate paragraphs: many lists end with one.
    return few_long and few_punctuated and len(lines) - len(filled) <= max(1, MOST_BLANK * len(lines))
