"""JSON of any shape: rows as Python's json reads them, bad rows rejected, broken files named."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.raw_rows import GOOD, TEXT, Row, read, write_table
from tokenloom.assets.raw.chunks import SourceNotes, source_chunks
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, TokenloomError


@pytest.mark.parametrize(
    "broken",
    [
        '[{"a": "x"}',
        '[{"a": "x]',
        '[{"a": 1}] x',
        '[{"a": 1}]]',
        '[{"a": 1} {"a": 2}]',
        "{}",
        "3",
        '[{"a": 1}}',
        '[{"a": 1},,{"a": 2}]',
        '{"k": {"a": 1}]',
    ],
)
def test_broken_json_is_an_error_that_names_the_file(tmp_path: Path, broken: str) -> None:
    (tmp_path / "bad.json").write_text(broken)
    with pytest.raises(SourceError, match=r"bad\.json"):
        read(tmp_path / "bad.json")


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "messages": st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=3),
                "n": st.integers(-(2**53), 2**53),
                "x": st.floats(allow_nan=False, allow_infinity=False),
                "b": st.booleans(),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_nested_json_round_trips(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder) / "rows.json", Path(folder) / "rows.jsonl"):
            write_table(path, rows)
            assert read(path) == (rows, [], 0)


SHAPES = st.recursive(
    st.sampled_from(["text", "number", "flag"]),
    lambda inner: st.one_of(
        inner.map(lambda item: [item]), st.dictionaries(st.sampled_from("xyz"), inner, min_size=1, max_size=2)
    ),
    max_leaves=5,
)


def of_shape(shape: Any) -> st.SearchStrategy[Any]:
    """Generate JSON values of one shape, with nulls at every level."""
    if isinstance(shape, list):
        found: st.SearchStrategy[Any] = st.lists(of_shape(shape[0]), max_size=3)
    elif isinstance(shape, dict):
        found = st.fixed_dictionaries({name: of_shape(item) for name, item in shape.items()})
    else:
        found = {"text": TEXT, "number": st.integers(-9, 9), "flag": st.booleans()}[shape]
    return st.one_of(st.none(), found)


@given(
    SHAPES.flatmap(
        lambda shape: st.lists(st.fixed_dictionaries({"a": of_shape(shape), "b": TEXT}), min_size=1, max_size=6)
    )
)
@example(rows=[{"a": [None, "x"], "b": ""}])
@example(rows=[{"a": [None, ["x"]], "b": ""}, {"a": [["y"], None, []], "b": "null"}])
@example(rows=[{"a": [None, {"x": "x"}], "b": ""}])
def test_nulls_do_not_shift_other_values(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("rows.jsonl", "rows.json"):
            write_table(Path(folder) / name, rows)
            found, rejects, _ = read(Path(folder) / name)
            assert (found, rejects) == (rows, [])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"q": "x", "n": }', "invalid_json"),
        (b'{"q": "x"} {"q": "y"}', "invalid_json"),
        (b'{"q": "\xff\xfe"}', "invalid_utf8"),
        (b"\x0c", "invalid_json"),
        (b'["a list"]', "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"null", "not_an_object"),
        (b" null ", "not_an_object"),
        (b'{"q": "half \\ud800 pair"}', "lone_surrogate"),
        (b'{"q": "x", "n": ' + b"1" * 4301 + b"}", "invalid_json"),
        (b'{"q": "x", "n": "seven"}', None),
        (b'{"q": "x", "n": ["a"]}', None),
        (b'{"q": "x", "tags": {"a": Infinity}}', None),
        (b'{"q": "x", "tags": [7]}', None),
        (b'{"q": "x", "n": NaN}', None),
        (b'{"q": "x", "q": "y"}', None),
        (b'{"q": "x", "n": 123456789012345678901234567890}', None),
        (b'{"q": "x", "tags": ' + b"[" * 3000 + b"]" * 3000 + b"}", "nested_too_deeply"),
        (b'{"q": "x", "deep": ' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}", "nested_too_deeply"),
    ],
)
def test_a_bad_line_is_rejected_and_the_others_are_kept(tmp_path: Path, line: bytes, code: str | None) -> None:
    lines = [json.dumps(row).encode() for row in GOOD]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([*lines[:20], line, *lines[20:]]) + b"\n")
    rows, rejects, filtered = read(tmp_path / "rows.jsonl")
    assert [row["q"] for row in rows if row["q"] not in ("x", "y")] == [row["q"] for row in GOOD]
    assert len(rows) + len(rejects) + filtered == 51
    if code:
        assert [(reject[ROW], reject["stage"], reject["code"]) for reject in rejects] == [(20, "raw", code)]


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_null_is_never_a_row(tmp_path: Path, suffix: str) -> None:
    for place in (0, 1, 50):
        rows: list[Any] = [*GOOD[:place], None, *GOOD[place:]]
        text = json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows))
        (tmp_path / f"rows{suffix}").write_text(text)
        found, rejects, _ = read(tmp_path / f"rows{suffix}")
        assert found == GOOD
        assert [(reject[ROW], reject["code"]) for reject in rejects] == [(place, "not_an_object")]
    keyed = {"a": GOOD[0], "b": None, "c": GOOD[1]}
    (tmp_path / "keyed.json").write_text(json.dumps(keyed))
    assert [row["key"] for row in read(tmp_path / "keyed.json")[0]] == ["a", "c"]


def test_a_bad_element_of_a_json_array_is_rejected(tmp_path: Path) -> None:
    values = [*GOOD[:20], ["x"], *GOOD[20:], {"q": "half \ud800 pair"}]
    (tmp_path / "rows.json").write_text(json.dumps(values))
    rows, rejects, _ = read(tmp_path / "rows.json")
    assert rows == GOOD
    assert [(reject[ROW], reject["code"]) for reject in rejects] == [(20, "not_an_object"), (51, "lone_surrogate")]


OTHER_SHAPES = {
    "keyed": (lambda rows: {f"id {index}": row for index, row in enumerate(rows)}, "key"),
    "nested": (lambda rows: {"version": "1", "data": rows, "n": [1, 2]}, ""),
    "deep": (lambda rows: {"data": [{"title": "t", "parts": [{"c": "x", "qas": rows}]}]}, "title c"),
}


@pytest.mark.parametrize("shape", OTHER_SHAPES)
@pytest.mark.parametrize("indent", [None, 1])
@given(rows=st.lists(st.fixed_dictionaries({"a": TEXT, "b": TEXT, "n": st.integers(0, 9)}), min_size=2, max_size=6))
def test_json_objects_contain_rows(shape: str, indent: int | None, rows: list[Row]) -> None:
    make, others = OTHER_SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps(make(rows), indent=indent))
        for size in (ChunkSize(), ChunkSize(64, 256)):
            found, rejects, _ = read(path, size)
            assert rejects == []
            assert [{name: row[name] for name in ("a", "b", "n")} for row in found] == rows
            if others == "key":
                assert [row["key"] for row in found] == [f"id {index}" for index in range(len(rows))]
            for name in others.split()[:2] if others != "key" else ():
                assert {row[name] for row in found} == {"t" if name == "title" else "x"}


@pytest.mark.parametrize("others", [{}, {"title": "t"}, {"title": "t", "url": "u"}, {"title": "t", "url": "u", "n": 1}])
def test_a_record_with_two_fields_beside_its_list_is_a_row_itself(tmp_path: Path, others: Row) -> None:
    """With fewer, the record is only what the items of its list have in common, and they are the rows."""
    items = [{"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}]
    record = {**others, "items": items}
    (tmp_path / "rows.json").write_text(json.dumps({"data": [record, record]}))
    expected = [record] if len(others) > 1 else [{**item, **others} for item in items]
    assert read(tmp_path / "rows.json") == (expected * 2, [], 0)


@given(st.lists(st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), min_size=1, max_size=3), min_size=1))
def test_records_that_are_lists_become_one_column(rows: list[list[Row]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (
            ("rows.jsonl", "\n".join(map(json.dumps, rows))),
            ("rows.json", json.dumps(rows, indent=1)),
        ):
            (Path(folder) / name).write_text(text)
            assert read(Path(folder) / name) == ([{"items": row} for row in rows], [], 0)


NESTED = {"a": {"groups": [{"g": 1, "items": [{"x": "p"}, {"x": "q"}]}, {"g": 2, "items": []}, {"g": 3}]}, "z": 0}


def test_a_declared_root_leads_to_the_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(NESTED))
    assert read(tmp_path / "rows.json", reader={"root": "a.groups[].items[]"})[0] == [
        {"x": "p", "g": 1},
        {"x": "q", "g": 1},
    ]
    assert [row["g"] for row in read(tmp_path / "rows.json", reader={"root": "a.groups[]"})[0]] == [1, 2, 3]
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(NESTED["a"])] * 3))
    assert (
        read(tmp_path / "rows.jsonl", reader={"root": "groups[].items[]"})[0]
        == [{"x": "p", "g": 1}, {"x": "q", "g": 1}] * 3
    )


@given(st.lists(st.text("ab.[] {}\u00e9", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_detected_root_can_be_declared(keys: list[str]) -> None:
    value: Any = [{"x": 1, "y": 2, "z": 3}, {"x": 4, "y": 5, "z": 6}]
    expected = list(value)
    for depth, key in reversed(list(enumerate(keys))):
        value = [{key: value}] if depth else {key: value}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps(value))
        notes = SourceNotes()
        config = PipelineConfig.from_mapping({"dataset": {"name": str(path)}})
        assert [chunk.load().table.num_rows for chunk in source_chunks(config, notes=notes)] == [2]
        root = notes.files["rows.json"]["root"]
        assert read(path, reader={"root": root}) == (expected, [], 0)


@pytest.mark.parametrize(
    ("text", "root", "message"),
    [
        (json.dumps(NESTED), "b[]", "no b"),
        (json.dumps(NESTED), "a.g[]", "no a.g"),
        (json.dumps(NESTED), "a[]", "a in dataset.reader.root is not a list"),
        (json.dumps(NESTED), "z.groups[]", "z in dataset.reader.root is not an object"),
        (json.dumps(NESTED), "groups", "not a valid path to rows"),
        ('{"train": [{"a": 1}], "test": [{"a": 2}]}', None, "more than one list of objects, train"),
        (json.dumps(NESTED)[:-3], "a.groups[]", "byte"),
        (json.dumps({"data": [{"a": 1}]})[:-1], None, "byte"),
        ('{"data": [{"a": 1}]} x', None, "byte 21"),
    ],
)
def test_a_root_that_does_not_exist_is_an_error(tmp_path: Path, text: str, root: str | None, message: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(TokenloomError, match=message):
        read(tmp_path / "rows.json", reader={"root": root})


@pytest.mark.parametrize("text", ['{"a":\n1]{"a":2}\n', '{"a": 1}\n1, {"a": 2}\n'])
def test_each_line_of_invalid_json_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    rows, rejects, _ = read(tmp_path / "rows.jsonl")
    good = [json.loads(line) for line in text.splitlines() if line == '{"a": 1}']
    assert (rows, len(rejects)) == (good, 2 - len(good))


def test_a_key_with_a_dot_is_not_a_path(tmp_path: Path) -> None:
    rows = [{"a.b": 1, "a": {"b": "x"}}] * 2
    (tmp_path / "rows.jsonl").write_text("\n".join([*map(json.dumps, rows), "{bad"]))
    found, rejects, _ = read(tmp_path / "rows.jsonl")
    assert (found, [reject["code"] for reject in rejects]) == (rows, ["invalid_json"])


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]},
        {"question": "what?", "answer": "x"},
        {"question": "what?", "answer": "x", "meta": {"lang": "en"}},
    ],
)
def test_a_file_of_one_object_is_one_row(tmp_path: Path, row: Row, indent: int | None) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(row, indent=indent))
    assert read(tmp_path / "rows.json") == ([row], [], 0)
