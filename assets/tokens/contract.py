"""The contract of `tokens`: each row's token ids, and spans that cover them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import SPANS, spans_cover
from tokenloom.assets.stage.contract import Contract, column, row_column
from tokenloom.assets.stage.pairs import LABEL
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import list_parts
from tokenloom.resources.tables.sequence_schema import ID_TYPES


def _spans_cover_ids(table: pa.Table) -> bool:
    return spans_cover(table["spans"], np.diff(list_parts(table["input_ids"])[0]))


CONTRACT = Contract(
    "One tokenized row, not truncated and not padded.",
    {
        ROW: row_column(),
        "input_ids": column("Token ids, in the smallest unsigned type that fits the vocabulary.", *ID_TYPES),
        "spans": column("The spans of the text, in tokens; spans without a token are omitted.", SPANS),
        LABEL: column("KTO only: whether the answer is desired.", pa.bool_(), required=False),
    },
    {"spans partition the tokens": _spans_cover_ids},
    pairs=True,
)
