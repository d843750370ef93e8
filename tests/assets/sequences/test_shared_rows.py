"""Rows that splits share: hashes of rows compared with the tokens of rows, for any packing."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tokenloom.assets.raw.chunks import TRAIN
from tokenloom.assets.sequences.shown import row_hashes, shared_rows
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.store.objects import encode_table

Rows = dict[int, list[int]]
IDS, NUMBERS = pa.list_(pa.uint16()), pa.list_(pa.int32())


def drawn_rows(draw: random.Random, count: int) -> Rows:
    """Rows of few tokens, of which many are equal; some raw rows are missing."""
    kept = sorted(draw.sample(range(2 * count), count))
    return {row: draw.choices(range(2), k=draw.randint(1, 4)) for row in kept}


def packed(draw: random.Random, rows: Rows) -> dict[str, pa.Array]:
    """The rows as sequences: cut into pieces, which stay in order, among pieces of other rows."""
    left = {row: list(ids) for row, ids in rows.items()}
    sequences: list[list[tuple[int, list[int]]]] = [[]]
    while left:
        row = draw.choice([*left])
        size = draw.randint(1, len(left[row]))
        sequences[-1].append((row, left[row][:size]))
        left[row] = left[row][size:]
        if not left[row]:
            del left[row]
        if draw.random() < 0.3:
            sequences.append([])
    return {
        "input_ids": pa.array([[one for _, ids in found for one in ids] for found in sequences], IDS),
        "document_lengths": pa.array([[len(ids) for _, ids in found] for found in sequences], NUMBERS),
        "rows": pa.array([[row for row, _ in found] for found in sequences], NUMBERS),
    }


@pytest.mark.parametrize("seed", range(20))
def test_equal_hashes_are_equal_rows(seed: int) -> None:
    draw = random.Random(seed)
    rows = drawn_rows(draw, 40)
    found, hashes = row_hashes(pa.table(packed(draw, rows)))
    assert found.tolist() == [*rows]
    again, other = row_hashes(pa.table(packed(draw, rows)))
    assert (again.tolist(), other.tolist()) == (found.tolist(), hashes.tolist())
    assert len({*hashes.tolist()}) == len({*map(tuple, rows.values())})


def test_pairs_are_equal_if_both_sides_are() -> None:
    sides = [([1], [2]), ([1], [3]), ([2], [1]), ([1], [2]), ([4], [2])]
    chosen, rejected = zip(*sides, strict=True)
    columns = {"rows": pa.array([[row] for row in range(len(sides))], NUMBERS)}
    for side, ids in (("chosen", chosen), ("rejected", rejected)):
        columns[f"{side}_input_ids"] = pa.array(ids, IDS)
        columns[f"{side}_document_lengths"] = pa.array([[1]] * len(sides), NUMBERS)
    _, hashes = row_hashes(pa.table(columns))
    assert hashes[0] == hashes[3] and len({*hashes.tolist()}) == 4


def test_a_chunk_without_sequences_has_no_rows() -> None:
    names = {"input_ids": IDS, "document_lengths": NUMBERS, "rows": NUMBERS}
    rows, hashes = row_hashes(pa.table({name: pa.array([], kind) for name, kind in names.items()}))
    assert (len(rows), len(hashes)) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_each_split_is_compared_with_train(tmp_path: Path, seed: int) -> None:
    draw, store = random.Random(seed), ArtifactStore(tmp_path / "store")
    splits = [draw.choice([TRAIN, "validation", "test"]) for _ in range(6)] + [TRAIN, "test", "validation"]
    content = [drawn_rows(draw, 3) for _ in splits]
    chunks = []
    for number, (split, rows) in enumerate(zip(splits, content, strict=True)):
        output = store.objects.put(encode_table(pa.table(packed(draw, rows)), compressed=False))
        runs, counts = (Run(f"{number}.jsonl", 0, 0),), dict.fromkeys(("rejected", "filtered", "tokens", "bytes"), 0)
        rest = {"rejects": None, "rows_in": 3, "rows_out": 3, "table_rows": 0, "unit": "line", "input": "", "key": ""}
        chunks.append(ManifestChunk(split=split, runs=runs, output=output, **counts, **rest))  # pyright: ignore[reportArgumentType]
    by_place = {f"{n}.jsonl:{row + 1}": tuple(ids) for n, rows in enumerate(content) for row, ids in rows.items()}

    def of(split: str) -> list[tuple[int, ...]]:
        found = (rows.values() for one, rows in zip(splits, content, strict=True) if one == split)
        return [tuple(ids) for rows in found for ids in rows]

    results = shared_rows(store, ComputeEngine(2), Manifest("toy", "sequences", tuple(chunks)))
    assert {result.split for result in results} == {"validation", "test"}
    for result in results:
        rows = of(result.split)
        assert (result.rows, result.shared) == (len(rows), sum(ids in of(TRAIN) for ids in rows))
        assert len(result.examples) == min(result.shared, 5)
        for place, other in result.examples:
            assert by_place[place] == by_place[other]
            assert (
                splits[int(place.partition(".")[0])] == result.split and splits[int(other.partition(".")[0])] == TRAIN
            )
    assert shared_rows(store, ComputeEngine(2), Manifest("toy", "sequences", tuple(chunks))) == results
