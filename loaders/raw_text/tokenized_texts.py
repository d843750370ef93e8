"""Rows of raw text as rows of tokens, tokenized when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset

from tokenloom.loaders.map_style.fetch import fetch
from tokenloom.loaders.raw_text.encoding import TextEncoder, encode_texts
from tokenloom.resources.tables.ragged import Ints

ROWS_AT_ONCE = 10_000


class TokenizedTexts(Dataset[dict[str, torch.Tensor]]):
    """The rows of a text dataset, tokenized when they are read.

    `dataset[i]` is row i: int64 [tokens] `input_ids` and `attention_mask`, at most `max_length` tokens.

    Args:
        dataset: a map-style dataset of texts, or of dicts with a `text`; other columns are not read.
        tokenizer: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding, and decides about special
            tokens.
        max_length: maximum number of tokens per row; None: no limit.
    """

    def __init__(self, dataset: Any, tokenizer: TextEncoder, max_length: int | None = None):
        self.dataset = dataset.select_columns(["text"]) if hasattr(dataset, "select_columns") else dataset
        self.tokenizer, self.max_length = tokenizer, max_length

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, torch.Tensor]]:
        texts = [_text(row) for row in fetch(self.dataset, rows)]
        encoded = map(torch.from_numpy, encode_texts(self.tokenizer, texts, self.max_length))
        return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in encoded]

    def nonblank_rows(self) -> Ints:
        """Return the rows whose text is not blank, int64; lines of plain text are often blank."""
        return np.flatnonzero(np.concatenate([np.zeros(0, bool), *map(_is_nonblank, self._columns())]))

    def _columns(self) -> Sequence[Any]:
        if hasattr(self.dataset, "with_format"):
            return [table["text"] for table in self.dataset.with_format("arrow").iter(ROWS_AT_ONCE)]
        return [pa.array([_text(row) for row in self.dataset], pa.large_string())]


def _text(row: Any) -> Any:
    return row["text"] if isinstance(row, Mapping) else row


def _is_nonblank(texts: Any) -> np.ndarray:
    import pyarrow.compute as pc  # slow to import, and needed only here

    return pc.fill_null(pc.match_substring_regex(texts, r"\S"), False).to_numpy(zero_copy_only=False)
