"""Sketches of JSON columns: with and without pyarrow's types they are the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.schema import sketch as module
from tokenloom.assets.schema.sketch import sketch
from tokenloom.resources.tables import json_values
from tokenloom.resources.tables.json_text import json_column
from tokenloom.resources.tables.json_values import arrow_values

TEXT = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["2024-01-01", "2024-01-01T10:00:00Z"])
SCALARS = {
    "text": TEXT,
    "boolean": st.booleans(),
    "integer": st.integers(-(2**65), 2**65) | st.integers(-9, 9),
    "float": st.floats(allow_nan=False) | st.sampled_from([-0.0, 1.0]),
    "null": st.none(),
}


@st.composite
def shapes(draw: st.DrawFn, depth: int = 0) -> st.SearchStrategy[Any]:
    """Draw a strategy of values of one shape, in which fields can be absent and any value null."""
    kind = draw(st.sampled_from(["text", "text", *SCALARS, "list", "object", "mixed"]))
    if kind == "mixed":
        return st.one_of(*SCALARS.values())
    if kind in SCALARS or depth == 3:
        return SCALARS.get(kind, TEXT) | st.none()
    if kind == "list":
        return st.lists(draw(shapes(depth=depth + 1)), max_size=3) | st.none()
    fields = {
        name: draw(shapes(depth=depth + 1)) for name in draw(st.sets(st.sampled_from(["a", "b", "", "a.b", "é"])))
    }
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def columns(draw: st.DrawFn) -> list[Any]:
    return draw(st.lists(draw(shapes()), min_size=1, max_size=6))


def assert_all_ways_agree(texts: Sequence[str | None]) -> None:
    """Describe JSON as text, by Arrow, and by Arrow with the types of the first texts where they fit the others."""
    table = pa.table({"c": json_column(texts)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "_PART", 8)
        by_first_types = sketch(table).to_pylist()
        patch.setattr(module, "arrow_values", lambda texts: None)
        by_texts = sketch(table).to_pylist()
    assert sketch(table).to_pylist() == by_texts
    assert by_first_types == by_texts


@given(columns(), st.sampled_from([None, 1]))
def test_types_of_arrow_change_nothing(values: list[Any], indent: int | None) -> None:
    texts = [None if value is None else json.dumps(value, indent=indent) for value in values]
    assert_all_ways_agree(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ['{"a": 1, "a": "x"}', '{"a": 2}'],
        ['{"a": {"b": 1}}', '{"a": {"b": 1.0}}'],
        ['{"a": [1, null]}', '{"a": []}', '{"a": null}', "{}"],
        ['[{"a": -0}]', "[]", "[null]"],
        ['{"a": NaN}'],
        ['{"a": "\\ud83d\\ude00\\u0000"}'],
        ['{"at": "2024-01-01"}', '{"at": "soon"}'],
        ['[["2024-01-01 00:00:00"]]'],
        ["{}", "{}"],
        ["[null, null]", "[]"],
        ['[null, "a"]', '["b", "c"]'],
        ['[null, {"a": [null, [null, 1]]}]', '[{"a": [[2]]}]'],
        ['{"a": [[], []], "b": [{}, null], "c": [null]}'],
        ['{"a": {}}', '{"a": {}}'],
        ['{"a": 99999999999999999999}'],
    ],
)
def test_values_that_the_ways_could_read_differently(texts: list[str]) -> None:
    assert_all_ways_agree(texts)


def test_conversations_are_read_by_arrow() -> None:
    texts = pa.array(['[{"role": "user", "content": "2024-01-01"}]', "[]", None, '[{"role": "tool", "id": 3}]'])
    values = arrow_values(texts)
    assert values is not None
    assert [field.name for field in values.type.value_type] == ["role", "content", "id"]
    assert values.to_pylist()[0] == [{"role": "user", "content": "2024-01-01", "id": None}]


@pytest.mark.parametrize("text", [b'["\xff"]', b'[null, {"a": "\xff"}]', b'{"a": [], "b": "\xe9"}'])
def test_texts_that_are_not_utf8_are_not_read_by_arrow(text: bytes) -> None:
    """Strings of an Arrow array are UTF-8, but its reader of JSON does not check that."""
    assert arrow_values(pa.array([text], pa.binary()).view(pa.string())) is None


def test_inner_names_are_counted_before_arrow_reads_them() -> None:
    """Arrow needs memory for each path in each object, however many objects have it."""
    wide = [f'{{"k{number}": 1}}' for number in range(1 << 15)]
    paths = [
        "".join(f'{{"{"ab"[number >> bit & 1]}": ' for bit in range(14)) + "1" + "}" * 14 for number in range(1 << 14)
    ]
    alone = ["[" + ", ".join(wide) + "]"]
    late = ["{}"] * 50_000 + ["{" + ", ".join(text[1:-1] for text in wide[:3000]) + "}"]
    for texts in (wide, paths, alone, late):
        assert arrow_values(pa.array(texts)) is None
    assert arrow_values(pa.array(wide[:1000])) is not None
