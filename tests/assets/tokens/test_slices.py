"""A chunk that is tokenized in slices gives the same bytes as one that is tokenized at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from support.small_tokenizers import byte_level
from tokenloom.assets.prompts.spans import Piece, assemble
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rows import in_slices
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.resources.store.objects import encode_table


@pytest.mark.parametrize("size", [1, 7, 40, 100])
@pytest.mark.parametrize("texts", [1, 2])
def test_slices_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch, size: int, texts: int) -> None:
    encoder = ContentEncoder(byte_level().to_str().encode(), ("</s>",), False)
    contents = ["a bc" * 9, "", "x" * 50, "y</s>", "", "café", "z"] * texts
    contents[::texts] = contents[: len(contents) // texts]
    pieces = [Piece(None, 0, "user", 0), Piece(" b"), Piece("</s>", role="assistant", weight=1.0, control=True)]
    rows = pa.array([number // texts for number in range(len(contents))], pa.int32())
    table = assemble(rows, pieces, [pa.array(contents)])

    def compute(part: pa.Table) -> ChunkOutput:
        return tokenize(part, encoder, ("</s>",), "reject")

    whole = in_slices(compute, table)
    monkeypatch.setattr("tokenloom.assets.stage.rows.SLICE_BYTES", size)
    sliced = in_slices(compute, table)
    assert encode_table(sliced.table, False) == encode_table(whole.table, False)
    assert encode_table(sliced.rejects, True) == encode_table(whole.rejects, True)
    assert sliced.counts() == whole.counts()
    assert sliced.counters == whole.counters
