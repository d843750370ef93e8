"""JSON columns: the values that paths lead to, and typed readings, compared with Python's json."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenloom.resources.tables.hashes import hash_array
from tokenloom.resources.tables.json_text import is_json, json_column, json_texts, python_values, rows_table
from tokenloom.resources.tables.json_values import (
    as_json,
    as_lists,
    has_long_integer,
    items_of,
    members_of,
    object_slices,
    read_values,
    too_deep,
    typed,
)
from tokenloom.resources.tables.nested_paths import Path, evaluate, leads_somewhere

SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53 + 1, 2**63, 2**64, -(2**63), 10**400]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["\n", '"', "\\", "\\u", "é", "😀", "\x00", "null", "[", "2020-01-01"]),
)
NAME = st.sampled_from(["a", "b", 'q"', "\\", "é", "", "a.b"])
VALUE = st.recursive(
    SCALAR, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAME, inner, max_size=3)), max_leaves=8
)


def texts_of(values: list[Any], ascii: bool = False, indent: int | None = None) -> pa.Array:
    """JSON texts as a file has them; None becomes an Arrow null."""
    written = [None if value is None else json.dumps(value, ensure_ascii=ascii, indent=indent) for value in values]
    return pa.array(written, pa.string())


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in value, type and order of keys; NaN equals itself."""
    return repr(one) == repr(other)


@given(st.lists(VALUE, max_size=6), st.booleans(), st.sampled_from([None, 1]))
def test_typed_values_are_those_of_json(values: list[Any], ascii: bool, indent: int | None) -> None:
    found = typed(texts_of(values, ascii, indent))
    found.validate(full=True)
    assert same(python_values(found), values)
    assert same(python_values(as_json(found)), values)
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 or kinds & {list, dict}:
        assert is_json(found.type)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", None, "-2"], pa.int64()),
        (["1.0", "1e5"], pa.float64()),
        (["1", "2.5"], None),
        (["9223372036854775807"], pa.int64()),
        (["9223372036854775808"], None),
        (["true", None], pa.bool_()),
        (['"a"', '"\\n"'], pa.string()),
        (['"2020-01-01"'], pa.string()),
        ([None], pa.null()),
        (["[]"], None),
        (["1.0", "1"], None),
    ],
)
def test_only_exact_readings_are_typed(texts: list[str | None], kind: pa.DataType | None) -> None:
    found = typed(pa.array(texts, pa.string()))
    assert is_json(found.type) if kind is None else found.type == kind


def follow(value: Any, steps: tuple[str | int, ...]) -> Any:
    """The oracle: one row's value at the end of the steps."""
    for step in steps:
        if isinstance(step, int):
            is_inside = isinstance(value, list) and -len(value) <= step < len(value)
            value = value[step] if is_inside else None
        elif isinstance(value, list):
            value = [follow(item, (step,)) for item in value]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


@given(st.lists(VALUE, max_size=5), st.lists(st.one_of(NAME, st.integers(-3, 2)), max_size=3).map(tuple), st.booleans())
@example([{"a": [{"b": 1}, {}, None, 3]}, {"a": {"b": float("nan")}}], ("a", "b"), False)
@example([[[{"a": 1}], []], {"a": None}], ("a",), True)
def test_paths_lead_to_the_values_of_json(values: list[Any], steps: tuple[str | int, ...], ascii: bool) -> None:
    table = pa.table({"c": json_column(texts_of(values, ascii))})
    expected = [follow(value, steps) for value in values]
    assert same(python_values(evaluate(table, Path("c", steps))), expected)
    if any(isinstance(value, bool | int | float | str | dict) for value in expected):
        assert leads_somewhere(table, Path("c", steps))


def test_a_path_exists_if_any_row_has_it() -> None:
    values = [{"a": {"b": None}}, {"c": [{"d": 1}, 2]}, None, "text"]
    table = pa.table({"c": json_column(texts_of(values)), "nulls": json_column([None] * 4)})
    for steps, exists in {
        ("a",): True, ("a", "b"): True, ("a", "b", "any"): True, ("a", "x"): False, ("c", "d"): True,
        ("c", 0): True, ("c", 0, "d"): True, ("c", "e"): False, (0,): False, ("a", 0): False,
    }.items():  # fmt: skip
        assert leads_somewhere(table, Path("c", steps)) == exists, steps
    assert leads_somewhere(table, Path("nulls", ("x",)))
    assert not leads_somewhere(table, Path("none"))


