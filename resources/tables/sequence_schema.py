"""The columns of `sequences`: what the last stage writes and what loaders read.

A preference pair has every column but `rows` twice, prefixed with `chosen_` and `rejected_`.
"""

from __future__ import annotations

import pyarrow as pa

INPUT_IDS = "input_ids"
"""Token ids of one sequence: list of uint16, or of uint32 where the vocabulary has more than 2^16 ids."""

TRAINED = "trained"
"""list<uint8>, 1 per trained token, 0 per masked token."""

WEIGHTS = "weights"
"""list<float32>, the loss weight of each token; only in chunks with weights other than 0 and 1."""

ROWS = "rows"
"""list<int32>, the raw row of each document in the sequence, as its position within the raw chunk."""

DOCUMENT_LENGTHS = "document_lengths"
"""list<int32>, the number of tokens of each document in the sequence."""

LABEL = "label"
"""bool, KTO only: whether the completion is the desired one."""

TOKEN_COLUMNS = (INPUT_IDS, TRAINED, WEIGHTS)
"""Columns with one value per token: nearly all bytes of a chunk."""

ID_TYPES = (pa.list_(pa.uint16()), pa.list_(pa.uint32()))
"""Types of `input_ids`: the smallest unsigned one that the vocabulary fits."""

REQUIRED: dict[str, tuple[pa.DataType, ...]] = {
    INPUT_IDS: ID_TYPES,
    TRAINED: (pa.list_(pa.uint8()),),
    ROWS: (pa.list_(pa.int32()),),
    DOCUMENT_LENGTHS: (pa.list_(pa.int32()),),
}
"""Columns of every chunk, with the types allowed."""

OPTIONAL: dict[str, tuple[pa.DataType, ...]] = {WEIGHTS: (pa.list_(pa.float32()),), LABEL: (pa.bool_(),)}
"""Columns that a chunk can have in addition."""
