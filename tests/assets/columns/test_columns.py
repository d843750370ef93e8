"""Columns: text, completion and fields of every row, compared with a per-row oracle."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.canonical_tables import said as message
from support.columns_stage import (
    MAYBE,
    TEXT,
    Row,
    canonical,
    codes,
    config_of,
    described,
    kept,
    mapped,
    table_of,
)
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.stage import STAGE
from tokenloom.assets.stage.definition import validate
from tokenloom.assets.stage.forms import MESSAGES
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import ConfigError, DataValidationError
from tokenloom.resources.tables.json_values import typed


@given(st.lists(st.fixed_dictionaries({"q": MAYBE, "n": st.integers(-5, 5), "a": MAYBE}), max_size=8))
def test_fields_are_strings_and_empty_answers_are_rejected(rows: list[Row]) -> None:
    columns = {"q": pa.string(), "n": pa.int64(), "a": pa.string()}
    out = canonical(rows, columns, prompt_template={"template": "{q} {n} {a}", "label_column": "a"})
    good = [row for row in rows if (row["a"] or "").strip()]
    assert kept(out) == [{"q": row["q"] or "", "n": str(row["n"]), "a": row["a"]} for row in good]
    assert set(codes(out).values()) <= {"empty_answer"}


@pytest.mark.parametrize(
    ("trained", "empty"),
    [
        ({"train_on": ["a"]}, [1, 3]),
        ({"label_column": "a"}, [1, 3]),
        ({"label_column": "b", "train_on": ["a"]}, [2, 3]),
        ({"train_on": ["a", "b"]}, []),
    ],
)
def test_only_one_trained_column_or_the_label_must_not_be_empty(trained: Row, empty: list[int]) -> None:
    """Of several trained columns without a label, any can be empty: the others may have something to train."""
    rows = [{"q": "Q", "a": a, "b": b} for b in ("B", " ") for a in ("A", " ")]
    prompt = {"format_type": "jinja", "template": "{{ q }} {{ a }} {{ b }}", **trained}
    out = canonical(rows, prompt_template=prompt)
    assert codes(out) == {2 * row + 1: "empty_answer" for row in empty}
    assert kept(out) == [row for at, row in enumerate(rows) if at not in empty]


@given(
    st.lists(st.fixed_dictionaries({"instruction": TEXT, "input": MAYBE, "output": MAYBE, "system": MAYBE}), max_size=8)
)
def test_completion_joins_prompt_and_context_by_a_blank_line(rows: list[Row]) -> None:
    columns: dict[str, pa.DataType] = dict.fromkeys(["instruction", "input", "output", "system"], pa.string())
    roles = {"prompt": "instruction", "context": "input", "completion": "output", "system": "system"}
    out = canonical(rows, columns, **mapped(roles))
    good = [row for row in rows if (row["output"] or "").strip()]
    expected = [
        {
            "prompt": row["instruction"] + ("\n\n" + row["input"] if row["input"] else ""),
            "completion": row["output"],
            "system": row["system"] or "",
        }
        for row in good
    ]
    assert kept(out) == expected
    assert set(codes(out).values()) <= {"empty_answer"}


@given(st.lists(st.fixed_dictionaries({"text": MAYBE}), max_size=8))
def test_text_is_unchanged(rows: list[Row]) -> None:
    out = canonical(rows, {"text": pa.string()}, **mapped({"text": "text"}))
    assert kept(out) == [row for row in rows if (row["text"] or "").strip()]
    assert set(codes(out).values()) <= {"empty_text"}


def test_numbers_and_booleans_become_text_and_lists_are_errors() -> None:
    rows = [{"q": 1.5, "a": True}, {"q": None, "a": False}]
    prompt = {"template": "{q} {a}", "label_column": "a"}
    assert kept(canonical(rows, prompt_template=prompt)) == [{"q": "1.5", "a": "True"}, {"q": "", "a": "False"}]
    with pytest.raises(ConfigError, match="column q"):
        canonical([{"q": ["x"], "a": "y"}], prompt_template=prompt)


def test_a_chunk_without_an_optional_column_reads_it_as_empty() -> None:
    tables = (
        table_of([{"instruction": "a", "input": "b", "output": "c"}]),
        table_of([{"instruction": "d", "output": "e"}]),
    )
    mapping = resolve(config_of(), described(*tables))
    found = [kept(to_canonical(table, mapping)) for table in tables]
    assert found[0] == [{"prompt": "a\n\nb", "completion": "c", "system": ""}]
    assert found[1] == [{"prompt": "d", "completion": "e", "system": ""}]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.binary(), pa.struct([("x", pa.int64())])])
def test_a_chunk_with_a_column_other_than_text_rejects_its_rows(kind: pa.DataType) -> None:
    value = {"list": ["x"], "binary": b"\xff", "struct": {"x": 1}}[str(kind).split("<")[0]]
    mapping = ColumnMapping("fields", {"q": "q", "a": "a"}, "a")
    table = table_of([{"q": value, "a": "fine"}, {"q": None, "a": "fine"}], {"q": kind, "a": pa.string()})
    out = to_canonical(table, mapping)
    assert codes(out) == {1: "not_text"}
    assert kept(out) == [{"q": "", "a": "fine"}]


def test_a_template_field_can_be_a_path() -> None:
    rows = [{"q": "a", "answers": {"text": ["b", "c"]}}, {"q": "d", "answers": {"text": []}}]
    prompt = {"template": "{q}: {answers.text[1]}", "label_column": "answers.text[1]"}
    out = canonical(rows, prompt_template=prompt)
    assert kept(out) == [{"q": "a", "answers.text[1]": "c"}]
    assert codes(out) == {3: "empty_answer"}


def test_the_declared_settings_are_json() -> None:
    config = config_of(**mapped({"prompt": "q", "completion": {"constant": True}}))
    declared = json.loads(json.dumps(STAGE.read(config)))
    assert declared["dataset.column_mapping"] == {"prompt": "q", "completion": {"constant": True}}


SHARED = {name: pa.array(["", ""]) for name in ("tools", "template_kwargs")}


@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ({"text": pa.array(["a", None])}, "column text has nulls"),
        ({"messages": pa.array([[], []], MESSAGES)}, "one canonical form"),
        ({"messages": pa.array([[], []], MESSAGES), **SHARED}, "messages have a role"),
        ({"messages": pa.array([[message("", "a")]] * 2, MESSAGES), **SHARED}, "messages have a role"),
        ({"messages": pa.array([[message("user", None)]] * 2, MESSAGES), **SHARED}, "and a text"),
        ({"text": pa.array(["a", "b"]), "_row": pa.array([1, 1], pa.int32())}, "row positions ascend"),
    ],
)
def test_the_checks_fail_for_tables_that_are_not_canonical(columns: dict[str, pa.Array], check: str) -> None:
    table = pa.table({"_row": pa.array([0, 1], pa.int32()), **columns})
    with pytest.raises(DataValidationError, match=check):
        validate(STAGE, table)


def test_the_text_of_a_number_does_not_depend_on_other_rows() -> None:
    numbers = [30000000000, 12345678901, 0, -7, 2**53 + 1, 2**64, 1e16, 0.5, -0.0]

    def texts_of(numbers: list[float]) -> list[str]:
        rows = {"n": typed(pa.array(map(str, numbers))), ROW: pa.array(range(len(numbers)), pa.int32())}
        return to_canonical(pa.table(rows), ColumnMapping("fields", {"n": "n"})).table["n"].to_pylist()

    assert texts_of(numbers) == [text for number in numbers for text in texts_of([number])] == list(map(str, numbers))
