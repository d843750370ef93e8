"""Documents: a chunk's rows of tokens as flat arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import FlatSpans
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import Ints, list_parts, offsets_of, sides
from tokenloom.resources.tables.sequence_schema import PER_TOKEN


def row_lengths(table: pa.Table) -> Ints:
    """Return int64 [rows]: the number of tokens of each row of a chunk; for pairs, of the longer side."""
    lengths = [np.diff(list_parts(side["input_ids"])[0]) for side in sides(table).values()]
    return np.max(lengths, axis=0)


@dataclass(frozen=True)
class Documents:
    """Rows of tokens, flat.

    Args:
        ids: uint16 or uint32 [tokens].
        weights: float32 [tokens], training weights; 0 means not trained.
        lengths: int64 [documents].
        rows: int32 [documents], the raw row of each document.
        values: float32 [tokens] each, other numbers per token, by name.
        origin: int64 [tokens], the place of each token among the chunk's tokens; None: the documents are the chunk.
    """

    ids: np.ndarray
    weights: np.ndarray
    lengths: Ints
    rows: np.ndarray
    origin: Ints | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pa.Table, spans: FlatSpans) -> Documents:
        """Return the rows of a chunk of tokens; `spans` are its spans."""
        offsets, ids = list_parts(table["input_ids"])
        weights = np.repeat(spans.weight, spans.end - spans.start)
        names = (name for name in table.column_names if name.startswith(PER_TOKEN))
        values = {name: list_parts(table[name])[1].to_numpy() for name in names}
        return cls(ids.to_numpy(), weights, np.diff(offsets), table[ROW].to_numpy(), values=values)

    def are_trained(self) -> np.ndarray:
        """Return bool [documents]: whether the document has a trained token."""
        trained, nonempty = np.zeros(len(self.lengths), bool), self.lengths > 0
        if nonempty.any():
            trained[nonempty] = np.maximum.reduceat(self.weights, offsets_of(self.lengths)[:-1][nonempty]) > 0
        return trained

    def select(self, documents: np.ndarray) -> Documents:
        """Return the documents for which the flags, bool [documents], are true."""
        if documents.all():
            return self
        kept = np.flatnonzero(np.repeat(documents, self.lengths))
        return self.take(kept, self.lengths[documents], self.rows[documents])

    def take(self, index: Ints, lengths: Ints, rows: np.ndarray) -> Documents:
        """Return new documents of the tokens at `index`, int64 [tokens], with these lengths and raw rows."""
        origin = index if self.origin is None else self.origin[index]
        values = {name: numbers[index] for name, numbers in self.values.items()}
        return Documents(self.ids[index], self.weights[index], lengths, rows, origin, values)
