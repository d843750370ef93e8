"""The rows of a dataset as Arrow tables without padding: what batches hold, for libraries that make their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.loaders.collation.batch import Batch
from tokenloom.loaders.collation.unpadded import flat_columns, side_of
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of

ROWS_AT_ONCE = 4096
TOKENS_AT_ONCE = 1 << 20
"""Padding counted, of the rows that are read at once."""

LENGTHS = "seq_lengths"
"""The lengths of a packed row's documents, under the name that TRL reads."""

TYPES: dict[str, type[np.generic]] = {
    "input_ids": np.int32,
    "attention_mask": np.int8,
    "labels": np.int32,
    "position_ids": np.int32,
    "loss_weights": np.float32,
}


def row_tables(dataset: TokenDataset | MixedDataset) -> Iterator[pa.Table]:
    """All rows in order, some thousands at a time; of a mixture those of its first epoch, each dataset in its own
    order. Row n is the row that a `TokenLoader` with `shuffle="none"` gives at position n, without its padding.

    Columns are lists: int32 `input_ids`, int8 `attention_mask`, int32 `labels` (-100 where not trained); of packed rows
    int32 `position_ids` and `seq_lengths`, the tokens of each document; where weights differ from 1, float32
    `loss_weights`. Pairs have them under `chosen_` and `rejected_`; kto rows have a bool `label`.

    Raises:
        StoreError: bytes that are read are missing or damaged.
    """
    order, policy = dataset.order(0, "none"), dataset.padding("longest")
    for begin in range(0, len(dataset), ROWS_AT_ONCE):
        rows = order.span(begin, min(begin + ROWS_AT_ONCE, len(dataset)))
        for some in _blocks(rows, dataset.reader.lengths(rows)):
            yield row_table(dataset.reader.batch(some, policy))


def row_table(batch: Batch) -> pa.Table:
    """The rows of a batch."""
    columns: dict[str, Any] = {}
    for name, (values, lengths) in flat_columns(batch).items():
        side = side_of(name)
        kind = name.removeprefix(side)
        columns[name] = list_array(offsets_of(lengths), values.astype(TYPES[kind], copy=False))
        if kind == "position_ids":
            columns[f"{side}{LENGTHS}"] = _document_lengths(values, lengths)
    if "label" in batch:
        columns["label"] = pa.array(np.asarray(batch["label"]))
    return pa.table(columns)


def _blocks(rows: Ints, lengths: Ints) -> Iterator[Ints]:
    """The rows in parts that have `TOKENS_AT_ONCE` with padding, or are one row."""
    begin = 0
    while begin < len(rows):
        padded = np.maximum.accumulate(lengths[begin:]) * np.arange(1, len(rows) - begin + 1)
        end = begin + max(int(np.searchsorted(padded, TOKENS_AT_ONCE, side="right")), 1)
        yield rows[begin:end]
        begin = end


def _document_lengths(position_ids: npt.NDArray[np.integer], lengths: Ints) -> pa.ListArray:
    """The tokens of each document of rows; position 0 is where one begins."""
    starts = np.flatnonzero(position_ids == 0)
    sizes = np.diff(starts, append=len(position_ids)).astype(np.int32)
    return list_array(np.searchsorted(starts, offsets_of(lengths)), sizes)
