"""Stored sketches of the right types with content that no chunk has are merged, or refused with a StoreError."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from support.soak import SOAK
from tokenloom.assets.schema.sketch import SKETCH, sketch
from tokenloom.assets.schema.stage import STAGE
from tokenloom.assets.stage.definition import validate
from tokenloom.errors import DataValidationError, StoreError
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.store.objects import encode_table

CASES = 5000 if SOAK else 150
Row = dict[str, Any]
ROWS: list[Row] = [
    {"prompt": f"Say {number % 3}", "n": number, "of": {"a": 1}, "messages": [{"role": "user", "content": "Hi"}]}
    for number in range(20)
]


def crafted(kind: pa.DataType, draw: random.Random) -> Any:
    if pa.types.is_list(kind):
        values = [crafted(kind.value_type, draw) for _ in range(draw.choice((0, 1, 2, 5, 100)))]
        return [None, *values] if draw.random() < 0.1 else values
    if pa.types.is_integer(kind):
        return draw.choice((0, 1, -1, 7, (1 << 31) - 1, 1 << 40, -(1 << 63), (1 << 63) - 1))
    if pa.types.is_binary(kind):
        return bytes(draw.choice((0, 1, 8, 24, 4000)))
    return (
        draw.random() < 0.5 if pa.types.is_boolean(kind) else draw.choice(("", "x", "list", "struct", "text", "role"))
    )


def facts(store: ArtifactStore, table: pa.Table) -> dict[str, Any]:
    """Return the facts of a dataset of one chunk that has this sketch."""
    output = store.objects.put(encode_table(table, compressed=True))
    counts = {"rows_in": 20, "rows_out": 20, "rejected": 0, "filtered": 0, "tokens": 0, "table_rows": table.num_rows}
    digests = {"input": "a" * 64, "key": "b" * 64, "output": output}
    chunk = ManifestChunk(
        split="train", runs=(Run("a", 0, 0),), unit="row", **digests, bytes=1, rejects=None, **counts, counters={}
    )
    context: Any = SimpleNamespace(store=store, latest=None)
    return STAGE.facts(context, Manifest("small", "schema", (chunk,)))


def test_crafted_sketches_are_merged_or_refused(tmp_path: Path) -> None:
    store, whole = ArtifactStore(tmp_path), sketch(pa.Table.from_pylist(ROWS)).to_pylist()
    store.prepare()
    draw, merged = random.Random(3), 0
    for _ in range(CASES):
        rows = [dict(row) for row in whole]
        for _ in range(draw.choice((1, 1, 2, 20))):
            field = draw.choice([*SKETCH])
            draw.choice(rows)[field.name] = crafted(field.type, draw)
        table = pa.Table.from_pylist(rows[draw.choice((0, 0, 0, 1)) :], SKETCH)
        with suppress(StoreError):
            facts(store, table)
            merged += 1
    assert CASES // 5 < merged < CASES * 4 // 5


@pytest.mark.parametrize("rows", [ROWS, [{"of": []}], [{"of": None}], [{"of": 70 * str(n)} for n in range(99)]])
def test_sketches_of_rows_are_merged(rows: list[Row], tmp_path: Path) -> None:
    store, table = ArtifactStore(tmp_path), pa.Table.from_pylist(rows)
    store.prepare()
    columns = [profile["column"] for profile in facts(store, sketch(table))["columns"]]
    assert {*columns} == {*table.column_names}


@pytest.mark.parametrize(
    "name", [field.name for field in SKETCH if pa.types.is_list(field.type) and field.name != "steps"]
)
def test_lists_with_a_null_are_refused_by_their_name(name: str, tmp_path: Path) -> None:
    store, (whole, *rows) = ArtifactStore(tmp_path), sketch(pa.Table.from_pylist(ROWS)).to_pylist()
    store.prepare()
    with pytest.raises(StoreError, match=f"has nulls in {name}"):
        facts(store, pa.Table.from_pylist([{**whole, name: [None]}, *rows], SKETCH))


@pytest.mark.parametrize(
    ("changed", "rule", "merged"),
    [
        ({"nulls": 1}, "nulls, empty and sampled values do not exceed the rows", True),
        ({"empty": 21}, "nulls, empty and sampled values do not exceed the rows", True),
        ({"lengths": [0, 0, 0, 0, 0, 19]}, "length buckets add up to the values", True),
        ({"traits": [0] * 8 + [21]}, "traits count at most the sampled texts", False),
        ({"hashes": bytes(8 * 21)}, "hashes do not exceed the values or the limit", True),
        ({"counts": [7, 7, 7]}, "value counts add up", True),
        ({"counts": [7, 13]}, "value counts add up", False),
        ({"rows": 21, "lengths": [0] * 5 + [21], "counts": [7, 7, 7]}, "every column has the chunk's rows", True),
    ],
)
def test_each_rule_of_a_sketch_is_checked(tmp_path: Path, changed: Row, rule: str, merged: bool) -> None:
    rows = sketch(pa.Table.from_pylist(ROWS)).to_pylist()
    at = next(number for number, row in enumerate(rows) if row["steps"] == ["prompt"])
    table = pa.Table.from_pylist([*rows[:at], {**rows[at], **changed}, *rows[at + 1 :]], SKETCH)
    with pytest.raises(DataValidationError, match=rule):
        validate(STAGE, table)
    store = ArtifactStore(tmp_path)
    store.prepare()
    with nullcontext() if merged else pytest.raises(StoreError):
        facts(store, table)
