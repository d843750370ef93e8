"""The flat values of many memory maps, addressed as one array, so that rows of many chunks are gathered at once.

No address is read that does not lie within a buffer that is held.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.tables.ragged import Ints, flat_numbers, one_array, ranges

_FIRST = 64
"""The lowest address that counts: NumPy takes 0 for none."""

_PLACES, _WIDEST = 1 << 48, 1 << 13
"""How many bytes a view of memory begins at, and numbers from each on: NumPy counts their bytes in 63 bits."""

_VIEWS = 1024
"""Views of different widths that are kept."""


class _Memory:
    """This process's memory, as NumPy is shown it: bytes that are not written to."""

    __array_interface__: ClassVar[dict[str, Any]] = {
        "data": (_FIRST, True),
        "shape": (1 << 56,),
        "typestr": "|u1",
        "version": 3,
    }


_MEMORY = np.asarray(_Memory())


class FlatValues:
    """Numbers of one dtype in all chunks. A place is where in memory a number stands, counted in numbers.

    Args:
        dtype: of the numbers; a chunk that has others is converted.
        chunks: how many there are.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self.dtype = np.dtype(dtype)
        self._memory = _MEMORY.view(self.dtype)
        self._begins, self._sizes = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        self._held: dict[int, npt.NDArray[Any]] = {}
        self._views: dict[int, npt.NDArray[Any]] = {}

    def hold(self, chunk: int, values: npt.NDArray[Any]) -> None:
        """Take the numbers of a chunk, and keep them alive."""
        values = np.require(values, self.dtype, ["C", "ALIGNED"])
        self._held[chunk], self._sizes[chunk] = values, len(values)
        self._begins[chunk] = (values.ctypes.data - _FIRST) // values.itemsize

    def held(self, chunk: int) -> npt.NDArray[Any]:
        """The numbers of a chunk."""
        return self._held[chunk]

    def places(self, chunks: Ints, positions: Ints) -> Ints:
        """Places of the numbers at positions that are counted within chunks; both int64, of one shape."""
        return self._begins[chunks] + positions

    def reach(self, chunks: Ints, positions: Ints) -> Ints:
        """How many numbers of its chunk stand from each position on."""
        return self._sizes[chunks] - positions

    def at(self, places: Ints) -> npt.NDArray[Any]:
        """The numbers at places."""
        return self._memory[places]

    def lists(self, places: Ints, lengths: Ints) -> npt.NDArray[Any]:
        """So many numbers from each place on, one list after the other."""
        return self._memory[ranges(places, lengths)]

    def windows(self, places: Ints, width: int) -> npt.NDArray[Any]:
        """[places, width]: the numbers from each place on."""
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


class RaggedLists:
    """Lists of numbers of one dtype in all chunks.

    Attributes:
        values: what the lists hold, one after the other.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self.values, self._offsets = FlatValues(dtype, chunks), FlatValues(np.int32, chunks)

    def hold(self, chunk: int, column: pa.Array | pa.ChunkedArray) -> None:
        """Take the lists of a chunk.

        Raises:
            StoreError: one reaches beyond its chunk.
        """
        offsets, values = _parts(column)
        if offsets[0] or offsets[-1] > len(values) or (np.diff(offsets) < 0).any():
            raise StoreError("a row reaches beyond its chunk: the object is damaged; `tokenloom verify` names it")
        self._offsets.hold(chunk, offsets)
        self.values.hold(chunk, values)

    def rows(self, chunks: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """int64 [rows]: where the lists of rows begin among the values of their chunks, and their lengths."""
        begins, ends = self._offsets.windows(self._offsets.places(chunks, rows), 2).T.astype(np.int64)
        return begins, ends - begins


def flat_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """What the lists of a column hold, one after the other."""
    return _parts(column)[1]


def _parts(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Offsets that begin at 0, and values, both without a copy where the column is not a slice."""
    array = one_array(column)
    offsets = flat_numbers(array.offsets) if len(array) else np.zeros(1, np.int32)
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets - np.int32(begin) if begin else offsets, flat_numbers(array.values.slice(begin, end - begin))
