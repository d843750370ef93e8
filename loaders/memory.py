"""The flat values of many memory maps, addressed as one array, so that rows of many chunks are gathered at once.

No address is read that does not lie within a buffer that is held.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.ragged import Ints, flat_numbers, one_array, ranges

Flags = npt.NDArray[np.bool_]

_FIRST = 64
"""The lowest address that counts: NumPy takes 0 for none."""

_ROWS, WIDEST = 1 << 46, 1 << 13
"""How many places, and numbers from each on, a view of memory has: NumPy counts their bytes in 63 bits."""


_COLUMNS = np.arange(WIDEST)


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
    """Numbers of one dtype in all chunks.

    Args:
        dtype: of the numbers; a chunk that has others is converted.
        chunks: how many there are.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self._dtype = np.dtype(dtype)
        self._memory = _MEMORY.view(self._dtype)
        self._begins, self._sizes = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        self._held: dict[int, npt.NDArray[Any]] = {}
        self._view = self._windows(2)

    def hold(self, chunk: int, values: npt.NDArray[Any]) -> None:
        """Take the numbers of a chunk, and keep them alive."""
        values = np.require(values, self._dtype, ["C", "ALIGNED"])
        self._held[chunk], self._sizes[chunk] = values, len(values)
        self._begins[chunk] = (values.ctypes.data - _FIRST) // values.itemsize

    def at(self, chunks: Ints, positions: Ints) -> npt.NDArray[Any]:
        """The numbers at positions that are counted within chunks; both int64, of one shape."""
        return self._memory[self._begins[chunks] + positions]

    def held(self, chunk: int) -> npt.NDArray[Any]:
        """The numbers of a chunk."""
        return self._held[chunk]

    def lists(self, chunks: Ints, begins: Ints, lengths: Ints) -> npt.NDArray[Any]:
        """The numbers [begin, begin + length) of chunks, one list after the other."""
        return self.at(np.repeat(chunks, lengths), ranges(begins, lengths))

    def lie_within(self, chunks: Ints, first: Ints, width: int) -> bool:
        """Whether `width` numbers from each of these positions on are all of the same chunk."""
        room = (self._sizes[chunks] - first).tolist()
        return min(first.tolist(), default=0) >= 0 and min(room, default=width) >= width

    def windows(self, chunks: Ints, positions: Ints, width: int) -> npt.NDArray[Any]:
        """[rows, width]: the numbers from each position on, which `lie_within` their chunks."""
        view = self._view
        if view.shape[1] != width:
            self._view = view = self._windows(width)
        return view[self._begins[chunks] + positions]

    def _windows(self, width: int) -> npt.NDArray[Any]:
        step = self._dtype.itemsize
        return np.ndarray((_ROWS * 4 // step, width), self._dtype, self._memory, strides=(step, step))


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
        begins, ends = self._offsets.windows(chunks, rows, 2).T.astype(np.int64)
        return begins, ends - begins


class Rectangle:
    """Where the lists of some rows stand, as a rectangle as wide as the longest: the same for all columns whose lists
    are as long.

    `own` is bool [rows, width], which places of it are a row's own; None: all.

    Args:
        values: one of those columns.
        chunks, begins, lengths: int64 [rows].
        left: rows end at the right border; else they begin at the left one.
    """

    def __init__(self, values: FlatValues, chunks: Ints, begins: Ints, lengths: Ints, left: bool):
        listed = lengths.tolist()
        self.width = width = max(listed, default=0)
        self._chunks, self._begins, self._lengths = chunks, begins, lengths
        self._first = begins - (width - lengths) if left else begins
        self.own: Flags | None = None
        if min(listed, default=width) < width:
            column = _COLUMNS[:width] if width <= WIDEST else np.arange(width)
            self.own = column >= (width - lengths)[:, None] if left else column < lengths[:, None]
        narrow = width <= WIDEST
        self._whole = narrow and (self.own is None or values.lie_within(chunks, self._first, width))

    def take(self, values: FlatValues) -> npt.NDArray[Any]:
        """[rows, width] of a column's values; anything where they are no row's own."""
        if self._whole:
            return values.windows(self._chunks, self._first, self.width)
        flat = values.lists(self._chunks, self._begins, self._lengths)
        if self.own is None:
            return flat.reshape(len(self._lengths), self.width)
        found = np.zeros(self.own.shape, flat.dtype)
        found[self.own] = flat
        return found

    def flat(self, values: FlatValues) -> npt.NDArray[Any]:
        """A column's values, those of one row behind those of the other."""
        found = self.take(values)
        return found.reshape(-1) if self.own is None else found[self.own]


def flat_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """What the lists of a column hold, one after the other."""
    return _parts(column)[1]


def _parts(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Offsets that begin at 0, and values, both without a copy where the column is not a slice."""
    array = one_array(column)
    offsets = flat_numbers(array.offsets) if len(array) else np.zeros(1, np.int32)
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets - np.int32(begin) if begin else offsets, flat_numbers(array.values.slice(begin, end - begin))
