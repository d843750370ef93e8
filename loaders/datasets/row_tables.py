"""The rows of a dataset as Arrow tables without padding, for libraries that build their own batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.reading.batch import Batch, flat_columns, kept_values, side_of
from tokenloom.resources.tables.ragged import SIDES, Ints, list_array, offsets_of
from tokenloom.resources.tables.sequence_schema import LABEL

ROWS_AT_ONCE = 4096
ILLUSTRATED_AT_ONCE = 64
"""Rows per table with image files, which are larger."""

_FILES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
TOKENS_AT_ONCE = 1 << 20
"""Tokens per table, padding included."""

LENGTHS = "seq_lengths"
"""Column with the lengths of a packed row's documents; TRL reads it under this name."""

TYPES: dict[str, type[np.generic]] = {
    "input_ids": np.int32,
    "attention_mask": np.int8,
    "labels": np.int32,
    "position_ids": np.int32,
    "attention_ends": np.int32,
    "loss_weights": np.float32,
}


def row_tables(dataset: TokenDataset | MixedDataset, first: int = 0) -> Iterator[pa.Table]:
    """Yield all rows in order, up to 4096 per table; for a mixture, the rows of its first epoch.

    Args:
        first: the row to begin with, at which a table of the whole dataset begins.

    Row n is the row that a `TokenLoader` with `shuffle="none"` reads at position n, without its padding.

    Columns are lists: int32 `input_ids`, int8 `attention_mask`, int32 `labels` (-100 where not trained). Packed rows
    also have int32 `position_ids` and `seq_lengths`, the number of tokens in each document; those of trees have int32
    `attention_ends` instead of the latter. If weights differ from 1, there are float32 `loss_weights`; the columns of
    `token_columns` are float32 too. Pairs have these columns twice, prefixed with `chosen_` and `rejected_`. KTO rows
    have a bool `label`. The columns of `keep_columns` keep their type if it is the same in all chunks; otherwise they
    are JSON text. For packed rows they are lists with one value per document. Datasets with images have a column
    `images` with the list of each row's image files, as the feature `Image` of datasets holds them.

    Raises:
        StoreError: bytes of a row are missing or damaged.
    """
    kept, images = dataset.reader.kept.types() if dataset.reader.kept else {}, dataset.images is not None
    order, policy = dataset.order(0, "none"), dataset.padding("longest")
    step = ILLUSTRATED_AT_ONCE if images else ROWS_AT_ONCE
    for begin in range(first - first % step, len(dataset), step):
        rows, skipped = order.span(begin, min(begin + step, len(dataset))), max(first - begin, 0)
        for block in row_blocks(rows, dataset.lengths(rows)):
            rest, skipped = block[skipped:], max(skipped - len(block), 0)
            if not len(rest):
                continue
            table = row_table(dataset.reader.batch(rest, policy, images=False), kept)
            yield _with_files(table, dataset.reader.image_files(rest)) if images else table


def _with_files(table: pa.Table, files: list[list[bytes]]) -> pa.Table:
    structs = [[{"bytes": content, "path": None} for content in row] for row in files]
    return table.append_column("images", pa.array(structs, _FILES))


def row_table(batch: Batch, kept: Mapping[str, pa.DataType | None] | None = None) -> pa.Table:
    """Return the rows of a batch as a table, without padding.

    Args:
        kept: type of each kept column; None: JSON text. Default: no kept columns.
    """
    columns: dict[str, Any] = {}
    for name, (values, lengths) in flat_columns(batch).items():
        side = side_of(name)
        kind = name.removeprefix(side)
        columns[name] = list_array(offsets_of(lengths), values.astype(TYPES.get(kind, np.float32), copy=False))
        if kind == "position_ids" and "attention_ends" not in batch:
            columns[f"{side}{LENGTHS}"] = _document_lengths(values, lengths)
    if LABEL in batch:
        columns[LABEL] = pa.array(np.asarray(batch[LABEL]))
    values, packed = kept_values(batch), any(f"{side}position_ids" in batch for side in ("", f"{SIDES[0]}_"))
    for name, kind in (kept or {}).items():
        columns[name] = _kept_array(values[name], kind, packed)
    return pa.table(columns)


def _kept_array(values: list[Any], kind: pa.DataType | None, packed: bool) -> pa.Array:
    if kind is None:
        values = [[*map(_json_text, value)] if packed else _json_text(value) for value in values]
    kind = kind or pa.string()
    return pa.array(values, pa.list_(kind) if packed else kind)


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, default=str)


def row_blocks(rows: Ints, lengths: Ints) -> Iterator[Ints]:
    """Split rows into blocks of at most `TOKENS_AT_ONCE` tokens, padding included, and at least one row."""
    begin = 0
    while begin < len(rows):
        padded = np.maximum.accumulate(lengths[begin:]) * np.arange(1, len(rows) - begin + 1)
        end = begin + max(int(np.searchsorted(padded, TOKENS_AT_ONCE, side="right")), 1)
        yield rows[begin:end]
        begin = end


def _document_lengths(position_ids: npt.NDArray[np.integer], lengths: Ints) -> pa.ListArray:
    """Return the number of tokens of each document per row; a document begins at each position 0."""
    starts = np.flatnonzero(position_ids == 0)
    sizes = np.diff(starts, append=len(position_ids)).astype(np.int32)
    return list_array(np.searchsorted(starts, offsets_of(lengths)), sizes)
