"""Sequences: truncation and packing equal list-based oracles; batches of packed rows keep documents separate."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.token_documents import Document, documents_of, table_of
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import LengthConfig
from tokenloom.loaders.reading.batch import PaddingPolicy
from tokenloom.loaders.reading.reader import InMemory, SequenceReader

STRATEGIES = ("truncate_right", "truncate_left", "truncate_middle", "drop")
IGNORED = -100
PAD = 60_000


def shortened(tokens: list[Any], longest: int, strategy: str) -> list[Any]:
    """Return what a strategy keeps of one row, or None if the row is dropped."""
    if len(tokens) <= longest:
        return tokens
    if strategy == "truncate_right":
        return tokens[:longest]
    if strategy == "truncate_left":
        return tokens[len(tokens) - longest :]
    if strategy == "truncate_middle":
        tail = longest // 2
        return tokens[: longest - tail] + tokens[len(tokens) - tail :]
    return []


def run(documents: list[Document], longest: int, strategy: str, packing: str = "none") -> ChunkOutput:
    settings = LengthConfig.model_validate({"strategy": strategy, "packing": packing})
    return to_sequences(table_of(documents), settings, longest)


DOCUMENTS = st.lists(st.lists(st.booleans(), max_size=24), max_size=12).map(documents_of)
LONGEST = st.integers(1, 16)


@given(DOCUMENTS, LONGEST, st.sampled_from(STRATEGIES))
def test_rows_are_truncated_by_the_strategy(documents: list[Document], longest: int, strategy: str) -> None:
    out = run(documents, longest, strategy)
    dropped = [document for document in documents if strategy == "drop" and len(document.tokens) > longest]
    left = [Document(d.row, shortened(d.tokens, longest, strategy)) for d in documents if d not in dropped]
    kept = [document for document in left if document.useful]
    found = out.table.to_pylist()
    assert [row["input_ids"] for row in found] == [[number for number, _ in document.tokens] for document in kept]
    assert [row["trained"] for row in found] == [[int(trained) for _, trained in document.tokens] for document in kept]
    assert [row["rows"] for row in found] == [[document.row] for document in kept]
    assert [row["document_lengths"] for row in found] == [[len(document.tokens)] for document in kept]
    assert out.filtered == len(dropped)
    assert out.rejects[ROW].to_pylist() == [document.row for document in left if not document.useful]
    assert set(out.rejects["code"].to_pylist()) <= {"answer_cut_off", "nothing_trained"}
    assert out.rows_in == len(documents) == len(kept) + out.rejects.num_rows + out.filtered
    assert out.counts()["rows_out"] == len(kept)


@given(DOCUMENTS, LONGEST, st.sampled_from(STRATEGIES[:3]))
def test_tokens_are_conserved_exactly(documents: list[Document], longest: int, strategy: str) -> None:
    out = run(documents, longest, strategy)
    rejected = set(out.rejects[ROW].to_pylist())
    lost_with_rejects = sum(min(len(d.tokens), longest) for d in documents if d.row in rejected)
    total = sum(len(document.tokens) for document in documents)
    assert out.tokens == sum(map(len, out.table["input_ids"].to_pylist()))
    assert total == out.tokens + out.counters["tokens_cut"] + lost_with_rejects


@given(DOCUMENTS, LONGEST, st.sampled_from(STRATEGIES))
def test_concat_packing_joins_and_cuts(documents: list[Document], longest: int, strategy: str) -> None:
    out = run(documents, longest, strategy, "concat")
    dropping = strategy == "drop"
    kept = [Document(d.row, shortened(d.tokens, longest, strategy) if dropping else d.tokens) for d in documents]
    stream = [(document.row, *token) for document in kept if document.useful for token in document.tokens]
    sequences = [stream[begin : begin + longest] for begin in range(0, len(stream), longest)]
    found = out.table.to_pylist()
    assert [row["input_ids"] for row in found] == [[number for _, number, _ in sequence] for sequence in sequences]
    assert [row["trained"] for row in found] == [[int(flag) for _, _, flag in sequence] for sequence in sequences]
    runs = [[(row, len(list(run))) for row, run in groupby(sequence, lambda token: token[0])] for sequence in sequences]
    assert [row["rows"] for row in found] == [[row for row, _ in pieces] for pieces in runs]
    assert [row["document_lengths"] for row in found] == [[size for _, size in pieces] for pieces in runs]
    assert (out.tokens, out.counters["tokens_cut"]) == (len(stream), 0)
    assert out.counters["sequences"] == len(sequences)
    assert out.rows_in == out.counts()["rows_out"] + out.rejects.num_rows + out.filtered


def test_a_row_whose_answer_is_cut_off_is_rejected() -> None:
    documents = documents_of([[False] * 6 + [True] * 3, [False] * 3 + [True] * 2, [True] * 9])
    out = run(documents, 5, "truncate_right")
    assert out.table["rows"].to_pylist() == [[4], [7]]
    assert out.rejects.select([ROW, "stage", "code"]).to_pylist() == [
        {ROW: 1, "stage": "sequences", "code": "answer_cut_off"}
    ]
    assert out.counters["tokens_cut"] == 4 + 0 + 4


@pytest.mark.parametrize("strategy", ["truncate_right", "truncate_left", "truncate_middle", "drop"])
def test_a_row_that_nothing_trains_is_rejected_with_that_reason(strategy: str) -> None:
    """Labels that are all -100, short and long, beside a row whose answer is cut off, and one that is trained."""
    documents = documents_of([[False] * 3, [False] * 9, [False] * 6 + [True] * 3, [True] * 2])
    out = run(documents, 5, strategy)
    found = dict(zip(out.rejects[ROW].to_pylist(), out.rejects["code"].to_pylist(), strict=True))
    rows = [document.row for document in documents]
    long = {} if strategy == "drop" else {rows[1]: "nothing_trained"}
    cut = {rows[2]: "answer_cut_off"} if strategy == "truncate_right" else {}
    assert found == {rows[0]: "nothing_trained", **long, **cut}


@pytest.mark.parametrize("packing", ["none", "concat"])
def test_an_empty_chunk_stays_empty(packing: str) -> None:
    out = run([], 8, "truncate_right", packing)
    assert (out.table.num_rows, out.tokens, out.rows_in) == (0, 0, 0)


@given(
    st.lists(
        st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=8), min_size=1, max_size=3
    ),
    st.integers(2, 9),
    st.sampled_from(["left", "right"]),
    st.sampled_from(["max_length", "longest", 4]),
    st.data(),
)
def test_packed_batches_keep_documents_apart(
    chunks: list[list[list[bool]]], longest: int, side: Any, padding: Any, data: st.DataObject
) -> None:
    tables = [run(documents_of(flags), longest, "truncate_right", "concat").table for flags in chunks]
    rows = [row for table in tables for row in table.to_pylist()]
    all_trained = np.array([all(flag for row in flags for flag in row) for flags in chunks])
    reader = SequenceReader([table.num_rows for table in tables], lambda n: InMemory(tables[n]), False, all_trained)
    assert len(reader) == len(rows)
    if not rows:
        return
    chosen = data.draw(st.lists(st.integers(-1, len(rows) - 1), min_size=1, max_size=5))
    batch: dict[str, Any] = reader.batch(np.array(chosen), PaddingPolicy(PAD, padding, side, longest, packed=True))
    width = batch["input_ids"].shape[1]
    bounds = {0, len(chosen) * width}
    for place, number in enumerate(chosen):
        lengths = rows[number]["document_lengths"] if number >= 0 else []
        begin = width - sum(lengths) if side == "left" else 0
        at = begin
        bounds |= {place * width, place * width + begin}
        for size in lengths:
            assert batch["position_ids"][place, at : at + size].tolist() == list(range(size))
            assert batch["labels"][place, at] == IGNORED
            at += size
            bounds.add(place * width + at)
        ids = rows[number]["input_ids"] if number >= 0 else []
        firsts = {sum(lengths[:k]) for k in range(len(lengths))}
        flags = rows[number]["trained"] if number >= 0 else []
        labels = [t if f and k not in firsts else IGNORED for k, (t, f) in enumerate(zip(ids, flags, strict=True))]
        padded = slice(begin, begin + len(ids))
        assert batch["input_ids"][place, padded].tolist() == ids
        assert batch["labels"][place, padded].tolist() == labels
        assert batch["attention_mask"][place].sum() == len(ids) == batch["attention_mask"][place, padded].sum()
        assert (np.delete(batch["input_ids"][place], padded) == PAD).all()
        assert (np.delete(batch["labels"][place], padded) == IGNORED).all()
    assert batch["cu_seqlens"].tolist() == sorted(bounds)
    assert batch["max_seqlen"] == max(np.diff(sorted(bounds)))
    kinds = {
        name: batch[name].dtype for name in ("input_ids", "attention_mask", "labels", "position_ids", "cu_seqlens")
    }
    assert kinds.pop("cu_seqlens") == np.int32
    assert set(kinds.values()) == {np.dtype(np.int64)}


@given(
    st.lists(DOCUMENTS, min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from(["left", "right"]),
    st.sampled_from(["max_length", "longest", 4]),
    st.data(),
)
def test_batches_found_at_once_are_those_found_alone(
    chunks: list[list[Document]], packed: bool, side: Any, padding: Any, data: st.DataObject
) -> None:
    packing = "concat" if packed else "none"
    tables = [run(documents, 20, "truncate_right", packing).table for documents in chunks]
    policy, count = PaddingPolicy(PAD, padding, side, 20, packed), sum(table.num_rows for table in tables)
    if not count:
        return
    row = st.lists(st.integers(-1, count - 1), min_size=1, max_size=4)
    groups = [np.array(rows) for rows in data.draw(st.lists(row, min_size=1, max_size=6))]
    at_once = list(SequenceReader.of_tables(tables).batches(groups, policy))
    assert len(at_once) == len(groups)
    for rows, batch in zip(groups, at_once, strict=True):
        alone = SequenceReader.of_tables(tables).batch(rows, policy)
        assert batch.keys() == alone.keys()
        for name, value in batch.items():
            assert np.array_equal(value, alone[name]), name
            assert not any(np.shares_memory(value, other[name]) for other in at_once if other is not batch)
