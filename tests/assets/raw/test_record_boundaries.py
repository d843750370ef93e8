"""Boundaries of records in a file read in blocks, compared with regular expressions and Python's readers."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.raw_rows import TEXT
from support.soak import SOAK
from tokenloom.assets.raw.formats.json_layout import JsonElements, JsonValues
from tokenloom.assets.raw.formats.record_boundaries import (
    Finder,
    Lines,
    Paragraphs,
    QuotedLines,
    RecordBlock,
    line_ends,
    record_blocks,
)
from tokenloom.errors import SourceError

Finders = Callable[[], Finder]


def blocks_of(data: bytes, finder: Finders, step: int, again: int, limit: int = 1 << 30) -> list[RecordBlock]:
    """Return the blocks of records in data read in blocks of `step` bytes."""
    blocks = (data[at : at + step] for at in range(0, len(data), step))
    made = finder()
    return list(record_blocks(blocks, made, limit, line_ends if isinstance(made, QuotedLines) else newlines, again))


def newlines(data: Any) -> Any:
    return np.flatnonzero(data == 10) + 1


def pieces(block: RecordBlock) -> list[bytes]:
    return [block.data[start:end].tobytes() for start, end in pairwise(block.bounds)]


def found_in(data: bytes, finder: Finders, step: int) -> list[bytes]:
    """Return the records that a finder finds, whether or not it sees long records as a whole."""
    found = [piece for block in blocks_of(data, finder, step, 1 << 20) for piece in pieces(block)]
    for again in (0, 3) if SOAK else (0,):
        assert [piece for block in blocks_of(data, finder, step, again) for piece in pieces(block)] == found
    assert_large_are_skipped(data, finder, step, found)
    return found


def assert_large_are_skipped(data: bytes, finder: Finders, step: int, expected: list[bytes]) -> None:
    """Check with limits that of all records only the larger ones are skipped, with their sizes and lines."""
    ends = line_ends if isinstance(finder(), QuotedLines) else newlines
    for limit in {4, *(len(piece) for piece in expected[:1])}:
        kept, skipped, lines = [], [], 0
        for block in blocks_of(data, finder, step, 0, limit):
            large = {one.record: one for one in block.skipped}
            records = pieces(block)
            kept += [None if number in large else piece for number, piece in enumerate(records)]
            skipped += [one.missing + len(records[number]) for number, one in large.items()]
            lines += len(ends(block.data)) + sum(one.lines for one in block.skipped)
        assert kept == [piece if len(piece) <= limit else None for piece in expected]
        assert skipped == [len(piece) for piece in expected if len(piece) > limit]
        assert lines == sum(len(ends(np.frombuffer(piece, np.uint8))) for piece in expected)


STEPS = st.sampled_from([1, 2, 3, 5, 7, 1000])


@given(st.text(st.sampled_from("ab \n\r\"'"), max_size=40), STEPS)
def test_lines_are_those_of_a_regular_expression(text: str, step: int) -> None:
    data = text.encode()
    assert found_in(data, Lines, step) == re.findall(rb"[^\n]*\n|[^\n]+", data)


@given(
    st.lists(st.lists(TEXT, min_size=2, max_size=3), max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans(), STEPS
)
def test_quoted_lines_keep_each_csv_record_whole(rows: list[list[str]], ending: str, final: bool, step: int) -> None:
    written = []
    for row in rows:
        sink = io.StringIO(newline="")
        quoting = csv.QUOTE_ALL if "\r" in "".join(row) else csv.QUOTE_MINIMAL
        csv.writer(sink, lineterminator=ending, quoting=quoting).writerow(row)
        written.append(sink.getvalue().encode())
    if written and not final:
        written[-1] = written[-1].removesuffix(ending.encode())
    data = b"".join(written)
    assert found_in(data, lambda: QuotedLines(",", "data.csv"), step) == written


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


@given(
    st.lists(JSON, max_size=5), st.sampled_from([None, 0, 2]), st.booleans(), st.sampled_from(["", " ", "\r\n "]), STEPS
)
def test_each_json_element_is_a_record(
    values: list[Any], indent: int | None, ascii_only: bool, pad: str, step: int
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only) + pad
    found = found_in(text[1:].encode(), lambda: JsonElements((), 1, False, "x.json"), step)
    assert [json.loads(piece) for piece in found if piece.strip()] == values


@given(st.lists(JSON, max_size=4), JSON, st.sampled_from([None, 1]), STEPS)
def test_json_elements_end_with_their_array(values: list[Any], other: Any, indent: int | None, step: int) -> None:
    text = json.dumps({"data": {"rows": values, "more": other}, "last": other}, indent=indent)
    at = text.index("[") + 1
    found = found_in(text[at:].encode(), lambda: JsonElements(("data", "rows"), at, False, "x.json"), step)
    assert [json.loads(piece) for piece in found if piece.strip()] == values
    whole = text[at:].rstrip()
    for cut in range(1, len(whole), max(7, len(whole) // 8)):
        with pytest.raises(SourceError, match=r"x\.json.*byte"):
            found_in(whole[:-cut].encode(), lambda: JsonElements(("data", "rows"), at, False, "x.json"), step)


@given(st.text(st.sampled_from("ab \n"), max_size=40), STEPS)
def test_paragraphs_start_after_blank_lines(text: str, step: int) -> None:
    found: list[str] = []
    blank, begun = False, False
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        solid = bool(line.strip())
        if not found or (solid and blank and begun):
            found.append("")
        found[-1] += line
        begun, blank = begun or solid, not solid
    assert found_in(text.encode(), Paragraphs, step) == [piece.encode() for piece in found]


@pytest.mark.parametrize(("text", "place"), [('{"a": 1}]\n[{"a": 2}', 8), ('{"a": 1}\n{"a": [2}', 18)])
def test_a_bracket_without_its_partner_is_named(text: str, place: int) -> None:
    """Also where later brackets make up for one that closes too much."""
    with pytest.raises(SourceError, match=rf"^rows: invalid JSON: .* at byte {place}$"):
        JsonValues(0, "rows").find(np.frombuffer(bytearray(text, "utf-8"), np.uint8), True)