@given(st.lists(st.dictionaries(NAME, VALUE, max_size=3), max_size=4))
def test_members_and_items_are_sliced(values: list[dict[str, Any]]) -> None:
    found = members_of(texts_of(values))
    names = list(dict.fromkeys(name for value in values for name in value))
    columns = found.columns()
    assert list(columns) == names
    for name in names:
        assert same(python_values(json_column(columns[name])), [value.get(name) for value in values])
    lists = [list(value.values()) for value in values]
    lengths, items = items_of(texts_of(lists))
    assert lengths.tolist() == list(map(len, lists))
    assert same(python_values(json_column(items)), [item for each in lists for item in each])


@given(st.lists(st.one_of(VALUE, st.lists(SCALAR, max_size=3)), max_size=5))
def test_lists_of_a_json_column(values: list[Any]) -> None:
    lists = as_lists(json_column(texts_of(values)))
    assert pa.types.is_list(lists.type)
    items = lists.type.value_type
    found = lists.to_pylist()
    if is_json(items):
        found = [each and [None if text is None else json.loads(text) for text in each] for each in found]
    assert same(found, [value if isinstance(value, list) else None for value in values])


def test_source_text_stays_as_written() -> None:
    written = '{"b": 1.10, "a": [1,  2],\n "c": {"z":null,"a":-0.0}, "n": 1e400, "b": 1.50}'
    assert {name: bytes(value).decode() for name, value in object_slices(written).items()} == {
        "b": "1.50", "a": "[1,  2]", "c": '{"z":null,"a":-0.0}', "n": "1e400",
    }  # fmt: skip
    assert json_texts(json_column(['{"x": NaN}'])).to_pylist() == ['{"x": NaN}']
    assert object_slices('{"x": NaN, "y": [ -Infinity ] , "x": {} }') == {"x": b"{}", "y": b"[ -Infinity ]"}


@pytest.mark.parametrize("levels", [1, 5, 64])
def test_depth_counts_brackets_outside_of_strings(levels: int) -> None:
    nested = ["[" * levels + "]" * levels, '{"a":' * levels + '"]"' + "}" * levels]
    flat = '["' + "[" * 200 + '\\"' + "{" * 200 + '"' + ',"["' * 100 + "]"
    texts = pa.array([*nested, None, flat, *(f"[{text}]" for text in nested)])
    assert too_deep(texts, levels).tolist() == [False] * 3 + [levels < 1] + [True, True]


def test_long_integers_are_found() -> None:
    digits = "7" * 4301
    assert has_long_integer(pa.array(["[1]", f"[{digits}, 2]"]))
    assert not has_long_integer(pa.array(["[1]" * 9999, f"[{digits[1:]}, 2]"]))


def test_json_columns_survive_filters_and_files() -> None:
    from tokenloom.resources.store.objects import encode_table

    table = pa.table({"c": json_column(["[1]", None, '{"a": 2.0}'])})
    read = pa.ipc.open_file(pa.BufferReader(encode_table(table, compressed=True))).read_all()
    assert read.equals(table)
    assert is_json(read.schema.types[0])


@given(st.lists(SCALAR.filter(lambda value: value not in (None, 10**400)), min_size=1, max_size=5))
def test_a_scalar_hashes_alike_in_typed_and_json_columns(values: list[Any]) -> None:
    texts = texts_of(values)
    alone = [hash_array(typed(texts.slice(row, 1)))[0][0] for row in range(len(values))]
    assert hash_array(json_column(texts))[0].tolist() == alone


@given(st.lists(st.dictionaries(NAME, VALUE, max_size=3), max_size=5))
def test_a_table_of_python_rows_holds_their_values(rows: list[dict[str, Any]]) -> None:
    table = rows_table(rows)
    found = {name: python_values(table[name]) for name in table.column_names}
    assert same(found, {name: [row.get(name) for row in rows] for name in found})
    assert set(found) == {name for row in rows for name in row}


def test_values_without_a_json_form_have_arrow_types() -> None:
    table = rows_table(
        [{"b": [b"x"], "n": np.int64(1), "d": date(2020, 1, 1)}, {"b": None, "n": np.int64(2), "d": None}]
    )
    assert table.schema.types == [pa.list_(pa.binary()), pa.int64(), pa.date32()]


@pytest.mark.parametrize(
    "where", ["[{}]", '[{{"role": {}}}]', '[{{"role": null, "content": {}}}]', '[{{"other": {}}}]', "{}"]
)
@pytest.mark.parametrize("opening", ["[", '{"role": ', '[{"role": '])
def test_a_closed_type_is_read_without_recursion_beyond_it(where: str, opening: str) -> None:
    """A level of nesting that the reader followed would end the process long before this many."""
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    closing = "".join({"[": "]", "{": "}"}[char] for char in opening[::-1] if char in "[{")
    deep = opening * 200_000 + "null" + closing * 200_000
    with pytest.raises(pa.ArrowInvalid):
        read_values(pa.array([where.format(deep)]), kind, closed=True)
