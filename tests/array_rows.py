"""The rows of batches of arrays, and tokenizers that know only `encode`: for tests of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

Row = tuple[list[int], list[int]]
"""input_ids and labels of a row."""


def rows_of(batches: Iterable[dict[str, Any]]) -> Iterator[Row]:
    """The rows of batches; what is padding bears no label."""
    for batch in batches:
        ids, mask, labels = (np.asarray(batch[name]) for name in ("input_ids", "attention_mask", "labels"))
        assert ids.shape == mask.shape == labels.shape
        assert (labels[mask == 0] == -100).all()
        for row in range(len(ids)):
            if mask[row].any():
                yield ids[row][mask[row] == 1].tolist(), labels[row][mask[row] == 1].tolist()


class Ids:
    """A tokenizer that knows only `encode`: a code point is an id."""

    pad_token_id = 7

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class Dicts(Ids):
    def encode(self, text: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"input_ids": super().encode(text)}
