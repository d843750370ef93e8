"""The number of tokens of each row, read from memory-mapped objects that hold the lengths of many chunks each."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np
import numpy.typing as npt

from tokenloom.errors import StoreError
from tokenloom.loaders.reading.address_space import FlatValues
from tokenloom.loaders.reading.chunk import Chunk
from tokenloom.resources.digest import LENGTHS_BLOCK
from tokenloom.resources.tables.ragged import Ints, flat_numbers, offsets_of, one_array
from tokenloom.resources.tables.sequence_schema import LENGTH


class RowLengths:
    """The number of tokens of each row. An object is opened when it is first needed, and its bytes are checked when
    they are first read.

    Args:
        rows: number of rows of each object, int64 [objects].
        load: opens an object, given its index.
        longest: maximum number of tokens per row.
    """

    def __init__(self, rows: Ints, load: Callable[[int], Chunk], longest: int):
        dtype = np.dtype(np.uint16 if longest < 1 << 16 else np.uint32)
        self._first_row, self._load, self._longest = offsets_of(rows), load, longest
        self._values = FlatValues(dtype, len(rows))
        self._open: dict[int, Chunk] = {}
        self._rows_per_block = LENGTHS_BLOCK // dtype.itemsize
        self._first_block = offsets_of(-(-rows // self._rows_per_block))
        self._touched = np.zeros(self._first_block[-1], bool)
        self._lock = Lock()

    def of(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]; rows are numbered across all objects.

        Raises:
            StoreError: an object is missing or damaged.
        """
        numbers = self._first_row.searchsorted(rows, "right") - 1
        places = rows - self._first_row[numbers]
        blocks = self._first_block[numbers] + places // self._rows_per_block
        new = ~self._touched[blocks]
        if new.any():
            with self._lock:  # threads can share a dataset
                self._touch(np.unique(blocks[new]))
        lengths = self._values.at(self._values.places(numbers, places)).astype(np.int64)
        if (most := lengths.max(initial=0)) > self._longest:
            raise StoreError(f"a row has {most:,} tokens, more than max_length {self._longest:,}; build it again")
        return lengths

    def _touch(self, blocks: Ints) -> None:
        """Open the objects of blocks, and check the blocks' bytes."""
        numbers = self._first_block.searchsorted(blocks, "right") - 1
        for number in np.unique(numbers).tolist():
            values = self._held(number)
            begins = (blocks[numbers == number] - self._first_block[number]) * self._rows_per_block
            ends = np.minimum(begins + self._rows_per_block, len(values))
            self._open[number].touch([values], begins, ends)
        self._touched[blocks] = True

    def _held(self, number: int) -> npt.NDArray[np.generic]:
        if number not in self._open:
            opened = self._load(number)
            self._values.hold(number, flat_numbers(one_array(opened.table[LENGTH])))
            self._open[number] = opened
        return self._values.held(number)
