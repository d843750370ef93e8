"""Batches of trees equal an oracle of Python lists, also as rows that are pushed; crafted trees are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tree_contexts import rows_of
from tokenloom.assets.sequences.answers import Documents
from tokenloom.assets.sequences.trees import grow
from tokenloom.loaders.datasets.hub import START_WEIGHTS, stored_rows
from tokenloom.loaders.datasets.mixed_dataset import row_table
from tokenloom.loaders.reading.batch import PaddingPolicy, flat_columns, unpadded
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.tables.ragged import list_array, list_views, offsets_of
from tokenloom.resources.tables.sequence_schema import ROWS, SequenceFacts, check_sequences

PAD, LONGEST = 60_000, 40
FACTS = SequenceFacts(PAD, 60_001, LONGEST, True, "sequence", "", trees=True)
TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=10)
ROW = st.lists(TEXTS, min_size=1, max_size=4)


def stored(rows: list[list[list[int]]], weights: bool) -> pa.Table:
    """Return a chunk with a sequence for each list of texts, which are a few trees; every second token is trained."""
    tables = []
    for number, texts in enumerate(rows):
        ids = np.array([token for text in texts for token in text], np.uint16)
        flags = (np.arange(len(ids)) % 2).astype(np.float32) * (0.5 if weights else 1.0)
        lengths = np.array([len(text) for text in texts])
        trees = grow(
            Documents(ids, flags, lengths, np.full(len(texts), number, np.int32)), np.zeros(len(texts), np.int64), 400
        )
        nodes, bounds, documents = trees.nodes, np.array([0, len(trees.nodes.ids)]), np.array([0, len(trees.reach)])
        columns: dict[str, Any] = {
            "input_ids": list_array(bounds, nodes.ids),
            "trained": list_array(bounds, (nodes.weights > 0).astype(np.uint8)),
            ROWS: list_array(documents, nodes.rows),
        }
        numbers = {"document_lengths": nodes.lengths, "positions": trees.positions, "reach": trees.reach}
        columns |= {name: list_array(documents, values.astype(np.int32)) for name, values in numbers.items()}
        tables.append(pa.table({**columns, "weights": list_array(bounds, nodes.weights.astype(np.float32))}))
    return pa.concat_tables(tables).combine_chunks()


@given(rows=ROW, side=st.sampled_from(["left", "right"]), weights=st.booleans(), padding_row=st.booleans())
def test_batches_equal_lists(rows: Any, side: Any, weights: bool, padding_row: bool) -> None:
    table = stored(rows, weights)
    check_sequences(table, SequenceFacts(PAD, 60_001, 400, True, "sequence", "", trees=True))
    chosen = [*range(len(rows)), *([-1] if padding_row else [])]
    batch = SequenceReader.of_tables([table]).batch(np.array(chosen), PaddingPolicy(PAD, "longest", side, 400, True))
    assert {*batch} == {
        *("input_ids", "attention_mask", "labels", "position_ids", "attention_ends", "loss_weights"),
    }
    expected = [*rows_of(table), *([{"ids": [], "weights": [], "positions": [], "ends": []}] if padding_row else [])]
    width = max(len(row["ids"]) for row in expected)
    for number, row in enumerate(expected):
        blank = width - len(row["ids"])
        first = blank if side == "left" else 0
        own = slice(first, first + len(row["ids"]))
        kept = [
            bool(weight) and position > 0 for weight, position in zip(row["weights"], row["positions"], strict=True)
        ]
        found = {name: np.asarray(values)[number].tolist() for name, values in batch.items()}
        assert found["input_ids"][own] == row["ids"]
        assert found["position_ids"][own] == row["positions"]
        assert found["attention_ends"][own] == [first + end for end in row["ends"]]
        assert found["labels"][own] == [i if trained else -100 for i, trained in zip(row["ids"], kept, strict=True)]
        assert found["loss_weights"][own] == [
            weight if trained else 0 for weight, trained in zip(row["weights"], kept, strict=True)
        ]
        assert found["attention_mask"] == [int(own.start <= place < own.stop) for place in range(width)]
        for place in {*range(width)}.difference(range(own.start, own.stop)):
            of_padding = (found[name][place] for name in ("input_ids", "position_ids", "attention_ends", "labels"))
            assert (*of_padding,) == (PAD, 0, place + 1, -100)


@given(rows=ROW, weights=st.booleans())
def test_pushed_rows_are_stored_as_they_were(rows: Any, weights: bool) -> None:
    table = stored(rows, weights)
    batch = SequenceReader.of_tables([table]).batch(
        np.arange(len(rows)), PaddingPolicy(PAD, "longest", "right", 400, True)
    )
    offsets, lengths = list_views(table["document_lengths"])
    starts = list_views(table["weights"])[1][offsets_of(lengths)[:-1]]
    pushed = row_table(batch).append_column(ROWS, table[ROWS])
    assert "seq_lengths" not in pushed.column_names  # what other tools take for whole documents
    pushed = pushed.append_column(START_WEIGHTS, list_array(offsets, starts))
    assert stored_rows(pushed, FACTS, table.column_names).equals(table)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_without_padding_keep_which_token_sees_which(side: Any) -> None:
    table = stored([[[0, 0, 1, 1], [0, 0, 0]]], False)
    batch = SequenceReader.of_tables([table]).batch(np.array([0]), PaddingPolicy(PAD, 16, side, 400, True))
    assert "attention_ends" in flat_columns(batch)
    row = unpadded(batch)[0]
    assert row["position_ids"].tolist() == [0, 1, 2, 1, 2, 3]
    assert row["attention_ends"].tolist() == [6, 3, 3, 6, 6, 6]


def changed(table: pa.Table, name: str, values: list[int]) -> pa.Table:
    column = list_array(np.array([0, len(values)]), np.array(values, np.int32))
    return table.set_column(table.column_names.index(name), name, column)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("positions", [0, 1, 5], "at which no document can begin"),
        ("positions", [1, 1, 1], "at which no document can begin"),
        ("positions", [0, -1, 1], "at which no document can begin"),
        ("reach", [6, 2, 4], "is not that of documents of its row"),
        ("reach", [7, 2, 3], "is not that of documents of its row"),
        ("reach", [6, 1, 3], "is not that of documents of its row"),
        ("reach", [6, 2], "different numbers of"),
        ("positions", [0, 1, 1, 1], "different numbers of"),
    ],
)
def test_crafted_trees_are_refused(name: str, values: list[int], problem: str) -> None:
    table = stored([[[0, 0, 1, 1], [0, 0, 0]]], False)
    assert [table[each].to_pylist() for each in ("positions", "reach")] == [[[0, 1, 1]], [[6, 2, 3]]]
    with pytest.raises(ValueError, match=problem):
        check_sequences(changed(table, name, values), FACTS)


def test_a_chunk_without_trees_is_refused_where_the_manifest_has_them() -> None:
    table = stored([[[0, 0, 1, 1], [0, 0, 0]]], False)
    with pytest.raises(ValueError, match="has no column reach"):
        check_sequences(table.drop_columns(["reach"]), FACTS)
    with pytest.raises(ValueError, match="has an unexpected column 'positions'"):
        check_sequences(table, SequenceFacts(PAD, 60_001, LONGEST, True, "sequence", ""))
