"""The document boundaries of packed rows."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.reading.address_space import RaggedLists
from tokenloom.loaders.reading.rectangles import Flags, Rectangles
from tokenloom.resources.tables.ragged import Ints, offsets_of

Wrapped = npt.NDArray[np.unsignedinteger[Any]]
"""Places modulo a power of 2 above every position: the difference of two places is exact if it is a position."""


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
        sizes = lengths.values.lists(lengths.values.places(chunks, first), counts).astype(np.int64)
        padded = np.flatnonzero(rows.blank)
        if len(padded):
            sizes = np.insert(sizes, offsets_of(counts)[padded + (not rows.left)], rows.blank[padded])
            counts[padded] += 1
        runs = offsets_of(counts)[rows.bounds]
        bounds, first_runs = offsets_of(sizes), runs[:-1]
        self._sizes, self._starts = sizes, bounds[:-1] - np.repeat(bounds[first_runs], np.diff(runs))
        batch_sizes = np.diff(bounds[runs])
        self._bounds = np.insert(self._starts, runs[1:], batch_sizes).astype(np.int32)
        self._longest = np.maximum.reduceat(sizes, first_runs).tolist()
        self._runs = [slice(*pair) for pair in pairwise(runs.tolist())]
        dtype = np.min_scalar_type(max(self._longest) - 1)
        self._wrapped = self._starts.astype(dtype)
        self._places = _places(1 << int(batch_sizes.max()).bit_length(), dtype.char)

    def starts(self, batch: int) -> Ints:
        """Return where the documents of a flattened batch begin, int64 [documents]."""
        return self._starts[self._runs[batch]]

    def cu_seqlens(self, batch: int) -> npt.NDArray[np.int32]:
        """Return where documents begin, followed by the size of the flattened batch, int32 [documents + 1]."""
        runs = self._runs[batch]
        return self._bounds[runs.start + batch : runs.stop + batch + 1].copy()

    def position_ids(self, batch: int, own: Flags | None, shape: tuple[int, ...]) -> Ints:
        """Return positions that restart at 0 in each document, int64 of a shape.

        Args:
            batch: its index.
            own: bool of that shape, False where the positions are 0; None: True everywhere.
            shape: rows and width of the batch.
        """
        runs = self._runs[batch]
        positions = self._wrapped[runs].repeat(self._sizes[runs])
        np.subtract(self._places[: len(positions)], positions, out=positions)
        if own is not None:
            positions *= own.view(np.uint8).reshape(-1)
        return positions.astype(np.int64).reshape(shape)

    def max_seqlen(self, batch: int) -> int:
        """Return the length of the longest document."""
        return self._longest[batch]


@lru_cache(maxsize=2)
def _places(size: int, dtype: str) -> Wrapped:
    """Return the cached places [0, size)."""
    return np.arange(size).astype(dtype)
