"""Where the samples of a batch come from: dataset, split, and the raw file and row of each document."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenloom.resources.store import ManifestChunk
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.tables.ragged import offsets_of


@dataclass(frozen=True)
class TracedRow:
    """One sample of a batch.

    Args:
        dataset, split: what it was read from.
        row: its number in the split.
        places: where the raw row of each of its documents stands, such as `train.jsonl:17`.
        object: digest of the object that holds it.
    """

    dataset: str
    split: str
    row: int
    places: tuple[str, ...]
    object: str


def traced(objects: ObjectStore, chunks: tuple[ManifestChunk, ...], dataset: str, row: int) -> TracedRow:
    """Look one row of a split up; opens only the chunk that holds it.

    Raises:
        IndexError: there is no such row.
    """
    first = offsets_of(np.array([chunk.table_rows for chunk in chunks], np.int64))
    if not 0 <= row < first[-1]:
        raise IndexError(f"row {row} of {first[-1]}")
    number = int(np.searchsorted(first, row, side="right")) - 1
    chunk = chunks[number]
    table: pa.Table = objects.get(chunk.output)
    documents = table["rows"][row - int(first[number])].as_py()
    return TracedRow(dataset, chunk.split, row, tuple(map(chunk.place, documents)), chunk.output)
