"""White space around records, of any length: where their content is, and how long finding it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.raw.formats import record_boundaries
from tokenloom.assets.raw.formats.record_boundaries import Lines, is_solid, record_blocks, trimmed

SPACES = " \t\r\n"


@given(
    st.lists(st.tuples(st.text(SPACES, max_size=200), st.sampled_from(["", "x", "x y"]), st.text(SPACES, max_size=200)))
)
def test_content_is_what_python_strips_to(parts: list[tuple[str, str, str]]) -> None:
    records = ["".join(part) for part in parts]
    data = np.frombuffer("".join(records).encode(), np.uint8)
    bounds = np.cumsum([0, *map(len, records)], dtype=np.int64)
    starts, ends = trimmed(data, bounds)
    assert [data[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True)] == [
        record.strip(SPACES) for record in records
    ]
    assert is_solid(data, bounds).tolist() == [bool(record.strip(SPACES)) for record in records]


def test_a_long_run_of_white_space_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Counted(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            looked.append(1)
            return super().__getitem__(index)

    monkeypatch.setattr(record_boundaries, "SPACE", record_boundaries.SPACE.view(Counted))
    data = np.frombuffer(b" " * 100_000 + b"x" + b" " * 100_000, np.uint8)
    assert [limit.tolist() for limit in trimmed(data, np.array([0, len(data)]))] == [[100_000], [100_001]]
    assert len(looked) < 1000


def test_blocks_of_tiny_records_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_boundaries, "MOST_RECORDS", 7)
    data = b"\n" * 20 + b"x" * 50 + b"\n" * 30
    blocks = list(record_blocks(iter([data]), Lines(), 40, lambda part: np.flatnonzero(part == 10) + 1))
    assert [len(block.bounds) - 1 for block in blocks] == [7] * 7 + [1]
    assert all(block.bounds[0] == 0 and block.bounds[-1] == len(block.data) for block in blocks)
    assert [one.record for block in blocks for one in block.skipped] == [20 % 7]
