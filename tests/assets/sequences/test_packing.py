"""Packing and splitting: no token is lost or repeated uncounted, each is trained once, and sequences are full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.token_documents import Document, documents_of, table_of
from tokenloom.assets.sequences.packing import best_fit, to_sequences
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import LengthConfig, PipelineConfig
from tokenloom.errors import ConfigError

DOCUMENTS = st.lists(st.lists(st.booleans(), max_size=40), max_size=12).map(documents_of)


def run(documents: list[Document], longest: int, **length: Any) -> ChunkOutput:
    return to_sequences(table_of(documents), LengthConfig.model_validate(length), longest)


def best_fit_decreasing(lengths: list[int], longest: int) -> list[int]:
    """Return the tokens of each sequence by definition: longest document first, each into the fullest that has room."""
    filled: list[int] = []
    for length in sorted(lengths, reverse=True):
        able = [index for index, held in enumerate(filled) if held + length <= longest]
        if able:
            filled[max(able, key=lambda index: filled[index])] += length
        else:
            filled.append(length)
    return sorted(filled)


@given(st.integers(1, 60), st.data())
def test_best_fit_equals_best_fit_decreasing(longest: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, longest), max_size=80))
    layout = best_fit(np.array(lengths, np.int64), longest)
    ends = np.cumsum(layout.pieces)
    packs = [found.tolist() for found in np.split(layout.document, ends[:-1])] if lengths else []
    assert sorted(document for pack in packs for document in pack) == list(range(len(lengths)))
    assert layout.length.tolist() == [lengths[document] for document in layout.document]
    assert layout.start.tolist() == [sum(lengths[:document]) for document in layout.document]
    assert all(pack == sorted(pack) for pack in packs)
    assert [pack[0] for pack in packs] == sorted(pack[0] for pack in packs)
    assert sorted(sum(lengths[document] for document in pack) for pack in packs) == best_fit_decreasing(
        lengths, longest
    )


@given(DOCUMENTS, st.integers(1, 16), st.sampled_from(["truncate_right", "split", "drop"]))
def test_best_fit_keeps_documents_whole(documents: list[Document], longest: int, strategy: str) -> None:
    alone, packed = (run(documents, longest, strategy=strategy, packing=packing) for packing in ("none", "best_fit"))
    pieces = [(row["rows"][0], row["input_ids"], row["trained"]) for row in alone.table.to_pylist()]
    found = []
    for row in packed.table.to_pylist():
        assert len(row["input_ids"]) == sum(row["document_lengths"]) <= longest
        at = 0
        for raw, size in zip(row["rows"], row["document_lengths"], strict=True):
            found.append((raw, row["input_ids"][at : at + size], row["trained"][at : at + size]))
            at += size
    assert sorted(found) == sorted(pieces)
    assert packed.tokens == alone.tokens
    assert packed.counts() == alone.counts()
    assert packed.counters == {**alone.counters, "sequences": packed.table.num_rows}


@given(DOCUMENTS, st.integers(2, 16), st.data())
def test_split_trains_every_token_once(documents: list[Document], longest: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(0, longest - 1))
    out = run(documents, longest, strategy="split", stride=stride)
    pieces = [row for row in out.table.to_pylist() if len(row["rows"]) == 1]
    assert len(pieces) == out.table.num_rows == out.counters["sequences"]
    trained: list[int] = []
    for document in documents:
        ids = [number for number, _ in document.tokens]
        mine = [row for row in pieces if row["rows"] == [document.row]]
        ends = []
        for row in mine:
            begin = ids.index(row["input_ids"][0])
            assert row["input_ids"] == ids[begin : begin + longest]
            assert begin % (longest - stride) == 0
            assert not any(row["trained"][:stride]) or begin == 0
            trained += [number for number, flag in zip(row["input_ids"], row["trained"], strict=True) if flag]
            ends.append(begin + len(row["input_ids"]))
        assert ends == sorted(set(ends))
        assert not mine or len(ids) > longest or len(mine) == 1
    assert trained == [number for document in documents for number, flag in document.tokens if flag]
    assert out.rejects[ROW].to_pylist() == [document.row for document in documents if not document.useful]
    assert out.counts()["rows_out"] == sum(document.useful for document in documents)
    counts = out.counters
    begins = 0
    for document in documents:
        if document.useful:
            begins += 1
            begin = 0
            while begin + longest < len(document.tokens):
                begins += 1
                begin += longest - stride
    assert begins == len(pieces) + counts["sequences_left_out"]
    came = counts["tokens_in"] + counts["tokens_repeated"]
    assert came == out.tokens + counts["tokens_rejected"] + counts["tokens_left_out"]
    assert counts["tokens_in"] == sum(len(document.tokens) for document in documents)
    assert (counts["tokens_cut"], counts["tokens_dropped"]) == (0, 0)


def test_pieces_without_trained_tokens_are_omitted() -> None:
    (document,) = documents_of([[False] * 10 + [True] * 3])
    out = run([document], 5, strategy="split", stride=2)
    assert out.table["input_ids"].to_pylist() == [[6, 7, 8, 9, 10], [9, 10, 11, 12]]
    assert out.table["trained"].to_pylist() == [[0, 0, 0, 0, 1], [0, 0, 1, 1]]
    assert (out.counters["sequences_left_out"], out.counters["tokens_left_out"]) == (2, 10)


@pytest.mark.parametrize(
    ("length", "longest", "words"),
    [
        ({"strategy": "truncate_right", "stride": 8}, 64, "length.stride: has no effect with strategy: truncate_right"),
        ({"strategy": "split", "stride": 64}, 64, "length.stride: 64 leaves no room"),
        (
            {"strategy": "split", "stride": 8, "packing": "concat"},
            64,
            "has no effect with packing: concat",
        ),
        ({"strategy": "smart", "give_up": ["a", "b", "a"]}, 64, "length.give_up: a is listed twice"),
    ],
)
def test_settings_that_cannot_work_are_refused(length: dict[str, Any], longest: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PipelineConfig.from_mapping({"dataset": {"name": "x"}, "tokenizer": {"max_length": longest}, "length": length})


def test_alpaca_is_packed_tightly(real_data: Path) -> None:
    tokenizer = Tokenizer.from_file(str(real_data / "tokenizers" / "phi-2" / "tokenizer.json"))
    rows = json.loads((real_data / "instruct" / "alpaca_data.json").read_text(encoding="utf-8"))
    texts = ["\n\n".join(row.values()) for row in rows[:18_000]]
    lengths = np.array([len(found.ids) + 1 for found in tokenizer.encode_batch_fast(texts)])
    chunks = np.array_split(lengths, 2)
    sequences = sum(len(best_fit(chunk, 2048).pieces) for chunk in chunks)
    assert lengths.sum() >= 0.995 * 2048 * sequences
