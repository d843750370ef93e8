"""Rows of unequal length, flat with offsets: each function compared with lists of Python, for slices and chunks too."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.resources.tables import ragged

ROWS = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6)
TEXTS = st.lists(st.text("aé你😀\n", max_size=4), max_size=6)
CUTS = st.tuples(st.integers(0, 6), st.integers(0, 6))


def offsets(lengths: list[int]) -> list[int]:
    return [0, *accumulate(lengths)]


def pieces(values: list[Any], kind: pa.DataType, cut: tuple[int, int]) -> list[pa.Array | pa.ChunkedArray]:
    """The values as one array, as a slice of a longer one, and as several chunks."""
    whole = pa.array([*values[:1], *values, *values[-1:]], kind)
    first, second = sorted(min(place, len(values)) for place in cut)
    parts = [values[:first], values[first:second], values[second:]]
    sliced = whole.slice(min(1, len(values)), len(values))
    return [pa.array(values, kind), sliced, pa.chunked_array([pa.array(part, kind) for part in parts], kind)]


@given(ROWS, CUTS)
def test_lists_are_taken_apart_and_put_together(rows: list[list[int]], cut: tuple[int, int]) -> None:
    flat = [*chain(*rows)]
    for given_as in pieces(rows, pa.list_(pa.int64()), cut):
        begins, values = ragged.list_parts(given_as)
        assert (begins.tolist(), values.to_pylist()) == (offsets([*map(len, rows)]), flat)
        views = ragged.list_views(given_as)
        assert [part.tolist() for part in views] == [begins.tolist(), flat]
        assert views[0].dtype == np.int32
        assert ragged.list_array(begins, values).to_pylist() == rows
        assert ragged.one_array(given_as).to_pylist() == rows


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@given(TEXTS, CUTS)
def test_texts_are_taken_apart_and_put_together(kind: pa.DataType, texts: list[str], cut: tuple[int, int]) -> None:
    encoded = [text.encode() for text in texts]
    for given_as in pieces(texts, kind, cut):
        begins, data = ragged.text_parts(given_as)
        assert (begins.tolist(), data.tobytes()) == (offsets([*map(len, encoded)]), b"".join(encoded))
        assert ragged.text_array(begins, data).to_pylist() == texts


@given(ROWS, st.data())
def test_sums_and_flags_are_those_of_each_row(rows: list[list[int]], data: st.DataObject) -> None:
    lengths = np.array([*map(len, rows)], np.int64)
    flat = np.array([*chain(*rows)], data.draw(st.sampled_from([np.int8, np.int64, np.float64])))
    begins = ragged.offsets_of(lengths)
    assert begins.tolist() == offsets(lengths.tolist())
    assert ragged.sum_rows(flat, begins).tolist() == [sum(row) for row in rows]
    assert ragged.row_of(lengths).tolist() == [number for number, row in enumerate(rows) for _ in row]
    assert ragged.any_of(flat > 0, lengths).tolist() == [any(value > 0 for value in row) for row in rows]


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5)), max_size=6))
def test_ranges_are_those_of_python(bounds: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array([bound[side] for bound in bounds], np.int32) for side in (0, 1))
    assert ragged.ranges(starts, lengths).tolist() == [*chain(*(range(at, at + count) for at, count in bounds))]


def test_ranges_of_more_values_than_are_counted_at_once() -> None:
    lengths = np.array([300_000, 0, 1, 600_000])
    starts = np.array([7, 1, -4, 10**10])
    expected = np.concatenate([np.arange(at, at + count) for at, count in zip(starts, lengths, strict=True)])
    assert (ragged.ranges(starts, lengths) == expected).all()


@given(st.lists(st.sampled_from([True, False, None])))
def test_a_null_flag_is_false(flags: list[bool | None]) -> None:
    assert ragged.flags_of(pa.array(flags, pa.bool_())).tolist() == [flag is True for flag in flags]


def test_tables_of_pairs_are_split_by_side() -> None:
    table = pa.table({"_row": [0, 1], "chosen_text": ["a", "b"], "rejected_text": ["c", "d"]})
    assert {side: part.to_pydict() for side, part in ragged.sides(table).items()} == {
        "chosen": {"_row": [0, 1], "text": ["a", "b"]},
        "rejected": {"_row": [0, 1], "text": ["c", "d"]},
    }
    alone = table.select(["_row"])
    assert ragged.sides(alone) == {"": alone}


@given(TEXTS, st.text("aé\n", min_size=1, max_size=3), st.integers(0, 6))
def test_a_text_is_found_in_the_bytes_of_strings(rows: list[str], text: str, first: int) -> None:
    array = pa.array(rows, pa.string()).slice(min(first, len(rows)))
    assert ragged.holds(array, text.encode()) == (text in "".join(rows[first:]))
