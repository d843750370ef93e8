"""The library behaviour that schema depends on, probed with a sketch of fixed rows of every kind of column."""

from __future__ import annotations

import json

import pyarrow as pa

from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.fixed_texts import FIXED_TEXTS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.json_text import json_column


def probe() -> list[pa.Table]:
    """Return tables that change if the behaviour of a library changes."""
    rows = [
        {
            ROW: number,
            "text": text,
            "n": number,
            "share": number / 7,
            "whole": float(number),
            "yes": number % 2 == 0,
            "tags": [text, text[:2]],
            "said": [{"role": "user", "content": text}] * (number % 3),
            "maybe": None if number % 2 else {"a": text or None},
        }
        for number, text in enumerate(FIXED_TEXTS)
    ]
    mixed = [
        [text, number, number / 7, {"a": text}, [None], True, None][number % 7]
        for number, text in enumerate(FIXED_TEXTS)
    ]
    messages = [row["said"] for row in rows]
    json_columns = {
        name: json_column(list(map(json.dumps, values))) for name, values in (("m", mixed), ("s", messages))
    }
    return [sketch(pa.Table.from_pylist(rows)), sketch(pa.table(json_columns))]
