"""The number of tokens of each row, read from objects that hold the lengths of many chunks each.

A window of a shuffled token budget needs single values from everywhere. They are read in small blocks of the files, of
which a limited number is kept: memory maps would bring much more into memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from tokenloom.errors import StoreError
from tokenloom.resources.digest import BLOCK_DIGEST_BYTES, LENGTHS_BLOCK, block_digests
from tokenloom.resources.tables.ragged import Ints, offsets_of

KEPT_BLOCKS = 1 << 13
"""Blocks kept in memory: 128 MiB."""

_ROWS = KEPT_BLOCKS // 2
"""Rows looked up at once."""


@dataclass(frozen=True)
class LengthsFile:
    """The file of an object of lengths.

    Args:
        path: returns a local path of the file.
        begin: where the lengths begin in the file, in bytes.
        itemsize: bytes per length, 2 or 4.
        digests: its `block_digests` with blocks of `LENGTHS_BLOCK`; empty: they are not checked.
        damaged: returns the error that reports what is wrong with it.
    """

    path: Callable[[], Path]
    begin: int
    itemsize: int
    digests: bytes
    damaged: Callable[[str], StoreError]

    def read(self, numbers: list[int], blocks: npt.NDArray[np.uint8]) -> None:
        """Read blocks of the file into rows of `blocks`.

        Raises:
            StoreError: a block is damaged.
        """
        with self.path().open("rb", buffering=0) as file:
            for number, block in zip(numbers, blocks, strict=True):
                file.seek(number * LENGTHS_BLOCK)
                size = file.readinto(block.data)
                expected = self.digests[number * BLOCK_DIGEST_BYTES : (number + 1) * BLOCK_DIGEST_BYTES]
                if expected and block_digests(block[:size].data, LENGTHS_BLOCK) != expected:
                    raise self.damaged(f"is damaged in block {number}")


class RowLengths:
    """The number of tokens of each row. An object is opened when it is first needed, and a block is checked when it is
    read.

    Args:
        rows: number of rows of each object, int64 [objects].
        sizes: bytes of each object, int64 [objects].
        load: opens an object, given its index.
        longest: maximum number of tokens per row.
    """

    def __init__(self, rows: Ints, sizes: Ints, load: Callable[[int], LengthsFile], longest: int):
        self._first_row, self._load, self._longest = offsets_of(rows), load, longest
        self._first_block = offsets_of(-(-sizes // LENGTHS_BLOCK))
        self._files: dict[int, LengthsFile] = {}
        self._begin, self._itemsize = np.full(len(rows), -1), np.zeros(len(rows), np.int64)
        self._slot = np.full(self._first_block[-1], -1, np.int32)  # of each block in `_kept`, -1 if it is not kept
        self._kept = np.empty((min(len(self._slot), KEPT_BLOCKS), LENGTHS_BLOCK), np.uint8)
        self._used, self._lock = 0, Lock()

    def of(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]; rows are numbered across all objects.

        Raises:
            StoreError: an object is missing or damaged.
        """
        with self._lock:  # threads can share a dataset
            parts = [self._some(rows[begin : begin + _ROWS]) for begin in range(0, len(rows), _ROWS)]
        lengths = np.concatenate([np.zeros(0, np.int64), *parts])
        if (most := lengths.max(initial=0)) > self._longest:
            raise StoreError(f"a row has {most:,} tokens, more than max_length {self._longest:,}; build it again")
        return lengths

    def _some(self, rows: Ints) -> Ints:
        numbers = self._first_row.searchsorted(rows, "right") - 1
        for number in np.unique(numbers[self._begin[numbers] < 0]).tolist():
            file = self._files[number] = self._load(number)
            end = file.begin + file.itemsize * (self._first_row[number + 1] - self._first_row[number])
            if end > LENGTHS_BLOCK * (self._first_block[number + 1] - self._first_block[number]):
                raise file.damaged("is larger than its manifest states")
            self._begin[number], self._itemsize[number] = file.begin, file.itemsize
        sizes = self._itemsize[numbers]
        places = self._begin[numbers] + (rows - self._first_row[numbers]) * sizes
        blocks = self._first_block[numbers] + places // LENGTHS_BLOCK
        self._read(np.unique(blocks))
        at = self._slot[blocks].astype(np.int64) * LENGTHS_BLOCK + places % LENGTHS_BLOCK
        lengths, short, flat = np.empty(len(rows), np.int64), sizes == 2, self._kept.reshape(-1)
        lengths[short] = flat.view(np.uint16)[at[short] // 2]
        lengths[~short] = flat.view(np.uint32)[at[~short] // 4]
        return lengths

    def _read(self, blocks: Ints) -> None:
        """Read blocks that are not kept. If there is no room for them, the kept ones are dropped."""
        missing = blocks[self._slot[blocks] < 0]
        if self._used + len(missing) > len(self._kept):
            self._slot[:], self._used = -1, 0
            missing = blocks
        numbers = self._first_block.searchsorted(missing, "right") - 1
        for number in np.unique(numbers).tolist():
            found = missing[numbers == number]
            slots = np.arange(self._used, self._used + len(found))
            self._files[number].read((found - self._first_block[number]).tolist(), self._kept[slots[0] : slots[-1] + 1])
            self._slot[found] = slots
            self._used += len(found)
