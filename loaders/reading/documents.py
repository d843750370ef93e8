"""The document boundaries of packed rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.reading.address_space import RaggedLists
from tokenloom.loaders.reading.rectangles import Flags, Rectangles
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges


class Documents:
    """Where documents begin in each of several flattened batches; each run of padding counts as one document.

    Args:
        lengths: lengths of the documents in each row.
        chunks, local: int64 [rows], the chunk of each row and its index within the chunk.
        real: bool [rows], False for padding rows; None: all rows are real.
        rows: the padded rows.
    """

    def __init__(self, lengths: RaggedLists, chunks: Ints, local: Ints, real: Flags | None, rows: Rectangles):
        first, counts = lengths.rows(chunks, local)
        if real is not None:
            counts *= real
        padded, bounds = rows.blank > 0, rows.bounds
        runs = offsets_of(counts + padded)
        self._sizes = sizes = np.empty(runs[-1], np.int64)
        sizes[(runs[:-1] if rows.left else runs[1:] - 1)[padded]] = rows.blank[padded]
        documents = ranges(runs[:-1] + (padded & rows.left), counts)
        sizes[documents] = lengths.values.lists(lengths.values.places(chunks, first), counts)
        first_runs = runs[bounds]
        begins = offsets_of(np.diff(bounds) * rows.widths)[:-1]
        self._starts = (np.cumsum(sizes) - sizes - np.repeat(begins, np.diff(first_runs))).astype(np.int32)
        self._longest = np.maximum.reduceat(sizes, first_runs[:-1]).tolist()
        self._bounds = first_runs.tolist()

    def starts(self, batch: int) -> npt.NDArray[np.int32]:
        """Return where the documents of a flattened batch begin, int32 [documents]."""
        return self._starts[self._bounds[batch] : self._bounds[batch + 1]]

    def position_ids(self, batch: int, rows: int, width: int) -> Ints:
        """Return positions that restart at 0 in each document, int64 [rows, width]."""
        sizes = self._sizes[self._bounds[batch] : self._bounds[batch + 1]]
        within = np.repeat(self.starts(batch), sizes)
        return np.subtract(_counted(rows * width), within, out=within).astype(np.int64).reshape(rows, width)

    def cu_seqlens(self, batch: int, size: int) -> npt.NDArray[np.int32]:
        """Return where documents begin, followed by the size of the flattened batch, int32 [documents + 1]."""
        starts = self.starts(batch)
        bounds = np.empty(len(starts) + 1, np.int32)
        bounds[:-1], bounds[-1] = starts, size
        return bounds

    def max_seqlen(self, batch: int) -> int:
        """Return the length of the longest document."""
        return self._longest[batch]


@lru_cache(maxsize=4)
def _counted(size: int) -> npt.NDArray[np.int32]:
    return np.arange(size, dtype=np.int32)
