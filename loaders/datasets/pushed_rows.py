"""Chunks of sequences from the rows of a Parquet file, with the same bytes: a dataset that was pushed to the hub opens
with the digests that it has where it was built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.loaders.reading.batch import IGNORED
from tokenloom.resources.tables.document_padding import with_padding
from tokenloom.resources.tables.json_text import json_column
from tokenloom.resources.tables.ragged import SIDES, Ints, list_array, list_views, offsets_of, one_array
from tokenloom.resources.tables.sequence_schema import (
    DOCUMENT_LENGTHS,
    ID_TYPES,
    INPUT_IDS,
    LABEL,
    PAIR,
    POSITIONS,
    RAW_ROW,
    REACH,
    ROWS,
    TRAINED,
    WEIGHTS,
    SequenceFacts,
)

START_WEIGHTS = "start_weights"
"""Column of packed rows: the loss weight that the first token of each document has in the store. Its label is -100."""

FOLDER = "data"
"""Folder of the Parquet files."""

_LENGTHS = "seq_lengths"

ABOUT = "tokenloom.json"
"""File with what all chunks share: dataset, version, facts, counters and kept columns."""


def stored_rows(table: pa.Table, facts: SequenceFacts, names: Sequence[str]) -> pa.Table:
    """Return a chunk, given its rows with the columns of `row_tables`, with `rows` and, if packed, `start_weights`.

    Args:
        names: names of the chunk's columns, in order.

    Raises:
        ValueError: the rows are not those of a chunk.
    """
    columns: dict[str, Any] = {ROWS: list_array(*list_views(table[ROWS]))}
    if LABEL in names:
        columns[LABEL] = one_array(table[LABEL])
    for side in sides_of(facts.kind):
        offsets, ids = list_views(table[f"{side}{INPUT_IDS}"])
        columns[f"{side}{INPUT_IDS}"] = list_array(offsets, ids.astype(_id_type(facts)))
        if facts.trees:
            bounds, starts, of_nodes = _nodes(table, offsets)
            columns |= {name: list_array(bounds, values.astype(np.int32)) for name, values in of_nodes.items()}
        else:
            columns[f"{side}{DOCUMENT_LENGTHS}"], starts = _documents(table, side, offsets)
        if f"{side}labels" in table.column_names:
            trained = list_views(table[f"{side}labels"])[1] != IGNORED
        else:
            trained = np.zeros(len(ids), bool)
        weights = trained.astype(np.float32)
        if f"{side}loss_weights" in table.column_names:
            weights = list_views(table[f"{side}loss_weights"])[1].copy()
        if facts.packed:
            weights[starts] = list_views(table[f"{side}{START_WEIGHTS}"])[1]
        columns[f"{side}{TRAINED}"] = list_array(offsets, (weights > 0).astype(np.uint8))
        columns[f"{side}{WEIGHTS}"] = list_array(offsets, weights)
    if facts.document_multiple:
        made = with_padding(pa.table(columns), facts.document_multiple, facts.pad_token_id)
        columns = {name: made[name].combine_chunks() for name in made.column_names}
    if missing := [name for name in names if name not in columns]:
        raise ValueError(f"has no column {missing[0]}")
    return pa.table({name: columns[name] for name in names})


def sidecar_of(table: pa.Table, names: Mapping[str, bool], packed: bool) -> pa.Table:
    """Return the kept columns of a chunk by raw row, as loaders read them next to it.

    Args:
        names: the columns, and whether each holds JSON texts.
    """
    offsets, raw = list_views(table[ROWS])
    found, first = np.unique(raw, return_index=True)
    row = np.searchsorted(offsets, first, side="right") - 1
    columns = {RAW_ROW: pa.array(found.astype(np.int32))}
    for name, is_text in names.items():
        values = one_array(table[name])
        values = values.flatten().take(pa.array(first)) if packed else values.take(pa.array(row))
        columns[name] = json_column(values) if is_text else values
    return pa.table(columns)


def sides_of(kind: str) -> list[str]:
    """Return what the columns of rows of a kind begin with."""
    return [f"{side}_" for side in SIDES] if kind == PAIR else [""]


def _id_type(facts: SequenceFacts) -> type[np.generic]:
    return ID_TYPES[facts.vocab_size > 1 << 16].value_type.to_pandas_dtype()


def _documents(table: pa.Table, side: str, offsets: np.ndarray) -> tuple[pa.Array, Ints]:
    """Return the lengths of each row's documents, and the first token of each document."""
    if f"{side}{_LENGTHS}" in table.column_names:
        bounds, lengths = list_views(table[f"{side}{_LENGTHS}"])
    else:
        bounds, lengths = np.arange(len(offsets)), np.diff(offsets).astype(np.int32)
    return list_array(bounds, lengths), offsets_of(lengths)[:-1]


def _nodes(table: pa.Table, offsets: np.ndarray) -> tuple[Ints, Ints, dict[str, Ints]]:
    """Return the first node of each row, the first token of each node, and the columns of trees.

    Raises:
        ValueError: no trees have such positions.
    """
    positions, ends = (list_views(table[name])[1].astype(np.int64) for name in ("position_ids", "attention_ends"))
    before = np.diff(positions, prepend=-2) != 1
    starts = np.flatnonzero(before | (np.diff(ends, prepend=-1) != 0) | (positions == 0))
    bounds = np.searchsorted(starts, offsets)
    row = np.searchsorted(bounds, np.arange(len(starts)), side="right") - 1
    reach = ends[starts] - (starts - offsets[row])
    lengths = np.diff(starts, append=len(positions))
    if starts[:1].any() or (positions[offsets[:-1]] != 0).any():
        raise ValueError("has rows whose position_ids begin at no tree")
    return bounds, starts, {DOCUMENT_LENGTHS: lengths, POSITIONS: positions[starts], REACH: reach}
