"""The flat values of many memory maps, addressed as one array, so that rows of many chunks are gathered at once.

No address is read that does not lie within a buffer that is held.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from tokenloom.resources.ragged import Ints, one_array

_FIRST = 64
"""The lowest address that counts: NumPy takes 0 for none."""


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
        self._begins, self._ends = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        self._held: dict[int, npt.NDArray[Any]] = {}

    def hold(self, chunk: int, values: npt.NDArray[Any]) -> None:
        """Take the numbers of a chunk, and keep them alive."""
        values = np.require(values, self._dtype, ["C", "ALIGNED"])
        begin = (values.ctypes.data - _FIRST) // values.itemsize
        self._held[chunk], self._begins[chunk], self._ends[chunk] = values, begin, begin + len(values)

    def at(self, chunks: Ints, positions: Ints) -> npt.NDArray[Any]:
        """The numbers at positions that are counted within chunks; both int64, of one shape."""
        return self._memory[self._begins[chunks] + positions]

    def windows(self, chunks: Ints, positions: Ints, width: int) -> npt.NDArray[Any] | None:
        """[rows, width]: the numbers from each position on, whatever they belong to; None where some lie beyond a
        chunk."""
        begins = self._begins[chunks]
        places = begins + positions
        if (places < begins).any() or (places + width > self._ends[chunks]).any():
            return None
        shape, step = (len(self._memory) - width, width), self._dtype.itemsize
        return as_strided(self._memory, shape, (step, step), writeable=False)[places]


class RaggedLists:
    """Lists of numbers of one dtype in all chunks.

    Attributes:
        values: what the lists hold, one after the other.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self.values, self._offsets = FlatValues(dtype, chunks), FlatValues(np.int32, chunks)

    def hold(self, chunk: int, column: pa.Array | pa.ChunkedArray) -> None:
        """Take the lists of a chunk."""
        offsets, values = _parts(column)
        self._offsets.hold(chunk, offsets)
        self.values.hold(chunk, values)

    def rows(self, chunks: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """int64 [rows]: where the lists of rows begin among the values of their chunks, and their lengths."""
        begins = self._offsets.at(chunks, rows).astype(np.int64)
        return begins, self._offsets.at(chunks, rows + 1) - begins


def flat_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """What the lists of a column hold, one after the other."""
    return _parts(column)[1]


def _parts(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Offsets that begin at 0, and values, both without a copy where the column is not a slice."""
    array = one_array(column)
    offsets = array.offsets.to_numpy() if len(array) else np.zeros(1, np.int32)
    begin, end = int(offsets[0]), int(offsets[-1])
    return offsets - np.int32(begin) if begin else offsets, array.values.slice(begin, end - begin).to_numpy()
