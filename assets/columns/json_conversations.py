"""Parses conversations that are JSON text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.message_objects import Unfit
from tokenloom.resources.tables.flags import Flags, flags_of
from tokenloom.resources.tables.json_depth import read_json_value
from tokenloom.resources.tables.json_values import read_values

LAYOUTS = (("role", "content"), ("from", "value"))
"""Names of the fields of messages that are read without Python."""

_LIST = r"^\s*\["
_LIST_OF_MESSAGES = r'^\s*\[\s*\{\s*"(?:role|content|from|value)"\s*:'


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
    for layout in LAYOUTS:
        kind = pa.list_(pa.struct([(name, pa.string()) for name in layout]))
        try:
            lists = read_values(text, kind, closed=True)  # refuses what is deeper than the type before it recurses
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        lists.validate(full=True)
        return lists
    return None


def parse(texts: Sequence[str]) -> list[Any]:
    """Return the value of each JSON text, or `Unfit` in its place."""
    return [_value(text) for text in texts]


def _value(text: str) -> Any:
    try:
        return read_json_value(text)
    except ValueError as error:
        return Unfit("invalid_json", f"not valid JSON: {error}")
