"""The library behaviour that raw depends on, probed with fixed bytes: parsing, types, encodings, and conditions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.filters import Filter
from tokenloom.assets.raw.formats.record_file import open_records
from tokenloom.assets.raw.formats.tables import parse_table
from tokenloom.assets.stage.fixed_texts import FIXED_TEXTS
from tokenloom.config import DatasetConfig
from tokenloom.resources.digest import canonical_json
from tokenloom.resources.sources.source_file import SourceFile

_RECORDS = [
    {"text": text, "n": number, "share": number / 7, "tags": [text[:3], None], "in": {"a": {"b": number % 2 == 0}}}
    for number, text in enumerate(FIXED_TEXTS)
]
_ODD = (
    b'{"text": "mixed", "n": 1.5, "when": "2024-02-29T12:30:00Z", "date": "2024-02-29", "none": null}\n'
    b'{"text": 7, "n": 12345678901234567890, "when": "12:30", "tags": []}\n{"text": "cut of\n'
    b'{"text": "x", "n": [1, {"a": null, "b": 1.10}], "tags": {"z": 1, "a": NaN}}\n'
    b'{"text": "\\ud83c\\udf0a \\u00e9", "n": -0.0, "n2": 1e400}\n{"text": "\xff"}\n\n{"a": 1, "a": 2}\n'
)
_CSV = 'name;note;n\n"a ""b"" c";"two\nlines";007\nd;;1e5\ntoo;many;fields;here\ne;é;\n'.encode()
_LATIN = "titre;résumé\ncafé;où l'été à Nîmes\nnaïve;élève déjà là\n".encode("latin-1")

_FILES = {
    "rows.jsonl": b"\n".join(map(canonical_json, _RECORDS)),
    "odd.jsonl": _ODD,
    "mixed.jsonl": b'{"n": 1, "s": "a", "f": 1.0}\n{"n": 2.5, "s": 7, "f": -0.0}\n{"n": 18446744073709551616}\n',
    "rows.json": canonical_json({"data": [{"title": "t", "rows": _RECORDS}]}),
    "rows.csv": _CSV,
    "latin.csv": _LATIN,
    "rows.text": "\n".join(FIXED_TEXTS).encode("utf-16"),
}
_CONDITIONS = (
    'len(text) > 3 and text.startswith("B")',
    "n in [1, 3] or share >= 0.5",
    'not ("e" in text) or n % 3 == 1',
)


@dataclass(frozen=True)
class _Fixed(SourceFile):
    """A file with given content."""

    content: bytes = b""

    def blocks(self, size: int = 0) -> Iterator[bytes]:
        yield self.content


def probe() -> list[pa.Table]:
    """Return tables that change if the behaviour of a library changes."""
    tables: list[pa.Table] = []
    for name, content in _FILES.items():
        opened = open_records(DatasetConfig(name=name), _Fixed(name, name, name.rpartition(".")[2], content=content))
        for block in opened.blocks():
            parsed = opened.parse(block.data, block.bounds, 0).positioned(None, name)
            tables += [parsed.table, parsed.rejects]
    rows = parse_table(_typed(), "rows", np.zeros(0, np.int64), 0).positioned(None, "rows").table
    for condition in _CONDITIONS:
        tables.append(rows.filter(pa.array(Filter.parse(condition).keep(rows))))
    return tables


def _typed() -> pa.Table:
    """Return rows with types that only tables have."""
    count = len(_RECORDS)
    table = pa.Table.from_pylist(_RECORDS)
    times = pa.array([datetime(2024, 2, 29, 12, number) for number in range(count)], pa.timestamp("us", "UTC"))
    binary = pa.array([text.encode() for text in FIXED_TEXTS], pa.binary())
    return table.append_column("when", times).append_column("raw", binary)
