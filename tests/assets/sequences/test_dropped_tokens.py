"""Where rows were cut: every token that a row lost is in one gap, at the place where the row has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.token_documents import documents_of, table_of
from tokenloom.assets.prompts.truncation_order import TruncationOrder
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.assets.sequences.shown import LOSSES, dropped_tokens
from tokenloom.config import LengthConfig

ORDER = TruncationOrder((0, 0, 0, 0, 0), False, False, "start")
STRATEGIES = ["truncate_right", "truncate_left", "truncate_middle", "smart", "split", "drop"]


@pytest.mark.parametrize("packing", ["none", "concat", "best_fit"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=6), st.integers(2, 12), st.data()
)
def test_sequences_and_gaps_are_the_rows(
    strategy: Any, packing: Any, flags: list[list[bool]], longest: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(0, longest - 1)) if strategy == "split" else 0
    documents = documents_of(flags)
    length = LengthConfig(strategy=strategy, packing=packing, stride=stride)
    order = ORDER if strategy == "smart" else None
    tokens = table_of(documents)
    made = to_sequences(tokens, length, longest, order)
    settings = {f"length.{name}": value for name, value in length.model_dump().items()}
    settings |= {"tokenizer.max_length": longest} | ({"order": order.to_json()} if order else {})
    gaps = dropped_tokens(tokens, made.table, settings).get("", {})
    sequences = made.table["input_ids"].to_pylist()
    kept = {number for row in made.table["rows"].to_pylist() for number in row}
    wanted = [number for document in documents if document.row in kept for number, _ in document.tokens]
    lost = [number for of_sequence in gaps.values() for gap in of_sequence for number in gap.ids.tolist()]
    assert sorted([*lost, *{number for row in sequences for number in row}]) == wanted
    if not stride and not made.counters["tokens_rejected"]:  # else counters have other tokens too
        assert len(lost) == sum(made.counters.get(name, 0) for name in LOSSES)
    starts, ends = ({document.tokens[at][0] for document in documents} for at in (0, -1))
    for sequence, of_sequence in gaps.items():
        for gap in of_sequence:
            ids = gap.ids.tolist()
            first, last = ids[0], ids[-1]
            assert ids == list(range(first, last + 1)), "ids of a row are consecutive"
            if gap.ends:
                assert sequences[sequence][gap.position - 1] == first - 1 and last in ends
            else:
                before = sequences[sequence][gap.position - 1] if gap.position else None
                assert sequences[sequence][gap.position] == last + 1
                assert before == first - 1 or first in starts or strategy == "split"


def test_sequences_of_other_tokens_have_no_gaps() -> None:
    tokens, others = (table_of(documents_of([[True] * size])) for size in (30, 31))
    made = to_sequences(others, LengthConfig(strategy="truncate_left"), 8)
    settings = {"length.strategy": "truncate_left", "length.packing": "none", "tokenizer.max_length": 8}
    assert dropped_tokens(tokens, made.table, settings) == {}
    assert dropped_tokens(others, made.table, settings) != {}
