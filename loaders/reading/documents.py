"""Where the documents of batches begin: positions, bounds, padding within documents, and which token of a tree sees
which.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.reading.batch import Flags, Rectangles
from tokenloom.loaders.reading.memory import FlatValues, RaggedLists
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, PADDING, POSITIONS, REACH

Wrapped = npt.NDArray[np.unsignedinteger[Any]]
"""Places modulo a power of 2 above every position: the difference of two places is exact if it is a position."""


class Documents:
    """Where documents begin in each of several flattened batches; each run of padding counts as one document.

    Args:
        lengths: lengths of the documents in each row.
        chunks, local: int64 [rows], the chunk of each row and its index within the chunk.
        real: bool [rows], False for padding rows; None: all rows are real.
        rows: the padded rows.
        of_documents: the columns of `SequenceColumns` with a number per document.
    """

    def __init__(
        self,
        lengths: RaggedLists,
        chunks: Ints,
        local: Ints,
        real: Flags | None,
        rows: Rectangles,
        of_documents: Mapping[str, FlatValues],
    ):
        first, counts = lengths.rows(chunks, local)
        if real is not None:
            counts *= real
        columns = {
            name: values.lists(values.places(chunks, first), counts).astype(np.int64)
            for name, values in {DOCUMENT_LENGTHS: lengths.values, **of_documents}.items()
        }
        padded = np.flatnonzero(rows.blank)
        if len(padded):
            blank = rows.blank[padded]
            # where to insert a document of padding: before or after the row's own, one further for each earlier
            runs = offsets_of(counts)[padded + (not rows.left)] + np.arange(len(padded))
            own = np.ones(len(columns[DOCUMENT_LENGTHS]) + len(runs), bool)
            own[runs] = False
            for name, column in columns.items():
                columns[name] = filled = np.empty(len(own), np.int64)
                filled[own], filled[runs] = column, 0 if name == POSITIONS else blank
            counts[padded] += 1
        sizes = columns[DOCUMENT_LENGTHS]
        self._own = sizes - columns[PADDING] if PADDING in columns else None
        runs = offsets_of(counts)[rows.bounds]
        bounds, first_runs = offsets_of(sizes), runs[:-1]
        self._sizes, self._starts = sizes, bounds[:-1] - np.repeat(bounds[first_runs], np.diff(runs))
        batch_sizes = np.diff(bounds[runs])
        # each batch ends with its size: cu_seqlens of any batch is one slice
        self._bounds = np.insert(self._starts, runs[1:], batch_sizes).astype(np.int32)
        self._longest = np.maximum.reduceat(sizes, first_runs).tolist()
        self._runs = [slice(*pair) for pair in pairwise(runs.tolist())]
        self._positions, highest = columns.get(POSITIONS), max(self._longest)
        if self._positions is not None:
            highest = int((self._positions + sizes).max())
            row = np.repeat(np.arange(len(counts)), counts)
            # reach is counted from the node, ends from the padded row
            begins = bounds[offsets_of(counts)[:-1]][row]  # of the row of each document
            self._ends = (bounds[:-1] - begins + columns[REACH]).astype(np.int32)
        # the smallest dtype: repeating starts token by token is bound by memory
        dtype = np.min_scalar_type(highest - 1)
        # unsigned: starts of later nodes minus their positions wrap around, and so does the difference again
        self._wrapped = (self._starts if self._positions is None else self._starts - self._positions).astype(dtype)
        self._places = _places(1 << int(batch_sizes.max()).bit_length(), dtype.char)

    def starts(self, batch: int) -> Ints:
        """Return where the documents, or trees, of a flattened batch begin, int64 [documents]."""
        runs = self._runs[batch]
        starts = self._starts[runs]
        return starts if self._positions is None else starts[self._positions[runs] == 0]

    def attention_ends(self, batch: int, blank: Flags | None, shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
        """Return, for each token, the place in its row of the first token after it that does not see it, int32 of a
        shape; a token of padding, where `blank` is True, is only seen by itself."""
        runs = self._runs[batch]
        ends = self._ends[runs].repeat(self._sizes[runs]).reshape(shape)
        if blank is not None:
            np.copyto(ends, np.arange(1, shape[1] + 1, dtype=np.int32), where=blank)
        return ends

    def cu_seqlens(self, batch: int) -> npt.NDArray[np.int32]:
        """Return where documents begin, followed by the size of the flattened batch, int32 [documents + 1]."""
        runs = self._runs[batch]
        return self._bounds[runs.start + batch : runs.stop + batch + 1].copy()

    def cu_seqlens_unpadded(self, batch: int) -> npt.NDArray[np.int32] | None:
        """Return the cumulated lengths of documents without padding, 0 for each run of row padding, int32
        [documents + 1]; None if documents have no padding."""
        return None if self._own is None else offsets_of(self._own[self._runs[batch]]).astype(np.int32)

    def without_padding(self, batch: int, own: Flags | None, shape: tuple[int, ...]) -> Flags | None:
        """Return bool of a shape, False in the padding of documents and where `own` is; None: True everywhere."""
        if self._own is None:
            return own
        runs = self._runs[batch]
        left = self._own[runs]
        flags = np.ones(shape, bool) if own is None else own.copy()
        flags.reshape(-1)[ranges(self._starts[runs] + left, self._sizes[runs] - left)] = False
        return flags

    def position_ids(self, batch: int, own: Flags | None, shape: tuple[int, ...]) -> Ints:
        """Return positions that restart at 0 in each document, or continue those of its text, int64 of a shape.

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
    return np.arange(size).astype(dtype)
