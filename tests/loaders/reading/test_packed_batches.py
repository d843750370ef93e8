"""Batches of packed rows equal an oracle of Python lists, whatever the lengths of documents, padding and grouping."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.loaders.reading.batch import PaddingPolicy
from tokenloom.loaders.reading.reader import InMemory, SequenceReader

PAD, IGNORED = 60_000, -100
Documents = list[int]
"""The number of tokens of each document of a row."""

SIZES = st.one_of(st.integers(1, 4), st.sampled_from([1, 254, 255, 256, 257, 600]))
ROWS = st.lists(st.lists(SIZES, min_size=1, max_size=5), min_size=1, max_size=6)


def table_of(rows: list[Documents], first: int, kind: str) -> pa.Table:
    """Return a chunk: tokens count up from `first` modulo 50,000; every third is not trained unless `kind` is plain."""
    tokens = [list(range(start, start + sum(row))) for row, start in zip(rows, starts_of(rows, first), strict=True)]
    flags = [[int(kind == "plain" or number % 3 > 0) for number in row] for row in tokens]
    columns = {
        "input_ids": pa.array([[number % 50_000 for number in row] for row in tokens], pa.list_(pa.uint16())),
        "trained": pa.array(flags, pa.list_(pa.uint8())),
        "document_lengths": pa.array(rows, pa.list_(pa.int32())),
        "rows": pa.array([[0] * len(row) for row in rows], pa.list_(pa.int32())),
    }
    if kind == "weighted":
        columns["weights"] = pa.array([[flag / 2 for flag in row] for row in flags], pa.list_(pa.float32()))
    return pa.table(columns)


def starts_of(rows: list[Documents], first: int) -> list[int]:
    return [*accumulate(map(sum, rows), initial=first)][:-1]


def expected(rows: list[tuple[Documents, int, str]], width: int, side: str) -> dict[str, Any]:
    """Return a batch of rows, each given by its documents, its first token, and the kind of its chunk."""
    batch: dict[str, Any] = {
        name: [] for name in ("input_ids", "attention_mask", "labels", "position_ids", "loss_weights")
    }
    runs: list[int] = []
    for documents, first, kind in rows:
        ids, labels, positions, weights = list[int](), list[int](), list[int](), list[float]()
        for size in documents:
            for position in range(size):
                number = first + len(ids)
                trained = position > 0 and (kind == "plain" or number % 3 > 0)
                ids.append(number % 50_000)
                labels.append(number % 50_000 if trained else IGNORED)
                positions.append(position)
                weights.append((0.5 if kind == "weighted" else 1.0) if trained else 0.0)
        blank = width - len(ids)
        rest = [blank] if blank else []
        runs += rest + documents if side == "left" else documents + rest

        def padded(values: list[Any], pad: float, blank: int = blank) -> list[Any]:
            return [pad] * blank + values if side == "left" else values + [pad] * blank

        batch["input_ids"].append(padded(ids, PAD))
        batch["attention_mask"].append(padded([1] * len(ids), 0))
        batch["labels"].append(padded(labels, IGNORED))
        batch["position_ids"].append(padded(positions, 0))
        batch["loss_weights"].append(padded(weights, 0.0))
    return {**batch, "cu_seqlens": [0, *accumulate(runs)], "max_seqlen": max(runs)}


def check(
    chunks: list[tuple[list[Documents], str]], groups: list[list[int]], padding: Any, side: Any, longest: int
) -> None:
    """Read the groups at once and compare each with the oracle; row -1 is a padding row."""
    rows, tables = list[tuple[Documents, int, str]](), list[pa.Table]()
    for documents, kind in chunks:
        first = 7 * len(rows)
        tables.append(table_of(documents, first, kind))
        rows += [(row, start, kind) for row, start in zip(documents, starts_of(documents, first), strict=True)]
    weighted = any(kind == "weighted" for _, kind in chunks)
    all_trained = np.array([kind == "plain" for _, kind in chunks])
    lengths = [table.num_rows for table in tables]
    reader = SequenceReader(lengths, lambda number: InMemory(tables[number]), weighted, all_trained)
    policy = PaddingPolicy(PAD, padding, side, longest, packed=True)
    kinds = {"loss_weights": np.float32, "cu_seqlens": np.int32}
    found = list(reader.batches([np.array(group) for group in groups], policy))
    assert len(found) == len(groups)
    for group, batch in zip(groups, found, strict=True):
        chosen = [rows[number] if number >= 0 else ([], 0, "plain") for number in group]
        widest = max([1, *(sum(documents) for documents, *_ in chosen)])
        width = longest if padding == "max_length" else widest if padding == "longest" else -(-widest // 4) * 4
        oracle = expected(chosen, width, side)
        if not weighted:
            del oracle["loss_weights"]
        assert batch.keys() == oracle.keys()
        assert batch.pop("max_seqlen") == oracle.pop("max_seqlen")
        arrays: dict[str, Any] = {**batch}
        for name, values in oracle.items():
            assert np.array_equal(arrays[name], values), name
            assert arrays[name].dtype == kinds.get(name, np.int64)
            assert arrays[name].flags.writeable
        owners = [array if array.base is None else array.base for array in arrays.values()]
        assert len({id(owner) for owner in owners}) == len(owners)
        assert all(owner.nbytes == array.nbytes for owner, array in zip(owners, arrays.values(), strict=True))


@given(
    st.lists(st.tuples(ROWS, st.sampled_from(["plain", "masked", "weighted"])), min_size=1, max_size=3),
    st.sampled_from(["max_length", "longest", 4]),
    st.sampled_from(["left", "right"]),
    st.data(),
)
def test_packed_batches_equal_lists(
    chunks: list[tuple[list[Documents], str]], padding: Any, side: Any, data: st.DataObject
) -> None:
    every = [row for rows, _ in chunks for row in rows]
    longest = max(map(sum, every)) + data.draw(st.sampled_from([0, 3]))
    numbers = st.lists(st.integers(-1, len(every) - 1), min_size=1, max_size=4)
    check(chunks, data.draw(st.lists(numbers, min_size=1, max_size=4)), padding, side, longest)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537])
def test_documents_of_any_length(size: int) -> None:
    rows: list[Documents] = [[2, size, 1], [size + 3], [1] * 9]
    check([(rows, "plain")], [[0, 1], [2], [0]], "longest", "right", size + 3)
    check([(rows, "masked")], [[1], [2, 0, -1]], "max_length", "left", size + 3)
