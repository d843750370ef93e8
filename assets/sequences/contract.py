"""The contract of `sequences`: what loaders read. Types come from `resources/tables/sequence_schema.py`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.contract import Contract, column
from tokenloom.resources.tables import sequence_schema
from tokenloom.resources.tables.ragged import list_parts, sum_rows


def _documents_fill(table: pa.Table) -> bool:
    ids, lengths = list_parts(table["input_ids"]), list_parts(table["document_lengths"])
    return bool((sum_rows(lengths[1].to_numpy(), lengths[0]) == np.diff(ids[0])).all())


def _trained_fits(table: pa.Table) -> bool:
    """Whether `trained` is 0 or 1 for every token, and `weights` positive exactly for trained tokens."""
    offsets, trained = list_parts(table["trained"])
    values = trained.to_numpy()
    if not np.array_equal(list_parts(table["input_ids"])[0], offsets) or (values > 1).any():
        return False
    if "weights" not in table.column_names:
        return True
    weight_offsets, weights = list_parts(table["weights"])
    return np.array_equal(weight_offsets, offsets) and bool(((weights.to_numpy() > 0) == values).all())


_DESCRIPTIONS = {
    sequence_schema.INPUT_IDS: "Token ids, in the smallest unsigned type that fits the vocabulary.",
    sequence_schema.TRAINED: "1 for every trained token, 0 for every masked token.",
    sequence_schema.ROWS: "The raw row of each document in the sequence, as its position within its raw chunk.",
    sequence_schema.DOCUMENT_LENGTHS: "Number of tokens of each document in the sequence.",
    sequence_schema.WEIGHTS: "Loss weight of each token; only in chunks with weights other than 0 and 1.",
    sequence_schema.LABEL: "KTO only: whether the answer is desired.",
}

CONTRACT = Contract(
    "One sequence: a row, or several rows packed.",
    {
        **{name: column(_DESCRIPTIONS[name], *types) for name, types in sequence_schema.REQUIRED.items()},
        **{
            name: column(_DESCRIPTIONS[name], *types, required=False)
            for name, types in sequence_schema.OPTIONAL.items()
        },
    },
    {"documents fill their sequence": _documents_fill, "trained marks every token": _trained_fits},
    pairs=True,
)
