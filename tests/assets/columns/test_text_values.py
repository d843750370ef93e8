"""The text of values is Python's `str` of what `json.loads` or `to_pylist` gives, alone and in mixed columns."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import product
from string import ascii_uppercase
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.columns.source_expressions import as_text
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.json_text import json_column
from tokenloom.resources.tables.json_values import typed

SCALARS = """
    null true false 0 1 -1 -0 2.5 1.0 1.10 -0.0 1e5 1E-7 1e16 1e22 1e400 -1e400 1e-400 0.1 100.0 1e15 123456789.125
    9007199254740993 9223372036854775807 9223372036854775808 18446744073709551616 -9223372036854775809 NaN -Infinity
    "" "a" "1.0" "null" "2020-01-01" "\\n\\u00e9" "\\ud83d\\ude00"
""".split()  # noqa: SIM905
NESTED = ["[]", "{}", "[1]", '{"a": null}', '["a", 1.0]']


def text_of(text: str) -> str | None:
    """The oracle: the text of one JSON value; None for lists and objects."""
    value = json.loads(text)
    return "" if value is None else None if isinstance(value, list | dict) else str(value)


def checked(array: pa.Array, expected: list[str | None]) -> None:
    texts, not_text = as_text(array)
    assert not_text.tolist() == [text is None for text in expected]
    assert texts.to_pylist() == [text or "" for text in expected]


def stored(texts: list[str]) -> pa.Array:
    return pa.array([None if text == "null" else text for text in texts], pa.string())


@pytest.mark.parametrize("text", [*SCALARS, *NESTED])
def test_one_value_is_as_python_writes_it(text: str) -> None:
    for column in (typed(stored([text])), json_column(stored([text]))):
        checked(column, [text_of(text)])


@given(st.lists(st.sampled_from([*SCALARS, *NESTED])))
def test_mixed_values_are_as_python_writes_them(texts: list[str]) -> None:
    checked(typed(stored(texts)), list(map(text_of, texts)))
    checked(json_column(stored(texts)), list(map(text_of, texts)))


@given(st.lists(st.floats()), st.lists(st.floats(width=32)))
def test_floats_are_as_python_writes_them(doubles: list[float], singles: list[float]) -> None:
    checked(pa.array(doubles, pa.float64()), list(map(str, doubles)))
    checked(pa.array(singles, pa.float32()), list(map(str, singles)))
    assert as_text(pa.array([Decimal("1.50"), None]))[0].to_pylist() == ["1.50", ""]


ROWS: list[dict[str, Any]] = [
    {"c": ["x", 1, 2.0, None], "k": 1, "l": ["a", 1, True]},
    {"c": ["y"], "k": "A", "l": ["A"]},
    {"c": "alone", "k": 0, "l": []},
    {"c": ["p", "q"], "k": 1.0, "l": [0.5, 1]},
    {"c": [["nested"]], "k": True, "l": None},
    {"c": None, "k": None, "l": None},
]


def texts_of(expression: str, rows: list[dict[str, Any]]) -> list[str | None]:
    """The text of an expression in each row, with every column as JSON text; None if the row is rejected."""
    columns = {name: json_column([json.dumps(row[name]) for row in rows]) for name in rows[0]}
    columns = {name: json_column(stored(column.storage.to_pylist())) for name, column in columns.items()}
    out = to_canonical(
        pa.table({**columns, ROW: pa.array(range(len(rows)), pa.int32())}), ColumnMapping("fields", {"t": expression})
    )
    found = dict(zip(out.table[ROW].to_pylist(), out.table["t"].to_pylist(), strict=True))
    return [found.get(row) for row in range(len(rows))]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{c}", ["x\n1\n2.0\n", "y", "alone", "p\nq", None, ""]),
        ("{c:letters}", ["A. x\nB. 1\nC. 2.0\nD. ", "A. y", None, "A. p\nB. q", None, ""]),
        ("c[{k}]", ["1", "y", None, "q", None, None]),
        ("c[l={k}]", ["1", "y", None, "q", None, None]),
        ("c[0]", ["x", "y", "", "p", None, ""]),
        ("k", ["1", "A", "0", "1.0", "True", ""]),
    ],
)
def test_expressions_over_json_columns(expression: str, expected: list[str | None]) -> None:
    assert texts_of(expression, ROWS) == expected
    assert [texts_of(expression, [row])[0] for row in ROWS] == expected


def test_after_z_the_items_of_a_list_have_letters_as_in_spreadsheets() -> None:
    lengths = ([ascii_uppercase] * length for length in (1, 2, 3))
    names = ["".join(letters) for alphabets in lengths for letters in product(*alphabets)][: 26 + 26 * 26 + 30]
    assert texts_of("{c:letters}", [{"c": ["x"] * len(names)}]) == ["\n".join(f"{name}. x" for name in names)]
