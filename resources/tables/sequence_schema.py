"""The columns of `sequences`: what the last stage writes and what loaders read.

For preference pairs every column except `rows` exists twice, prefixed with `chosen_` and `rejected_`.
"""

from __future__ import annotations

import pyarrow as pa

INPUT_IDS = "input_ids"
"""Token ids of one sequence: list<uint16>, or list<uint32> if the vocabulary has more than 2^16 ids."""

TRAINED = "trained"
"""list<uint8>, 1 per trained token, 0 per masked token."""

WEIGHTS = "weights"
"""list<float32>, the loss weight of each token. Only in chunks that have weights other than 0 and 1."""

ROWS = "rows"
"""list<int32>, the raw row of each document in the sequence, as a position within the raw chunk."""

DOCUMENT_LENGTHS = "document_lengths"
"""list<int32>, the number of tokens of each document in the sequence."""

LABEL = "label"
"""bool, for KTO only: whether the completion is desirable."""

RAW_ROW = "_row"
"""int32, the raw row of each row of a sidecar, ascending."""

LENGTH = "length"
"""uint16 or uint32, the number of tokens of each sequence; for pairs, of the longer side. In a separate object."""


def length_type(longest: int) -> pa.DataType:
    """Return the type of the lengths of rows of at most `longest` tokens in one object for many chunks."""
    return pa.uint16() if longest < 1 << 16 else pa.uint32()


SEQUENCE, PAIR, LABELLED, PROMPT = KINDS = ("sequence", "pair", "labelled sequence", "prompt")
"""What a row can be. Prompts have no labels."""

TOKEN_COLUMNS = (INPUT_IDS, TRAINED, WEIGHTS)
"""Columns with one value per token, which make up nearly all bytes of a chunk."""

ID_TYPES = (pa.list_(pa.uint16()), pa.list_(pa.uint32()))
"""Types of `input_ids`: the smallest unsigned type that fits the vocabulary."""

REQUIRED: dict[str, tuple[pa.DataType, ...]] = {
    INPUT_IDS: ID_TYPES,
    TRAINED: (pa.list_(pa.uint8()),),
    ROWS: (pa.list_(pa.int32()),),
    DOCUMENT_LENGTHS: (pa.list_(pa.int32()),),
}
"""Columns of every chunk, with their allowed types."""

OPTIONAL: dict[str, tuple[pa.DataType, ...]] = {WEIGHTS: (pa.list_(pa.float32()),), LABEL: (pa.bool_(),)}
"""Columns that only some chunks have, with their allowed types."""
