"""Rows of tokens as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.tokens.stage import token_weights
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, list_parts, offsets_of


def row_lengths(table: pa.Table) -> Ints:
    """int64 [rows]: the tokens of each row of a chunk of tokens, of the longer side of a pair."""
    lengths = [np.diff(list_parts(side["input_ids"])[0]) for side in sides(table).values()]
    return np.max(lengths, axis=0)


@dataclass(frozen=True)
class Documents:
    """ids [tokens], weights float32 [tokens], lengths int64 [documents] and raw rows int32 [documents]."""

    ids: np.ndarray
    weights: np.ndarray
    lengths: Ints
    rows: np.ndarray

    @classmethod
    def of(cls, table: pa.Table) -> Documents:
        """The rows of a chunk of tokens."""
        offsets, ids = list_parts(table["input_ids"])
        return cls(ids.to_numpy(), token_weights(table), np.diff(offsets), table[ROW].to_numpy())

    def are_trained(self) -> np.ndarray:
        """bool [documents]: whether any of their tokens is trained."""
        found, solid = np.zeros(len(self.lengths), bool), self.lengths > 0
        if solid.any():
            found[solid] = np.maximum.reduceat(self.weights, offsets_of(self.lengths)[:-1][solid]) > 0
        return found

    def select(self, documents: np.ndarray) -> Documents:
        """The documents where the flags bool [documents] hold."""
        if documents.all():
            return self
        kept = np.repeat(documents, self.lengths)
        return Documents(self.ids[kept], self.weights[kept], self.lengths[documents], self.rows[documents])

    def take(self, index: Ints, lengths: Ints, rows: np.ndarray) -> Documents:
        """Documents made of some tokens, int64 [tokens], of these lengths and rows."""
        return Documents(self.ids[index], self.weights[index], lengths, rows)
