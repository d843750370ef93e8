"""Peak memory of rows with long texts: in proportion to their size, whatever their words are."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_children import CommandChildren
from support.soak import sweep

COMPARE = """
import random
import pyarrow as pa
from tokenloom.assets.dedup.decision import Rows, decide
from tokenloom.assets.fingerprints.stage import Compared, fingerprints

unit = " ".join(random.Random(1).choices({words!r}, k=1 << 15)) + " "
texts = [unit * ({size} // len(unit.encode())) + end for end in ("of one kind", "of another kind")]
table = pa.table({{"_row": pa.array([0, 1], pa.int32()), "text": texts}})
del texts
compared = Compared("text", ngram_size=5, bands=18, band_rows=7)
prints = fingerprints(table, compared).table
found = decide(Rows([2], [prints].__getitem__, [table].__getitem__, [compared]), True, 0.5)
assert found.rows.tolist() == [1], found
"""
KINDS = {
    "words": (["lantern", "copper", "of", "the", "willow", "x == y"], 10),
    "letters": (list("abcdefgh"), 24),
    "accents": (["été", "мост", "weiß", "naïve"], 10),
    "symbols": (["{", "=", "+", "f(x)", "\n"], 24),
}
"""Words of long rows, and the most bytes of memory for each byte; each word has a hash of 8 bytes."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[sweep] * (kind != "words")) for kind in KINDS])
def test_long_rows_take_memory_in_proportion(tmp_path: Path, kind: str) -> None:
    """Two rows of one chunk, compared with each other: what 8 MB more of text take more."""
    words, most = KINDS[kind]
    peaks = []
    with CommandChildren(tmp_path) as children:
        for size in (5 << 20, 9 << 20):
            ended = children.run(["-c", COMPARE.format(words=words, size=size)], tmp_path)
            assert ended.code == 0, ended.err
            peaks.append(ended.peak)
    assert peaks[1] - peaks[0] < most * (8 << 20), peaks
