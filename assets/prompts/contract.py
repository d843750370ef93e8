"""The contract of `prompts`: each row's text, and spans that cover it."""

from __future__ import annotations

import pyarrow as pa

from tokenloom.assets.prompts.spans import SPANS, partition_text
from tokenloom.assets.stage.contract import Contract, column, row_column
from tokenloom.assets.stage.pairs import LABEL
from tokenloom.assets.stage.rejects import ROW

CONTRACT = Contract(
    "One rendered row, or with `turns: exact` one of its texts.",
    {
        ROW: row_column(),
        "text": column("The rendered text, with all control tokens.", pa.string()),
        "spans": column(
            "Spans that partition the text: start and end in bytes, role (its number in the manifest's facts), message "
            "or field (-1: neither), loss weight (0: masked), and whether the span is a control token.",
            SPANS,
        ),
        LABEL: column("KTO only: whether the answer is desired.", pa.bool_(), required=False),
    },
    {"spans partition the text": partition_text},
    pairs=True,
)
