"""The probe of `sidecars`: paths into fixed rows, to detect changes in libraries."""

from __future__ import annotations

import pyarrow as pa

from tokenloom.assets.sidecars.stage import kept_columns
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.nested_paths import parse_path

_PATHS = ("text", "answers.text", "answers[-1].text", "answers[0].start", "missing")


def probe() -> list[pa.Table]:
    """Return the values at paths into lists and structs, with nulls."""
    answers = [[{"text": "é", "start": 1}, {"text": None, "start": 2}], [], None, [{"text": "🌊", "start": None}]]
    rows = pa.table({ROW: pa.array(range(4), pa.int32()), "text": ["a", None, "", "b"], "answers": answers})
    return [kept_columns(rows, _PATHS, list(map(parse_path, _PATHS)))]
