"""The contract of `sidecars`: the kept columns, and the position of each row."""

from __future__ import annotations

from tokenloom.assets.stage.contract import Contract, row_column
from tokenloom.assets.stage.rejects import ROW

CONTRACT = Contract(
    "One raw row. The other columns are those of `dataset.keep_columns`, with the types found in the chunk.",
    {ROW: row_column()},
    open=True,
)
