"""Content-defined chunks: an edit changes few, none is too large or tiny, and they do not depend on batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.raw_rows import SUFFIXES, as_array, chunks_of, write_table
from tokenloom.assets.raw.cut import Candidates, cut_blocks
from tokenloom.assets.raw.formats.tables import TableBlock
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.resources.tables.hashes import hash_records

SMALL = ChunkSize(target=1024, maximum=4096)


@dataclass(frozen=True)
class Rows:
    """Return rows of bytes as a block."""

    rows: tuple[bytes, ...]

    @property
    def offsets(self) -> np.ndarray:
        return np.cumsum([0, *map(len, self.rows)], dtype=np.int64)

    @property
    def hashes(self) -> np.ndarray:
        bounds = self.offsets
        return hash_records(as_array(b"".join(self.rows)), bounds[:-1], bounds[1:])

    def slice(self, start: int, end: int) -> Rows:
        return Rows(self.rows[start:end])

    @staticmethod
    def join(blocks: list[Rows]) -> Rows:
        return Rows(tuple(row for block in blocks for row in block.rows))


def cut_rows(rows: Sequence[bytes], size: ChunkSize = SMALL) -> list[bytes]:
    return [b"".join(block.rows) for block in cut_blocks(iter([Rows(tuple(rows))]), size)]


def cut_tables(tables: list[pa.Table], size: ChunkSize) -> list[list[dict[str, str]]]:
    return [block.table.to_pylist() for block in cut_blocks(map(TableBlock, tables), size)]


def random_row(noise: random.Random) -> bytes:
    return noise.randbytes(int(noise.choice((8, 40, 100, 300)) * (0.5 + noise.random()))) + b"\n"


def test_one_edit_makes_at_most_two_new_chunks() -> None:
    noise = random.Random(5)
    counts: Counter[int] = Counter()
    for _ in range(8):
        rows = [random_row(noise) for _ in range(400)]
        before = Counter(cut_rows(rows))
        assert len(before) > 15
        for _ in range(150):
            edited, place = list(rows), noise.randrange(len(rows))
            edited[place : place + noise.choice((0, 1))] = [random_row(noise)] if noise.random() < 0.7 else []
            chunks = cut_rows(edited)
            assert b"".join(chunks) == b"".join(edited)
            counts[(Counter(chunks) - before).total()] += 1
    assert max(counts) <= 3, counts
    assert sum(count for new, count in counts.items() if new <= 2) >= 0.99 * counts.total(), counts


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=80), st.integers(1, 5))
def test_chunks_contain_all_rows_and_none_exceeds_the_maximum(rows: list[bytes], times: int) -> None:
    rows = [row + b"\n" for row in rows * times]
    size = ChunkSize(target=200, maximum=400)
    chunks = cut_rows(rows, size)
    assert b"".join(chunks) == b"".join(rows)
    assert all(len(chunk) <= size.maximum or chunk in rows for chunk in chunks)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=5), st.integers(0, 50))
def test_chunks_of_tiny_rows_have_at_most_the_maximum_of_rows_for_any_blocks(steps: list[int], seed: int) -> None:
    noise, size = random.Random(seed), ChunkSize(target=128, maximum=512)
    rows = [*([b"\n"] * 400), *(noise.randbytes(seed % 3) + b"\n" for _ in range(600))]
    ends = np.cumsum(steps).tolist()
    parts = [rows[end - step : end] for step, end in zip(steps, ends, strict=True)] + [rows[ends[-1] :]]
    found = [block.rows for block in cut_blocks((Rows(tuple(part)) for part in parts), size)]
    assert [b"".join(chunk) for chunk in found] == cut_rows(rows, size)
    assert [row for chunk in found for row in chunk] == rows
    assert max(map(len, found)) <= size.max_rows


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_repeated_rows_do_not_give_tiny_chunks(period: int) -> None:
    noise = random.Random(period)
    for _ in range(200):
        chunks = cut_rows([noise.randbytes(60) for _ in range(period)] * (600 // period))
        assert min(len(chunk) for chunk in chunks[:-1]) >= SMALL.reach
        assert max(map(len, chunks)) <= SMALL.maximum


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=60), st.integers(1, 40))
def test_the_lowest_candidates_are_lower_than_all_others_in_reach(rows: list[tuple[int, int]], reach: int) -> None:
    ends = np.cumsum([size for size, _ in rows])
    hashes = [value for _, value in rows]
    lowest = [
        end
        for at, end in enumerate(ends)
        if all(
            hashes[at] < value for other, value in enumerate(hashes) if other != at and abs(ends[other] - end) < reach
        )
    ]
    candidates = Candidates(ends, np.array(hashes, np.uint64))
    assert candidates.lowest(reach).tolist() == lowest
    assert candidates.without_repeats(reach).lowest(reach).tolist() == lowest


def test_many_equal_rows_are_cut_in_time_that_grows_with_their_number() -> None:
    blocks = [Rows((b"\n",) * 100)] * 100
    calls = 0

    def joined(parts: list[Rows]) -> Rows:
        nonlocal calls
        calls += 1
        return Rows(tuple(row for part in parts for row in part.rows))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "join", staticmethod(joined))
        chunks = list(cut_blocks(iter(blocks), ChunkSize(target=1 << 20, maximum=16 * 500)))
    assert sum(len(chunk.rows) for chunk in chunks) == 10_000
    assert calls <= 12


@pytest.mark.parametrize("repeated", [False, True])
@given(steps=st.lists(st.integers(1, 400), min_size=1, max_size=20), seed=st.integers(0, 50))
def test_chunks_of_a_stream_do_not_depend_on_its_batches(repeated: bool, steps: list[int], seed: int) -> None:
    noise = random.Random(seed)
    values = [noise.randbytes(20).hex() for _ in range(40)] if repeated else []
    table = pa.table({"a": [noise.choice(values) if values else noise.randbytes(20).hex() for _ in range(2000)]})
    size = ChunkSize(target=1024, maximum=2048)
    batches, at = [], 0
    while at < table.num_rows:
        step = steps[len(batches) % len(steps)]
        batches.append(table.slice(at, step))
        at += step
    found = cut_tables(batches, size)
    assert found == cut_tables([table], size)
    assert [row for chunk in found for row in chunk] == table.to_pylist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_row_appended_to_a_file_changes_at_most_two_chunks(tmp_path: Path, suffix: str) -> None:
    noise = random.Random(3)
    rows = [{"a": noise.randbytes(noise.randrange(10, 80)).hex(), "b": str(index)} for index in range(1500)]
    found = []
    for part in (rows[:-1], rows):
        write_table(tmp_path / f"rows{suffix}", part)
        found.append([chunk.digest for chunk in chunks_of(tmp_path / f"rows{suffix}", ChunkSize(8192, 32768))])
    assert len(found[0]) > 8
    assert (Counter(found[1]) - Counter(found[0])).total() <= 2
