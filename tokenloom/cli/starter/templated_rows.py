"""Finds rows that are templated already: texts with control tokens, or with the marks of well-known chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.definition import InputChunk
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store.manifest_chunks import source_place
from tokenloom.resources.tables.flags import Flags, any_of, flags_of
from tokenloom.resources.tables.json_text import is_json, json_texts
from tokenloom.resources.tables.nested_paths import is_list, list_values, plain
from tokenloom.resources.tables.ragged import one_array

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
    own = sorted(tokenizer[1], key=len, reverse=True) if tokenizer else []
    pattern = "|".join([*map(re.escape, own), *_MARKS])
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
    line = (
        f"{of_rows} have control tokens, or marks of a chat template, in their texts: {', '.join(named)}; "
        f"e.g. {example}. They become plain text; if the rows are templated already, map them to text and set {_SET}."
    )
    if foreign and tokenizer:
        line += f" {', '.join(foreign)}: not among the control tokens of {tokenizer[0]}."
    return [line]


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
