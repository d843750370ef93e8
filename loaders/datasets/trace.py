"""Where a row comes from: dataset, split, and the file and raw row of each of its documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenloom.resources.store.manifest_chunks import ManifestChunks
from tokenloom.resources.tables.ragged import offsets_of
from tokenloom.resources.tables.sequence_schema import MEDIA, ROWS


@dataclass(frozen=True)
class TracedRow:
    """The origin of one row of a batch.

    Args:
        dataset, split: the dataset and split that the row was read from.
        row: the row's number in the split.
        places: the raw row of each of its documents, such as `train.jsonl:17`.
        object: digest of the stored object that contains the row.
        images: digest of the bytes of each of its images.
    """

    dataset: str
    split: str
    row: int
    places: tuple[str, ...]
    object: str
    images: tuple[str, ...] = ()


def traced(load: Callable[[int], pa.Table], chunks: ManifestChunks, dataset: str, row: int) -> TracedRow:
    """Return the origin of one row of a split. Opens only the chunk that contains it, with `load`.

    Raises:
        IndexError: `row` is out of range.
        StoreError: the chunk is missing or damaged.
    """
    first = offsets_of(chunks.numbers("table_rows"))
    if not 0 <= row < first[-1]:
        raise IndexError(f"row {row} is out of range: the split has {first[-1]} rows")
    number = int(np.searchsorted(first, row, side="right")) - 1
    chunk = chunks[number]
    table = load(number).slice(row - int(first[number]), 1)
    documents = table[ROWS][0].as_py()
    images = [image[MEDIA] for image in table[MEDIA][0].as_py()] if MEDIA in table.column_names else []
    return TracedRow(dataset, chunk.split, row, tuple(map(chunk.place, documents)), chunk.output, tuple(images))
