"""Batches of documents that are padded to a multiple equal an oracle of Python lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.loaders.reading.batch import PaddingPolicy, unpadded
from tokenloom.loaders.reading.reader import SequenceReader

PAD, IGNORED = 60_000, -100
Row = list[tuple[int, int]]
"""The number of tokens of each document, and how many of them are padding."""

Token = tuple[int, int, int, int, float, float]
"""Id, mask, label, position, loss weight and value of a token."""


@st.composite
def rows_of(draw: st.DrawFn, packed: bool) -> tuple[int, list[Row]]:
    multiple = draw(st.sampled_from([2, 4, 8]))
    own = st.integers(1, 3 * multiple)
    rows = draw(st.lists(st.lists(own, min_size=1, max_size=4 if packed else 1), min_size=1, max_size=6))
    return multiple, [[(-(-size // multiple) * multiple, -size % multiple) for size in row] for row in rows]


def tokens_of(row: Row, first: int) -> list[list[Token]]:
    """Return the tokens of each document; every third is not trained."""
    documents, number = list[list[Token]](), first
    for size, pads in row:
        document = list[Token]()
        for position in range(size):
            if position < size - pads:
                trained = number % 3 > 0
                weight = 0.5 if trained else 0.0
                label = number if trained else IGNORED
                document.append((number, 1, label, position, weight, number / 4))
            else:
                document.append((PAD, 0, IGNORED, position, 0.0, 0.0))
            number += 1
        documents.append(document)
    return documents


def table_of(rows: list[Row]) -> pa.Table:
    tokens = [[token for document in tokens_of(row, 100 * n) for token in document] for n, row in enumerate(rows)]
    return pa.table(
        {
            "input_ids": pa.array([[token[0] for token in row] for row in tokens], pa.list_(pa.uint16())),
            "trained": pa.array([[int(token[2] != IGNORED) for token in row] for row in tokens], pa.list_(pa.uint8())),
            "weights": pa.array([[token[4] for token in row] for row in tokens], pa.list_(pa.float32())),
            "token:value": pa.array([[token[5] for token in row] for row in tokens], pa.list_(pa.float32())),
            "document_lengths": pa.array([[size for size, _ in row] for row in rows], pa.list_(pa.int32())),
            "rows": pa.array([[0] * len(row) for row in rows], pa.list_(pa.int32())),
            "padding": pa.array([[pads for _, pads in row] for row in rows], pa.list_(pa.int32())),
        }
    )


def expected(rows: list[Row], chosen: list[int], width: int, side: str, packed: bool) -> dict[str, Any]:
    """Return a batch of rows by number; -1 is a row of padding."""
    batch: dict[str, Any] = {name: [] for name in NAMES}
    runs, real, longest = [0], [0], 0
    for number in chosen:
        documents = tokens_of(rows[number], 100 * number) if number >= 0 else []
        if not packed:
            documents = [[token for token in document if token[1]] for document in documents]
        blank = [(PAD, 0, IGNORED, 0, 0.0, 0.0)] * (width - sum(map(len, documents)))
        parts = [blank, *documents] if side == "left" else [*documents, blank]
        for part in filter(None, parts):
            runs.append(runs[-1] + len(part))
            real.append(real[-1] + sum(token[1] for token in part))
            longest = max(longest, len(part))
        row = list[Token]()
        for part in parts:
            for place, (ids, mask, label, position, weight, value) in enumerate(part):
                starts = packed and place == 0
                row.append((ids, mask, IGNORED if starts else label, position, 0.0 if starts else weight, value))
        for at, name in enumerate(NAMES):
            batch[name].append([token[at] for token in row])
    if packed:
        return {**batch, "cu_seqlens": runs, "cu_seqlens_unpadded": real, "max_seqlen": longest}
    del batch["position_ids"]
    return batch


NAMES = ("input_ids", "attention_mask", "labels", "position_ids", "loss_weights", "value")


@given(st.booleans(), st.sampled_from(["left", "right"]), st.data())
def test_batches_equal_the_oracle(packed: bool, side: Any, data: st.DataObject) -> None:
    multiple, rows = data.draw(rows_of(packed))
    chosen = data.draw(st.lists(st.integers(-1, len(rows) - 1), min_size=1, max_size=5))
    longest = max(sum(size for size, _ in row) for row in rows)
    paddings: list[Any] = ["longest", "max_length", 2 * multiple, multiple // 2 or 1]
    padding = data.draw(st.sampled_from(paddings))
    policy = PaddingPolicy(PAD, padding, side, longest + multiple, packed, multiple)
    half = len(rows) // 2
    reader = SequenceReader.of_tables([table_of(rows).slice(0, half), table_of(rows).slice(half)])
    batch = reader.batch(np.array(chosen), policy)
    width = max([sum(size for size, _ in rows[n]) for n in chosen if n >= 0], default=multiple)
    if padding == "max_length":
        width = longest + multiple
    elif not isinstance(padding, str):
        while width % padding:
            width += 1
    assert width % multiple == 0
    found = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in batch.items()}
    assert found == expected(rows, chosen, width, side, packed)
    for number, row in zip(chosen, unpadded(batch), strict=True):
        documents = tokens_of(rows[number], 100 * number) if number >= 0 else []
        assert row["input_ids"].tolist() == [token[0] for document in documents for token in document if token[1]]


@pytest.mark.parametrize("packed", [True, False])
def test_a_batch_of_padding_alone_reads_no_row(packed: bool) -> None:
    """As a stream makes it on a rank without rows, from a table whose only row has no documents."""
    reader = SequenceReader.of_tables([table_of([[]])])
    batch = reader.batch(np.full(2, -1), PaddingPolicy(PAD, "longest", "right", 64, packed, 8))
    found = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in batch.items()}
    assert found == expected([], [-1, -1], 8, "right", packed)


@pytest.mark.parametrize(("padding", "right"), [(12, 16), (3, 8), (20, 24)])
def test_a_padding_that_breaks_the_multiple_is_refused(padding: int, right: int) -> None:
    with pytest.raises(ValueError, match=f"not a multiple of length.document_multiple 8 .*; set it to {right}"):
        PaddingPolicy(PAD, padding, "right", 64, True, 8)
