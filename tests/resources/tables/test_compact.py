"""Tables whose bytes are a function of their rows, and binary values that are text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.resources.tables.ragged import compact
from tokenloom.resources.tables.stored_texts import MOSTLY, mostly_text, text_in, with_texts

WORD = pa.dictionary(pa.int32(), pa.string())
POINT = pa.struct([("x", pa.int64()), ("word", WORD)])
TYPES = [
    *(pa.int64(), pa.string(), pa.large_string(), pa.binary(), pa.bool_(), WORD, POINT),
    *(pa.list_(pa.string()), pa.large_list(POINT), pa.list_(WORD, 2), pa.list_(pa.list_(POINT))),
]
words = st.one_of(st.none(), st.sampled_from(["", "a", "é", "long enough to be no short text"]))
points = st.one_of(st.none(), st.fixed_dictionaries({"x": st.one_of(st.none(), st.integers(0, 9)), "word": words}))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return words
    if pa.types.is_struct(kind):
        return points
    if pa.types.is_fixed_size_list(kind):
        return st.one_of(st.none(), st.lists(values_of(kind.value_type), min_size=2, max_size=2))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.one_of(st.none(), st.lists(values_of(kind.value_type), max_size=3))
    simple = {pa.int64(): st.integers(-5, 5), pa.binary(): st.binary(max_size=3), pa.bool_(): st.booleans()}
    return st.one_of(st.none(), simple[kind])


def stored(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(data=st.data())
def test_slices_are_stored_as_if_they_had_no_neighbours(kind: pa.DataType, data: st.DataObject) -> None:
    values = st.lists(values_of(kind), max_size=4)
    before, rows, after = (data.draw(values) for _ in range(3))
    alone = pa.table({"c": pa.array(rows, kind)})
    sliced = pa.table({"c": pa.array([*before, *rows, *after], kind)}).slice(len(before), len(rows))
    parts = pa.chunked_array([pa.array(before, kind), pa.array(rows, kind)], kind).slice(len(before))
    made = compact(sliced)
    assert made.schema == alone.schema
    assert made["c"].to_pylist() == rows
    assert stored(made) == stored(compact(alone)) == stored(compact(pa.table({"c": parts})))
    made.validate(full=True)


BINARIES = st.lists(st.one_of(st.none(), st.sampled_from([b"", b"abc", "é".encode(), b"\xff", b"a\0b"])), max_size=12)


def text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


@given(BINARIES)
def test_columns_of_binary_values_are_text_if_nearly_all_values_are(values: list[bytes | None]) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        found = mostly_text(pa.array(values, kind))
        present = [value for value in values if value is not None]
        texts = [value for value in present if text_of(value) is not None and b"\0" not in value]
        if not present or len(present) - len(texts) > (1 - MOSTLY) * len(present):
            assert found is None
        else:
            assert found is not None
            assert found.to_pylist() == [None if value is None else text_of(value) or "" for value in values]


def test_one_odd_value_among_many_is_empty() -> None:
    found = mostly_text(pa.array([b"word"] * 19 + [b"\xff"]))
    assert found is not None and found.to_pylist() == ["word"] * 19 + [""]
    fixed = mostly_text(pa.array([b"ab", b"cd"], pa.binary(2)))
    assert fixed is not None and fixed.to_pylist() == ["ab", "cd"]


NESTED = pa.list_(pa.struct([("name", pa.binary()), ("n", pa.int64())]))
NESTS = st.lists(
    st.one_of(
        st.none(),
        st.lists(
            st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {"name": st.one_of(st.none(), st.sampled_from([b"a", b"\xff"])), "n": st.just(1)}
                ),
            ),
            max_size=3,
        ),
    ),
    max_size=4,
)


@given(NESTS)
def test_nested_binary_values_are_text_where_all_of_their_path_are(rows: list[Any]) -> None:
    made = with_texts(pa.array(rows, NESTED))
    names = [each["name"] for row in rows or () for each in row or () if each and each["name"] is not None]
    assert made.to_pylist() == (rows if b"\xff" in names else text_in(rows))


def test_text_within_values() -> None:
    assert text_in({"a": [b"\xc3\xa9", b"\xff", 1], "b": np.int64(3)}) == {"a": ["é", b"\xff", 1], "b": 3}
