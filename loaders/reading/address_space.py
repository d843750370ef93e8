"""The process's memory as one array, so that rows of many memory-mapped chunks are gathered in one operation.

Only addresses inside buffers that are kept alive here are read, for three reasons:

- `hold` takes only arrays, whose memory NumPy knows; lists are checked to be within their values.
- `rows` checks the bounds of every list that is gathered, also against offsets that changed since.
- Every gather is checked against all held buffers if TOKENLOOM_CHECK_BOUNDS is 1, as in the tests.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.tables.ragged import Ints, list_views, ranges

_FIRST = 64
"""Lowest address of the array: NumPy treats address 0 as a null pointer."""

_PLACES, _WIDEST = 1 << 48, 1 << 13
"""Size of a view of memory: start addresses, and values per start. NumPy limits their product to 63 bits."""

_CHECKED = os.environ.get("TOKENLOOM_CHECK_BOUNDS") == "1"

_VIEWS = 1024
"""Number of views of different widths that are kept."""


class _Memory:
    """This process's memory as a read-only array of bytes."""

    __array_interface__: ClassVar[dict[str, Any]] = {
        "data": (_FIRST, True),
        "shape": (1 << 56,),
        "typestr": "|u1",
        "version": 3,
    }


_MEMORY = np.asarray(_Memory())


class FlatValues:
    """Values of one dtype in all chunks. A place is a memory address, counted in values.

    Args:
        dtype: dtype of the values; a chunk with another dtype is converted.
        chunks: number of chunks.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self.dtype = np.dtype(dtype)
        self._memory = _MEMORY.view(self.dtype)
        self._begins, self._sizes = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        self._held: dict[int, npt.NDArray[Any]] = {}
        self._views: dict[int, npt.NDArray[Any]] = {}

    def hold(self, chunk: int, values: npt.NDArray[Any]) -> None:
        """Register the values of a chunk and keep them alive."""
        values = np.require(values, self.dtype, ["C", "ALIGNED"])
        self._held[chunk], self._sizes[chunk] = values, len(values)
        self._begins[chunk] = (values.ctypes.data - _FIRST) // values.itemsize

    def release(self, chunk: int) -> None:
        """Drop the values of a chunk, if they are held."""
        self._held.pop(chunk, None)

    def held(self, chunk: int) -> npt.NDArray[Any]:
        """Return the values of a chunk."""
        return self._held[chunk]

    def places(self, chunks: Ints, positions: Ints) -> Ints:
        """Return the places of values at positions within their chunks; all int64, of one shape."""
        return self._begins[chunks] + positions

    def reach(self, chunks: Ints, positions: Ints) -> Ints:
        """Return the number of values from each position to the end of its chunk."""
        return self._sizes[chunks] - positions

    def at(self, places: Ints) -> npt.NDArray[Any]:
        """Return the values at places."""
        if _CHECKED:
            self._check(places, 1)
        return self._memory[places]

    def lists(self, places: Ints, lengths: Ints) -> npt.NDArray[Any]:
        """Return the `lengths` values from each place on, concatenated."""
        if _CHECKED:
            self._check(places, lengths)
        return self._memory[ranges(places, lengths)]

    def windows(self, places: Ints, width: int) -> npt.NDArray[Any]:
        """Return the `width` values from each place on: [places, width]."""
        if _CHECKED:
            self._check(places, width)
        view = self._views.get(width)
        if view is not None:
            return view[places]
        if width > _WIDEST:
            half = width // 2
            return np.concatenate([self.windows(places, half), self.windows(places + half, width - half)], axis=1)
        if len(self._views) == _VIEWS:
            self._views.clear()
        step = self.dtype.itemsize
        self._views[width] = view = np.ndarray((_PLACES // step, width), self.dtype, self._memory, 0, (step, step))
        return view[places]

    def _check(self, places: Ints, lengths: Ints | int) -> None:
        """Check that the values from places on are within one held array.

        Raises:
            IndexError: they are not.
        """
        held = np.array([*self._held], np.int64)
        held = held[np.argsort(self._begins[held], kind="stable")]
        begins, ends = self._begins[held], self._begins[held] + self._sizes[held]
        places = np.asarray(places, np.int64)
        at = begins.searchsorted(places, "right") - 1
        inside = (at >= 0) & (places + lengths <= ends[at])
        if not (inside | (np.asarray(lengths) == 0)).all():
            raise IndexError("values outside of all chunks")


class RaggedLists:
    """Lists of values of one dtype in all chunks.

    Attributes:
        values: the concatenated lists.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self.values, self._offsets = FlatValues(dtype, chunks), FlatValues(np.int32, chunks)

    def hold(self, chunk: int, column: pa.Array | pa.ChunkedArray) -> None:
        """Register the lists of a chunk and keep them alive.

        Raises:
            StoreError: a list reaches beyond its chunk.
        """
        offsets, values = list_views(column)
        if offsets[0] or offsets[-1] > len(values) or (offsets[1:] < offsets[:-1]).any():
            raise StoreError("a row reaches beyond its chunk: an object is damaged; `tokenloom verify` names it")
        self._offsets.hold(chunk, offsets)
        self.values.hold(chunk, values)

    def release(self, chunk: int) -> None:
        """Drop the lists of a chunk, if they are held."""
        self._offsets.release(chunk)
        self.values.release(chunk)

    def rows(self, chunks: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Return where the lists of rows begin within their chunk's values, and their lengths: int64 [rows] each."""
        begins, ends = self._offsets.windows(self._offsets.places(chunks, rows), 2).T.astype(np.int64)
        lengths, reach = ends - begins, self.values.reach(chunks, ends)
        if len(rows) and min(begins.min(), lengths.min(), reach.min()) < 0:  # the file changed after it was opened
            raise StoreError("a row reaches beyond its chunk: an object is damaged; `tokenloom verify` names it")
        return begins, lengths


def flat_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the concatenated lists of a column."""
    return list_views(column)[1]
