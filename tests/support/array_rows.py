"""Datasets to load as arrays, the rows of batches, and tokenizers that know only `encode`: for tests of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from support.stored_sequences import write_numbered
from tokenloom.loaders import ArrayDataLoader

Row = tuple[list[int], list[int]]
"""input_ids and labels of a row."""

LONGEST = 12


def write_datasets(store: Path) -> dict[str, list[Row]]:
    """Datasets of three chunks in the store, and the rows of each; a token that 3 divides is not trained, nor the first
    of a document of a packed row."""
    found = {}
    for name, packed in (("plain", False), ("packed", True)):
        documents = write_numbered(store, name, [20, 1, 16], LONGEST, packed)
        found[name] = [
            (
                [token for document in row for token in document],
                [
                    token if token % 3 and not (packed and at == 0) else -100
                    for document in row
                    for at, token in enumerate(document)
                ],
            )
            for row in documents
        ]
    return found


def loader(store: Path, name: Any = "plain", batch_size: int | None = 4, **arguments: Any) -> ArrayDataLoader:
    return ArrayDataLoader({"cache_dir": store}, None, name, batch_size, **arguments)


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
