"""The values of JSON rows are those that `json.loads` gives for each line, whatever the neighbours are."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.raw_rows import Row, chunks_of, read
from support.soak import each
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.resources.tables.json_text import json_texts

SCALARS = [
    "null", "true", "false", "0", "1", "-1", "-0", "2.5", "1.0", "1.10", "-0.0", "1e5", "1E-7", "1e16", "1e400",
    "-1e400", "1e-400", "0.1", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "-9223372036854775809", "123456789012345678901234567890",
]  # fmt: skip
TEXTS = [
    '""', '"a"', '" "', '"1"', '"null"', '"2020-01-01"', '"2020-01-01T00:00:00Z"', r'"\n\t\u0000\/"', r'"\u00e9é"',
    r'"\ud83d\ude00 😀"', r'"\\ud800"', '"[1"', '"}"', r'"\""',
]  # fmt: skip
NESTED = [
    "[]", "{}", "[null]", "[1, 2.5]", '[null, "a", 1, [], {}]', '{"z": null, "a": 1}', '{"a": 1, "z": null}',
    '{"default":null,"enum":[null,1.0,1]}', '{"a" : [ 1 , 2 ] }', '{"k": 1, "k": {"k": [2]}}',
    '[["text", 0], ["b", 1]]', "[" * 40 + "]" * 40, '{"d":' * 60 + "1.10" + "}" * 60,
    '[{"role": "user", "content": null, "n": 18446744073709551616}]',
]  # fmt: skip
VALUES = [*SCALARS, *TEXTS, *NESTED]
KEYS = ['"a"', '"b"', '"key"', r'"\u0061b"', '"é"', '"a.b"', '""']
LINE = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=4).map(
    lambda members: "{" + ", ".join(f"{key}: {value}" for key, value in members) + "}"
)


def read_lines(lines: list[str], suffix: str = ".jsonl", size: ChunkSize | None = None) -> list[Row]:
    """The rows of a file of these objects; null members omitted, because columns do not tell null from missing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix}"
        path.write_text("\n".join(lines) if suffix == ".jsonl" else f"[{','.join(lines)}]", encoding="utf-8")
        rows, rejects, _ = read(path, size)
    assert rejects == []
    return [without_null_members(row) for row in rows]


def without_null_members(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def in_one_order(row: Row) -> str:
    """A row as text that shows types and the order of nested keys; the order of columns is the table's."""
    return repr(dict(sorted(row.items())))


@given(st.lists(LINE, min_size=1, max_size=8), st.sampled_from([".jsonl", ".json"]))
@example(['{"a": 1}', '{"a": 2.5}', '{"a": "x"}', "{}"], ".jsonl")
@example(['{"n": 9007199254740993}', '{"n": 0.5}'], ".json")
@example(['{"n": 1.0}', '{"n": NaN}', '{"n": 2}', '{"a": {"b": -Infinity}}'], ".jsonl")
@example(['{"n": 1.0, "d": "2020-01-01"}', '{"n": 2, "d": null}'], ".jsonl")
def test_rows_are_those_of_json(lines: list[str], suffix: str) -> None:
    found = read_lines(lines, suffix)
    expected = [without_null_members(json.loads(line)) for line in lines]
    assert list(map(in_one_order, found)) == list(map(in_one_order, expected))


@given(st.lists(LINE, min_size=1, max_size=8).flatmap(lambda lines: st.tuples(st.just(lines), st.permutations(lines))))
def test_a_row_is_the_same_among_any_neighbours(both: tuple[list[str], list[str]]) -> None:
    lines, permuted = both
    alone = {line: in_one_order(read_lines([line])[0]) for line in lines}
    assert list(map(in_one_order, read_lines(permuted))) == [alone[line] for line in permuted]


@pytest.mark.parametrize(("value", "among"), each(VALUES, [[], ["7"], ['"text"'], ["[1]"], ["NaN"]]))
def test_every_value_is_that_of_json(value: str, among: list[str]) -> None:
    lines = [f'{{"id": {number}, "v": {text}}}' for number, text in enumerate([*among, value, *among])]
    assert repr(read_lines(lines)) == repr([without_null_members(json.loads(line)) for line in lines])


def test_nested_values_keep_the_text_of_the_source(tmp_path: Path) -> None:
    written = '{"parameters": {"b": {"default" :null},  "a":[1.0,1e2, 2 ] }}'
    (tmp_path / "rows.jsonl").write_text(f'{{"tools":   {written}  , "n": 1}}\n{{"tools": "text", "n": 2}}\n')
    (chunk,) = chunks_of(tmp_path / "rows.jsonl")
    table = chunk.load().table
    assert json_texts(table["tools"]).to_pylist() == [written, '"text"']
    assert table.schema.field("n").type == pa.int64()


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "2", "null"], pa.int64()),
        (["1.5", "2.0", "1e2"], pa.float64()),
        (["1.5", "2"], pa.json_()),
        (["9223372036854775808", "1"], pa.json_()),
        (["18446744073709551616.0"], pa.float64()),
        (["true", "false"], pa.bool_()),
        (["true", "1"], pa.json_()),
        (['"a"', '"2020-01-01"'], pa.string()),
        (['"2020-01-01"', '"2021-01-01"'], pa.string()),
        (['"a"', "1"], pa.json_()),
        (["[]"], pa.json_()),
        (["null"], pa.null()),
    ],
)
@pytest.mark.parametrize("beside", ["7", "[7]"])
def test_columns_are_typed_where_that_is_exact(
    tmp_path: Path, texts: list[str], kind: pa.DataType, beside: str
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"v": {text}, "w": {beside}}}\n' for text in texts))
    (chunk,) = chunks_of(tmp_path / "rows.jsonl")
    assert chunk.load().table.schema.field("v").type == kind


