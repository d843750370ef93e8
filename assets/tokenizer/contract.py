"""The contract of `tokenizer`: the files of a tokenizer."""

from __future__ import annotations

import pyarrow as pa

from tokenloom.assets.stage.contract import Contract, column
from tokenloom.resources.tokenizers import CONFIG, TOKENIZER


def _has_tokenizer(table: pa.Table) -> bool:
    return {TOKENIZER, CONFIG} <= set(table["file"].to_pylist())


CONTRACT = Contract(
    "One file of the tokenizer.",
    {
        "file": column("Name of the file.", pa.string()),
        "content": column("Content of the file.", pa.binary()),
    },
    {"holds tokenizer.json and its config": _has_tokenizer},
)
