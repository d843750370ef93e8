"""Parses conversations that are JSON text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.message_objects import Unfit
from tokenloom.assets.schema.evidence.speakers import columns_of_turns, pair_of
from tokenloom.resources.tables.flags import Flags, flags_of
from tokenloom.resources.tables.json_depth import read_json_value
from tokenloom.resources.tables.json_values import read_values

LAYOUTS = (("role", "content"), ("from", "value"))
"""Names of the fields of messages that are read without Python."""

_MESSAGES = [pa.struct([(name, pa.string()) for name in layout]) for layout in LAYOUTS]
_LIST = r"^\s*(?:\[|\{\s*\"(?:role|content|from|value)\"\s*:\s*\[)"
_LIST_OF_MESSAGES = r"""^\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:"""
_TURNS = re.compile(r'\s*\[\s*\{\s*"(?:[^"\\]*"\s*:\s*\[|(?!role"|content"|from"|value")[^"\\]+"\s*:)')


def is_message_json(text: pa.Array, certain: bool) -> Flags:
    """Return which texts start like a JSON list.

    Args:
        certain: whether to require the start of a list of messages.
    """
    return flags_of(pc.match_substring_regex(text, _LIST_OF_MESSAGES if certain else _LIST))


def read_plain(text: pa.Array) -> pa.Array | None:
    """Return the lists of {role, content} or {from, value} that JSON texts are, in one pass of pyarrow's reader.

    Returns:
        The lists with texts or nulls as fields; None if a text is not a list of objects that have at most these fields,
        each once, with texts or nulls as values.
    """
    for item in (*_MESSAGES, *_turns_of_first(text)):
        kind = pa.list_(item)
        try:
            lists = read_values(text, kind, closed=True)  # refuses what is deeper than the type before it recurses
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        lists.validate(full=True)
        return lists
    return None


def _turns_of_first(text: pa.Array) -> Iterator[pa.DataType]:
    """Yield the type of the objects in the first text if they are pairs of turns or objects of lists."""
    first = text[0].as_py() if len(text) else None
    if first is None or not _TURNS.match(first):
        return
    value = _value(first)
    item = value[0] if isinstance(value, list) and value else None
    names = pair_of(item) or columns_of_turns(item) if isinstance(item, dict) else None
    if isinstance(item, dict) and names:
        kind = pa.string() if pair_of(item) else pa.list_(pa.string())
        yield pa.struct([(name, kind) for name in item if name in names])


def parse(texts: Sequence[str]) -> list[Any]:
    """Return the value of each JSON text, or `Unfit` in its place."""
    return [_value(text) for text in texts]


def _value(text: str) -> Any:
    try:
        return read_json_value(text)
    except ValueError as error:
        return Unfit("invalid_json", f"not valid JSON: {error}")
