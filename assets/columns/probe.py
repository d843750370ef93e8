"""The library behaviour that columns depends on, probed with fixed rows: casts, text of lists, JSON, and all forms."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.stage.fixed_texts import FIXED_TEXTS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import Constant
from tokenloom.resources.tables.json_text import json_column, to_json_text

_FIELDS: dict[str, str | Constant] = {
    "text": "text",
    "n": "n",
    "share": "share",
    "when": "when",
    "yes": "yes",
    "first": "tags[0]",
    "inner": "in.a",
    "joined": "{text}: {tags:letters}",
    "chosen": "tags[{key}]",
    "fixed": Constant(constant=1.5),
}
_MAPPINGS = (
    ColumnMapping("fields", _FIELDS, "text"),
    ColumnMapping("fields", {"share": "share", "in": "in", "joined": "{tags}"}, "share", objects=True),
    ColumnMapping("text", {"text": "text"}),
    ColumnMapping("completion", {"prompt": "text", "completion": "share", "context": "tags[0]", "system": "when"}),
    ColumnMapping("messages", {"messages": "said", "system": "text"}),
    ColumnMapping("messages", {"messages": "as_json", "tools": "tools", "template_kwargs": "in"}),
    ColumnMapping("dialogue", {"prompt": "text", "completion": "as_json"}),
    ColumnMapping("prompt_only", {"prompt": "text"}),
    ColumnMapping("preference", {"prompt": "text", "chosen": "tags[0]", "rejected": "tags[1]"}),
    ColumnMapping("kto", {"prompt": "text", "completion": "tags[1]", "label": "yes"}),
)


def probe() -> list[pa.Table]:
    """Return tables that change if the behaviour of a library changes."""
    rows = pa.Table.from_pylist([_row(number, text) for number, text in enumerate(FIXED_TEXTS)])
    rows = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int32()))
    for name, source in (("as_json", "said"), ("tools", "calls")):
        texts = [to_json_text(value) for value in rows[source].to_pylist()]
        rows = rows.append_column(name, json_column(texts))
    outputs = [to_canonical(rows, mapping) for mapping in _MAPPINGS]
    return [table for output in outputs for table in (output.table, output.rejects)]


def _row(number: int, text: str) -> dict[str, Any]:
    call = {"name": "look", "arguments": {"q": text, "n": number, "share": number / 7, "all": number % 2 == 0}}
    said = [
        {"from": "human", "value": text, "tool_calls": None},
        {"from": "gpt", "value": text[::-1], "tool_calls": [{"function": call}] if number % 2 else None},
    ]
    return {
        "text": text,
        "n": number,
        "key": "AbC2"[number % 4],
        "share": number / 7 * 10.0**number,
        "when": datetime(2024, 2, 29, 12, 30, number),
        "yes": number % 2 == 0,
        "tags": [text, f"{number} {text}", text[:4]],
        "in": {"a": text if number % 2 else None},
        "said": said,
        "calls": [{"name": "look", "parameters": {"q": text}}],
    }
