"""The probe of `sequences`: fixed tokens, truncated by part, split and packed, to detect changes in libraries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import span_lists
from tokenloom.assets.prompts.truncation_order import TruncationOrder
from tokenloom.assets.sequences.fit_and_pack import to_sequences
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import LengthConfig
from tokenloom.resources.tables.ragged import list_array, offsets_of

ROWS, LONGEST = 40, 32


def probe() -> list[pa.Table]:
    tokens, order = _tokens(), TruncationOrder((0, -1), columns=True, by_role=False, keep="start")
    smart = to_sequences(tokens, LengthConfig(strategy="smart", packing="best_fit"), LONGEST, order)
    split = to_sequences(tokens, LengthConfig(strategy="split", stride=4), LONGEST)
    joined = to_sequences(tokens, LengthConfig(packing="concat"), LONGEST)
    return [table for output in (smart, split, joined) for table in (output.table, output.rejects)]


def _tokens() -> pa.Table:
    """Return rows of an input and an answer. Some lengths are equal."""
    number = np.arange(ROWS)
    lengths = np.stack([1 + number * 7 % 23, 1 + number * 5 % 17], axis=1)
    ends = np.cumsum(lengths, axis=1)
    ids = pa.array(np.arange(lengths.sum()) * 31 % 60_000, pa.uint16())
    flat = [np.tile(values, ROWS) for values in ([3, 4], [0, 1], [0.0, 1.0], [False, False])]
    roles, messages, weights, control = flat
    spans = span_lists(np.full(ROWS, 2), (ends - lengths).ravel(), ends.ravel(), roles, messages, weights, control)
    columns = {ROW: pa.array(number, pa.int32()), "input_ids": list_array(offsets_of(ends[:, 1]), ids), "spans": spans}
    return pa.table(columns)