def nested(levels: int) -> str:
    return '{"q": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize("neighbour", ['{"q": "x"}', '{"q": [1]}', '{"q": NaN}'])
def test_depth_is_bounded(tmp_path: Path, neighbour: str) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join([neighbour, nested(64), nested(65), neighbour]))
    rows, rejects, _ = read(tmp_path / "rows.jsonl")
    assert [repr(row["q"]) for row in rows] == [
        repr(json.loads(line)["q"]) for line in (neighbour, nested(64), neighbour)
    ]
    assert [reject["code"] for reject in rejects] == ["nested_too_deeply"]


MIXED = [["text", 1], ["other", None], [2.5, {"a": []}], []]


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_rows_that_are_lists_of_scalars_become_one_column(tmp_path: Path, suffix: str) -> None:
    text = json.dumps(MIXED) if suffix == ".json" else "\n".join(map(json.dumps, MIXED))
    (tmp_path / f"rows{suffix}").write_text(text)
    assert read(tmp_path / f"rows{suffix}") == ([{"items": row} for row in MIXED], [], 0)


def test_entries_and_roots_keep_the_values(tmp_path: Path) -> None:
    rows: list[Any] = [{"v": 1, "w": {"b": None}}, {"v": 2.5, "w": [1]}, {"v": "x", "w": None, "u": 2**64}]
    expected = [without_null_members(row) for row in rows]
    (tmp_path / "keyed.json").write_text(json.dumps({"k\u00e9": rows[0], "l": rows[1], "m": rows[2]}))
    found = read(tmp_path / "keyed.json")[0]
    assert [row.pop("key") for row in found] == ["k\u00e9", "l", "m"]
    assert [repr(without_null_members(row)) for row in found] == list(map(repr, expected))
    groups = [{"t": "a", "rows": rows}, {"t": 1, "rows": []}, {"t": [2], "rows": [rows[1], 7, None]}, {"rows": "none"}]
    (tmp_path / "nested.json").write_text(json.dumps({"data": groups}))
    found, rejects, _ = read(tmp_path / "nested.json", reader={"root": "data[].rows[]"})
    inner = [*({**row, "t": "a"} for row in expected), {**expected[1], "t": [2]}, {"rows": 7, "t": [2]}, {"t": [2]}]
    assert [in_one_order(without_null_members(row)) for row in found] == list(map(in_one_order, inner))
    assert [(reject["code"], reject["field"]) for reject in rejects] == [("not_a_list", "rows")]
