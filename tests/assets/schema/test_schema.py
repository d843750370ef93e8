"""Schema: sketches compared with plain Python for any chunks, formats of real datasets, and checks of every sketch."""

from __future__ import annotations

import json
import math
import random
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.columns.fitting import follow
from tokenloom.assets.schema.candidates import role_candidates
from tokenloom.assets.schema.column_statistics import length_buckets, percentile
from tokenloom.assets.schema.formats import format_candidates
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.profiles import ALIASES, likeness, profiles, role_likeness, words
from tokenloom.assets.schema.sketch import MAX_PATHS, sketch
from tokenloom.assets.schema.stage import STAGE
from tokenloom.assets.stage.definition import validate
from tokenloom.assets.stage.forms import LIST
from tokenloom.errors import DataValidationError
from tokenloom.resources.tables.json_text import json_column
from tokenloom.resources.tables.nested_paths import Path

Row = dict[str, Any]

LETTERS = "aZéßжЯאبককाहิไทย한글ひカ中龍αω1 ?.\n😀"
TEXT = st.one_of(st.text(alphabet=LETTERS, max_size=40), st.text(max_size=6))
MESSAGE = st.one_of(st.none(), st.fixed_dictionaries({"from": TEXT, "value": st.one_of(st.none(), TEXT)}))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.one_of(st.none(), TEXT),
            "n": st.one_of(st.none(), st.integers(-3, 3)),
            "l": st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXT), max_size=20)),
            "m.x": st.one_of(st.none(), st.lists(MESSAGE, max_size=3)),
        }
    ),
    max_size=12,
)
SCHEMA = pa.schema(
    [
        ("a", pa.string()),
        ("n", pa.int64()),
        ("l", pa.list_(pa.string())),
        ("m.x", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
    ]
)
PATHS = ["a", "n", "l", "l[]", "m.x", "m.x[]", "m.x[].from", "m.x[].value"]


def top_level(columns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the profiles of columns, without those of nested paths."""
    return [column for column in columns if column.get("path", column["column"]) == column["column"]]


def described(*tables: pa.Table) -> list[Row]:
    for table in tables:
        validate(STAGE, sketch(table))
    return merge([sketch(table) for table in tables])


def by_path(*tables: pa.Table) -> dict[str, Row]:
    return {column["path"]: column for column in described(*tables)}


def parts_of(rows: Sequence[Row], cuts: Sequence[int], schema: pa.Schema) -> list[pa.Table]:
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [pa.Table.from_pylist(list(rows[start:end]), schema) for start, end in pairwise(bounds)]


def script(char: str) -> str | None:
    if not unicodedata.category(char).startswith("L"):
        return None
    first = unicodedata.name(char).split()[0]
    return "Han" if first == "CJK" else first.capitalize()


@given(ROWS, st.lists(st.integers(0, 12), max_size=4))
def test_sketches_of_parts_merge_to_the_sketch_of_the_whole(rows: list[Row], cuts: list[int]) -> None:
    whole = described(pa.Table.from_pylist(rows, SCHEMA))
    assert described(*parts_of(rows, cuts, SCHEMA)) == whole
    assert [column["path"] for column in whole] == PATHS
    assert [column["column"] for column in top_level(whole)] == SCHEMA.names


def places(rows: list[Any], path: str) -> list[Any]:
    """Yield the values at a path, None for a null; nothing if the path does not occur."""
    messages = [message for row in rows for message in row["m.x"] or ()]
    return {
        "a": lambda: [row["a"] for row in rows],
        "n": lambda: [row["n"] for row in rows],
        "l": lambda: [row["l"] for row in rows],
        "l[]": lambda: [item for row in rows for item in row["l"] or ()],
        "m.x": lambda: [row["m.x"] for row in rows],
        "m.x[]": lambda: messages,
        "m.x[].from": lambda: [message["from"] for message in messages if message is not None],
        "m.x[].value": lambda: [message["value"] for message in messages if message is not None],
    }[path]()


def identity_of(path: str, value: Any) -> str:
    """Return what distinguishes a value: a null list item equals an empty one, a null field equals a missing one."""
    if path == "l":
        value = [item or "" for item in value]
    if path == "m.x":
        value = [{name: text for name, text in (message or {}).items() if text is not None} for message in value]
    return json.dumps(value)


@given(ROWS, st.lists(st.integers(0, 12), max_size=3))
def test_a_profile_is_what_plain_python_counts(rows: list[Row], cuts: list[int]) -> None:
    found = by_path(*parts_of(rows, cuts, SCHEMA))
    for path in PATHS:
        profile, values = found[path], places(rows, path)
        filled = [value for value in values if value is not None]
        assert (profile["rows"], profile["nulls"]) == (len(values), values.count(None))
        if path != "m.x[]":
            assert profile["distinct"] == len({identity_of(path, value) for value in filled})
        if all(isinstance(value, str | list) for value in filled):
            assert profile["empty"] == sum(not value for value in filled)
            lengths = sorted(len(value) for value in filled)
            found_lengths: dict[str, int] = profile["lengths"] or {}
            assert bool(found_lengths) == bool(lengths)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0)) if lengths else ():
                exact = lengths[math.ceil(share * len(lengths)) - 1]
                assert abs(found_lengths[name] - exact) <= (exact / 16 if exact >= 16 and share < 1 else 0)
    texts = [text for text in places(rows, "a") if text]
    assert found["a"]["examples"] == texts[:3]
    for path in ("a", "n", "l[]", "m.x[].from"):
        counts = Counter(str(value) for value in places(rows, path) if value is not None)
        few = dict(sorted(counts.items())) if len(counts) <= 16 else {}
        assert (found[path]["values"] or [], found[path]["counts"] or []) == (list(few), list(few.values()))


@pytest.mark.parametrize(
    ("begin", "traits"),
    [("x", {}), ("1", {}), ("https://x.org/", {}), ("It is. ", {"sentences": 1.0}), ("one\ntwo ", {"multiline": 1.0})],
)
def test_what_a_long_text_is_as_a_whole_does_not_follow_from_its_begin(begin: str, traits: dict[str, float]) -> None:
    """A text that starts like an identifier is not one; sentences and lines at its start are still found."""
    (column,) = described(pa.table({"a": [begin * 2000 + " and more"]}))
    assert column["traits"] == traits


@given(st.lists(st.text(alphabet="".join(LETTERS.split()), max_size=60), max_size=8))
def test_letters_are_counted_by_script(texts: list[str]) -> None:
    counts = Counter(name for text in texts for char in text if (name := script(char)))
    found = by_path(pa.table({"a": pa.array(texts, pa.string())}))["a"]["scripts"]
    assert found == {name: round(count / counts.total(), 4) for name, count in counts.items()}
    assert list(found.values()) == sorted(found.values(), reverse=True)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_percentiles_of_a_histogram_are_within_a_sixteenth(lengths: list[int], share: float) -> None:
    exact = sorted(lengths)[math.ceil(share * len(lengths)) - 1]
    found = percentile(length_buckets(np.array(lengths)), share, max(lengths))
    assert found == exact if exact < 16 else abs(found - exact) <= exact / 16


@pytest.mark.parametrize("distinct", [1, 1000, 1023, 5000, 60_000])
def test_distinct_values_are_counted_exactly_while_few_and_estimated_well_when_many(distinct: int) -> None:
    draw = random.Random(distinct)
    values = [f"row {draw.random()} {index}" for index in range(distinct)] * 2
    draw.shuffle(values)
    tables = [pa.table({"a": values[start : start + 7000]}) for start in range(0, len(values), 7000)]
    found = by_path(*tables)["a"]["distinct"]
    assert found == distinct if distinct < 1024 else abs(found - distinct) < 0.15 * distinct


def as_json(table: pa.Table) -> pa.Table:
    """The same values as JSON columns."""
    texts = {
        name: [None if value is None else json.dumps(value) for value in table[name].to_pylist()]
        for name in table.column_names
    }
    return pa.table({name: json_column(column) for name, column in texts.items()})


@given(ROWS, st.lists(st.integers(0, 12), max_size=2))
def test_json_columns_are_described_like_typed_columns(rows: list[Row], cuts: list[int]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    typed = {column["path"]: column for column in merge([sketch(table)])}
    for found in described(*(part if number % 2 else as_json(part) for number, part in enumerate(parts))):
        expected = typed[found["path"]]
        other = ("examples", "distinct") if found["kind"] in ("list", "struct") else ()
        other += ("type",) if found["kind"] in ("null", "list", "struct") else ()
        other += ("kind",) if found["kind"] == "null" else ()
        assert {**found, **{name: expected[name] for name in other}} == expected
    if any(row["l"] and any(item is not None for item in row["l"]) for row in rows):
        assert profiles(described(as_json(table)))[("l",)].type == "list<item: string>"


MIXED = [
    {"c": "text", "n": 1, "o": {"a": 1}, "m": [{"role": "user", "content": "hi"}]},
    {"c": ["part", 2], "n": 2.5, "o": {"a": "x", "b": None}, "m": [{"role": "user", "content": [{"text": "t"}]}]},
    {"c": None, "n": 2**70, "o": {}, "m": [{"role": "tool", "content": {"ok": True}, "n": 1}, 7]},
]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_values_of_several_kinds_are_described_for_any_chunks(size: int) -> None:
    chunks = []
    for start in range(0, len(MIXED), size):
        rows = MIXED[start : start + size]
        texts = {name: [None if row[name] is None else json.dumps(row[name]) for row in rows] for name in MIXED[0]}
        chunks.append(pa.table({name: json_column(column) for name, column in texts.items()}))
    found = {column["path"]: column for column in described(*chunks)}
    kinds = {"c": "other", "c[]": "text", "n": "number", "o": "struct", "o.a": "text", "o.b": "null", "m": "list"}
    kinds |= {"m[]": "other", "m[].role": "text", "m[].content": "other", "m[].content[]": "struct"}
    assert {path: found[path]["kind"] for path in kinds} == kinds
    counts = {"c": (3, 1), "o.a": (3, 1), "o.b": (3, 3), "m[]": (4, 0), "m[].role": (3, 0), "m[].n": (3, 2)}
    assert {path: (found[path]["rows"], found[path]["nulls"]) for path in counts} == counts
    assert found["m[].role"]["values"] == ["tool", "user"]
    kinds = {"c": ["list", "text"], "c[]": ["number", "text"], "o.a": ["number", "text"]}
    kinds |= {"m[]": ["number", "struct"], "m[].content": ["list", "struct", "text"]}
    assert {path: sorted(column["kinds"]) for path, column in found.items() if "kinds" in column} == kinds


def test_the_paths_of_a_json_column_are_bounded() -> None:
    tables = [
        pa.table({"c": json_column([json.dumps({"known": 1, "ids": {f"{part} {number}": {"x": 1}}, "deep": deep()})
                                    for number in range(400)])})
        for part in range(3)
    ]  # fmt: skip
    assert max(table.num_rows for table in map(sketch, tables)) <= MAX_PATHS + 1
    found = {column["path"]: column for column in described(*tables)}
    assert len(found) <= MAX_PATHS
    assert found["c.known"]["kind"] == "number"
    paths = profiles(list(found.values()))
    for steps in (("ids", "any", "x"), ("deep", *"a" * 20)):
        place, taken = follow(paths, Path("c", steps))
        assert taken < len(steps) and place.is_open() and place.fits(LIST)
    place, taken = follow(paths, Path("c", ("known", "x")))
    assert taken == 1 and not place.is_open() and not place.fits(LIST)


def deep(levels: int = 13) -> Any:
    return {"a": deep(levels - 1)} if levels else 1


def test_chunks_can_lack_columns_or_have_other_types() -> None:
    tables = [
        pa.table({"a": pa.nulls(2), "s": [{"x": "u"}, {"x": "v"}]}),
        pa.table({"a": ["x", "", None], "s": pa.array([{"x": "u", "y": 1}, None, {"x": None, "y": 2}])}),
        pa.table({"b": [1.5, 2.5]}),
        pa.table({"a": [["l"]], "s": pa.nulls(1)}),
    ]
    found = by_path(*tables)
    assert list(found) == ["a", "a[]", "s", "s.x", "s.y", "b"]
    assert (found["a"]["rows"], found["a"]["nulls"], found["a"]["empty"]) == (8, 5, 1)
    assert (found["a"]["kind"], found["a"]["type"]) == ("other", "string | list<item: string>")
    assert (found["b"]["rows"], found["b"]["nulls"]) == (8, 6)
    assert (found["s"]["nulls"], found["s.x"]["rows"], found["s.x"]["nulls"]) == (4, 4, 1)
    assert (found["s.y"]["rows"], found["s.y"]["nulls"]) == (4, 2)


def test_names_with_dots_and_brackets_are_not_paths() -> None:
    table = pa.table({"a": [{"b": "inner"}], "a.b": ["column"], "c[]": ["x"], "c": [["item"]], "Is it?": ["y"]})
    found = top_level(described(table))
    assert [(column["path"], column["examples"][0]) for column in found][1:] == [
        ("a.b", "column"),
        ("c[]", "x"),
        ("c", "['item']"),
        ("Is it?", "y"),
    ]


STRANGE: list[pa.Array] = [
    pa.array(["x", None, "x"]).dictionary_encode(),
    pa.array(["x", "y"], pa.large_string()),
    pa.array(["x", "y"], pa.string_view()),
    pa.array([b"\xff", None, b""], pa.binary_view()),
    pa.array([b"\xff", None], pa.binary()),
    pa.array([[1], None], pa.list_view(pa.int32())),
    pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
    pa.array([["x"]], pa.large_list(pa.large_string())),
    pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
    pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    pa.array([253402300800000, None], pa.timestamp("s")),
    pa.array([1.5, None], pa.float16()),
    pa.array([None, None]),
    pa.array([], pa.string()),
    pa.array([{}, None], pa.struct([])),
    pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]),
    pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
    pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])),
    pa.array([[[[[[[[[["deep"]]]]]]]]]]),
    pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], ["twice", "twice"]),
]


@pytest.mark.parametrize("array", STRANGE, ids=lambda array: str(array.type)[:40])
def test_any_arrow_type_is_described(array: pa.Array) -> None:
    table = pa.table({"a": array, "b": array})
    columns = top_level(described(table, table.slice(0, 1), table.slice(1)))
    for column in columns:
        assert column["rows"] == 2 * len(array)
        assert column["nulls"] == 2 * (len(array) if pa.types.is_null(array.type) else array.null_count)
    assert json.loads(json.dumps(columns)) == columns
    assert role_candidates(columns) is not None
    assert format_candidates(columns) is not None


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("nulls", 1),
        ("empty", 1),
        ("rows", 1),
        ("sampled", 1),
        ("lengths", [0, 9]),
        ("traits", [7]),
        ("hashes", b"8" * 80),
        ("counts", [1]),
        ("counts", [1, 2]),
    ],
)
def test_a_sketch_with_wrong_counts_fails_its_checks(column: str, change: Any) -> None:
    table = sketch(pa.table({"a": ["x", "y"]}))
    rows = table.to_pylist()
    rows[1][column] = rows[1][column] + change if isinstance(change, int) else change
    with pytest.raises(DataValidationError):
        validate(STAGE, pa.Table.from_pylist(rows, table.schema))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Best Answer", ("best", "answer")),
        ("userQuestion_2", ("user", "question", "2")),
        ("HTMLText", ("html", "text")),
        ("Ответ", ("ответ",)),
        ("??", ()),
    ],
)
def test_a_name_is_split_into_words(name: str, expected: tuple[str, ...]) -> None:
    assert words(name) == expected


def test_whole_words_of_a_name_count() -> None:
    assert likeness("context", ALIASES["text"]).score == 0
    assert (
        likeness("Best Answer", ALIASES["completion"]).score > likeness("Correct Answers", ALIASES["completion"]).score
    )
    assert likeness("Incorrect Answers", ALIASES["completion"]).score == 0
    assert likeness("user_question", ALIASES["prompt"]).score > 0.7
    assert likeness("question_id", ALIASES["prompt"]).score == 0
    assert likeness("instrution", ALIASES["prompt"]).score > 0.7
    assert role_likeness("system_prompt", "prompt").score < 0.5 < role_likeness("system_prompt", "system").score


MANY = [f"Some words here, number {index}." for index in range(40)]


def test_every_text_column_has_its_possible_roles() -> None:
    table = pa.table({"question": MANY, "answer": MANY, "x": [f"{text}?" for text in MANY]})
    found = role_candidates(described(table))
    best = {role.source: role.role for role in reversed(found)}
    assert best["question"] == "prompt" and best["answer"] == "completion"
    assert any(role.source == "x" and role.role == "prompt" for role in found)
    assert all(0 < role.confidence <= 1 and role.evidence for role in found)
