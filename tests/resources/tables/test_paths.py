"""Nested paths: how they are parsed, and their values compared with a row-by-row oracle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.resources.tables.nested_paths import Path, evaluate, parse_path

NAME = st.text("ab.[]`0-{} /é", max_size=5)
STEP = st.one_of(NAME, st.integers(-3, 3))


@given(NAME, st.lists(STEP, max_size=4))
def test_the_text_of_a_path_parses_back_to_it(column: str, steps: list[str | int]) -> None:
    path = Path(column, tuple(steps))
    assert parse_path(str(path)) == path


@given(st.text("ab.[]`0- ", max_size=8), st.sets(st.text("ab.[]`0- ", max_size=8), max_size=4))
def test_any_text_is_a_path_and_the_name_of_a_column_means_that_column(text: str, names: set[str]) -> None:
    assert parse_path(text, {*names, text}) == Path(text)
    parse_path(text, names)


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("answers.text", ["answers"], Path("answers", ("text",))),
        ("answers.text", ["answers", "answers.text"], Path("answers.text")),
        ("meta.lang.name[0]", ["meta", "meta.lang"], Path("meta.lang", ("name", 0))),
        ("`meta`.lang", ["meta", "meta.lang", "`meta`.lang2"], Path("meta", ("lang",))),
        ("instances[0].output", ["instances"], Path("instances", (0, "output"))),
        ("data[0][-1].x", [], Path("data", (0, -1, "x"))),
        ("Name/Alias", [], Path("Name/Alias")),
        ("Current?", [], Path("Current?")),
        ("Best Answer", [], Path("Best Answer")),
        ("score [1]", ["score [1]"], Path("score [1]")),
        ("size [cm]", [], Path("size [cm]")),
        ("`a.b`.`c[0]`[1]", [], Path("a.b", ("c[0]", 1))),
        ("`tick``s`", [], Path("tick`s")),
    ],
)
def test_names_and_steps_are_distinguished(text: str, columns: list[str], expected: Path) -> None:
    assert parse_path(text, columns) == expected


def follow(value: Any, steps: tuple[str | int, ...]) -> Any:
    """The oracle: return one row's value at the end of the steps."""
    for step in steps:
        if value is None:
            return None
        if isinstance(step, int):
            value = value[step] if -len(value) <= step < len(value) else None
        elif isinstance(value, list):
            value = [follow(item, (step,)) for item in value]
        else:
            value = value.get(step)
    return value


ITEM = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"t": st.one_of(st.none(), st.text(max_size=2)), "n": st.one_of(st.none(), st.lists(st.integers(0, 9)))}
    ),
)
ROWS = st.lists(
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.lists(ITEM, max_size=3)), max_size=3)), max_size=6
)
ITEM_TYPE = pa.struct([("t", pa.string()), ("n", pa.list_(pa.int64()))])
STEPS = [
    (),
    (0,),
    (-1,),
    ("t",),
    ("n",),
    (0, "t"),
    (1, -2, "t"),
    (0, "n", -1),
    (-1, 0, "n", 1),
    ("n", 0, 0),
    (2, 1, "n", 0),
]


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
@given(rows=ROWS, before=ROWS, steps=st.sampled_from(STEPS))
def test_values_equal_those_of_the_oracle(
    kind: Any, rows: list[Any], before: list[Any], steps: tuple[str | int, ...]
) -> None:
    array = pa.array(before + rows, kind(kind(ITEM_TYPE))).slice(len(before))
    found = evaluate(pa.table({"c": array}), Path("c", steps))
    assert found.to_pylist() == [follow(row, steps) for row in rows]
    found.validate(full=True)


def test_lists_of_fixed_size_maps_and_dictionaries_are_followed() -> None:
    fixed = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2)).slice(1)
    maps = pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())).slice(1)
    words = pa.array(["a", None, "a"]).dictionary_encode().slice(1)
    table = pa.table({"fixed": fixed, "maps": maps, "words": words})
    assert evaluate(table, parse_path("fixed[-2]")).to_pylist() == [None, 3]
    assert evaluate(table, parse_path("maps.value")).to_pylist() == [None, []]
    assert evaluate(table, parse_path("maps[0].key")).to_pylist() == [None, None]
    assert evaluate(table, parse_path("words")).to_pylist() == [None, "a"]
    assert evaluate(table, parse_path("words")).type == pa.string()
    pair = pa.table({"m": pa.array([[("k", 1), ("l", 2)]], pa.map_(pa.string(), pa.int64()))})
    assert evaluate(pair, parse_path("m.value")).to_pylist() == [[1, 2]]
    assert evaluate(pair, parse_path("m[1]")).to_pylist() == [{"key": "l", "value": 2}]


@pytest.mark.parametrize("text", ["gone", "gone.x", "s.gone", "s.gone[0]", "s[0]", "l.x", "i.x", "i[0]", "s.a.b"])
def test_missing_columns_and_fields_are_null(text: str) -> None:
    table = pa.table({"s": [{"a": 1}, None], "l": [[1], []], "i": [1, 2]})
    assert evaluate(table, parse_path(text)).to_pylist() == [None, None]
