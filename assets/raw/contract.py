"""The contract of `raw`: the columns of the source, and the position of each row."""

from __future__ import annotations

from tokenloom.assets.stage.contract import Contract, row_column
from tokenloom.assets.stage.rejects import ROW

CONTRACT = Contract(
    "One row of the source. All other columns have the names and types found in the chunk.",
    {ROW: row_column()},
    open=True,
)
