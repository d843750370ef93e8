"""Values beside the tokens: kept columns of rows (`dataset.keep_columns`), and the number of tokens of each row.

A shuffled token budget needs single lengths from everywhere. They are gathered from memory maps. The block of each is
read and checked once; that one read of a block brings less into memory than faults of pages that are not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.reading.batch import Flags
from tokenloom.loaders.reading.memory import FlatValues, RaggedLists
from tokenloom.resources.digest import BLOCK_DIGEST_BYTES, LENGTHS_BLOCK, block_digests
from tokenloom.resources.tables.json_text import is_json, python_values
from tokenloom.resources.tables.ragged import Ints, offsets_of, one_array
from tokenloom.resources.tables.sequence_schema import RAW_ROW

MOST_FILES = 1 << 12
"""Files of lengths that are mapped at once. A build joins the lengths of about 1,024 chunks into each."""

_ROWS = 1 << 17
"""Rows looked up at once."""


@dataclass(frozen=True)
class LengthsFile:
    """The file of an object of lengths.

    Args:
        path: returns a local path of the file.
        begin: where the lengths begin in the file, in bytes.
        values: the lengths, as a view of a memory map; uint16 or uint32.
        digests: its `block_digests` with blocks of `LENGTHS_BLOCK`; empty: they are not checked.
        damaged: returns the error that reports what is wrong with it.
    """

    path: Callable[[], Path]
    begin: int
    values: npt.NDArray[Any]
    digests: bytes
    damaged: Callable[[str], StoreError]

    def check(self, blocks: list[int]) -> None:
        """Read blocks of the file and compare them with their digests.

        Raises:
            StoreError: a block is damaged.
        """
        if not self.digests:
            return
        content = np.empty(LENGTHS_BLOCK, np.uint8)
        with self.path().open("rb", buffering=0) as file:
            for number in blocks:
                file.seek(number * LENGTHS_BLOCK)
                size = file.readinto(content.data)
                expected = self.digests[number * BLOCK_DIGEST_BYTES : (number + 1) * BLOCK_DIGEST_BYTES]
                if block_digests(content[:size].data, LENGTHS_BLOCK) != expected:
                    raise self.damaged(f"is damaged in block {number}")


class RowLengths:
    """The number of tokens of each row. An object is opened when it is first needed, and a block is checked when it is
    first read.

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
        self._values = {size: FlatValues(f"u{size}", len(rows)) for size in (2, 4)}
        self._checked = np.zeros(self._first_block[-1], bool)
        self._lock = Lock()

    def of(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]; rows are numbered across all objects.

        Raises:
            StoreError: an object is missing or damaged.
        """
        at_once = _ROWS if len(self._begin) <= MOST_FILES else MOST_FILES
        with self._lock:  # threads can share a dataset
            parts = [self._some(rows[begin : begin + at_once]) for begin in range(0, len(rows), at_once)]
        lengths = np.concatenate([np.zeros(0, np.int64), *parts])
        if (most := lengths.max(initial=0)) > self._longest:
            raise StoreError(f"a row has {most:,} tokens, more than max_length {self._longest:,}; build it again")
        return lengths

    def _some(self, rows: Ints) -> Ints:
        numbers = self._first_row.searchsorted(rows, "right") - 1
        if (self._begin[numbers] < 0).any():
            self._open(np.unique(numbers))
        sizes, places = self._itemsize[numbers], rows - self._first_row[numbers]
        blocks = self._first_block[numbers] + (self._begin[numbers] + places * sizes) // LENGTHS_BLOCK
        if not (checked := self._checked[blocks]).all():
            self._check(np.unique(blocks[~checked]))
        lengths = np.empty(len(rows), np.int64)
        for size, values in self._values.items():
            if (own := sizes == size).any():
                lengths[own] = values.at(values.places(numbers[own], places[own]))
        return lengths

    def _open(self, numbers: Ints) -> None:
        """Map objects. If there would be more than MOST_FILES, the others are closed."""
        missing = numbers[self._begin[numbers] < 0]
        if len(self._files) + len(missing) > MOST_FILES:
            for number in self._files.keys() - {*numbers.tolist()}:
                self._begin[number] = -1
                self._values[self._files.pop(number).values.itemsize].release(number)
        for number in missing.tolist():
            file = self._load(number)
            end = file.begin + file.values.itemsize * int(self._first_row[number + 1] - self._first_row[number])
            if end > LENGTHS_BLOCK * (self._first_block[number + 1] - self._first_block[number]):
                raise file.damaged("is larger than its manifest states")
            self._values[file.values.itemsize].hold(number, file.values)
            self._files[number] = file
            self._begin[number], self._itemsize[number] = file.begin, file.values.itemsize

    def _check(self, blocks: Ints) -> None:
        numbers = self._first_block.searchsorted(blocks, "right") - 1
        for found in np.split(blocks, np.flatnonzero(np.diff(numbers)) + 1):
            number = int(self._first_block.searchsorted(found[0], "right")) - 1
            self._files[number].check((found - self._first_block[number]).tolist())
            self._checked[found] = True


Load = Callable[[int], pa.Table | None]
"""Opens the sidecar of a chunk, given its index; None if the chunk has none."""


class KeptColumns:
    """The kept columns of all chunks. A sidecar is opened when it is first read.

    Args:
        names: names of the columns.
        load: opens the sidecar of a chunk.
        chunks: number of chunks.
    """

    def __init__(self, names: Sequence[str], load: Load, chunks: int):
        self.names, self._load, self._chunks = tuple(names), load, chunks
        self._rows = RaggedLists(np.int32, chunks)
        self._sidecars: dict[int, pa.Table | None] = {}

    def hold(self, chunk: int, rows: pa.ChunkedArray) -> None:
        """Register the raw rows of a chunk's sequences."""
        self._rows.hold(chunk, rows)

    def release(self, chunk: int) -> None:
        """Drop what is held of a chunk."""
        self._rows.release(chunk)
        self._sidecars.pop(chunk, None)

    def sidecar(self, chunk: int) -> pa.Table | None:
        """Return the sidecar of a chunk, or None if it has none.

        Raises:
            StoreError: it is missing or damaged.
        """
        if chunk not in self._sidecars:
            self._sidecars[chunk] = self._load(chunk)
        return self._sidecars[chunk]

    def types(self) -> dict[str, pa.DataType | None]:
        """Return the type of each column; None if it is JSON, or not the same in all chunks. Opens all sidecars."""
        found: dict[str, set[pa.DataType]] = {name: set() for name in self.names}
        for sidecar in filter(None, map(self.sidecar, range(self._chunks))):
            for name in found.keys() & {*sidecar.column_names}:
                found[name].add(sidecar.schema.field(name).type)
        kinds = {name: [kind for kind in seen if not pa.types.is_null(kind)] for name, seen in found.items()}
        return {name: seen[0] if len(seen) == 1 and not is_json(seen[0]) else None for name, seen in kinds.items()}

    def values(self, chunks: Ints, local: Ints, real: Flags | None, packed: bool) -> dict[str, list[Any]]:
        """Return the values of rows, by column; None where a row has none, and for padding rows.

        Args:
            chunks, local: int64 [rows], the chunk of each row, and its index within the chunk.
            real: bool [rows], False for padding rows; None: all rows are real.
            packed: whether rows hold several documents; the value of a row is then a list with one item each.
        """
        first, counts = self._rows.rows(chunks, local)
        if real is not None:
            counts = counts * real
        rows = self._rows.values.lists(self._rows.values.places(chunks, first), counts)
        of_documents = self._of_documents(np.repeat(chunks, counts), rows)
        bounds = [*pairwise(offsets_of(counts).tolist())]
        if packed:
            return {name: [values[begin:end] for begin, end in bounds] for name, values in of_documents.items()}
        at = [begin if end > begin else -1 for begin, end in bounds]
        return {name: [*map([*values, None].__getitem__, at)] for name, values in of_documents.items()}

    def _of_documents(self, chunks: Ints, rows: np.ndarray) -> dict[str, list[Any]]:
        """Return the values of documents, by column, given the chunk and the raw row of each."""
        found: dict[str, list[Any]] = {name: [None] * len(rows) for name in self.names}
        for chunk in np.unique(chunks).tolist():
            if (sidecar := self.sidecar(chunk)) is None:
                continue
            places = np.flatnonzero(chunks == chunk)
            known = one_array(sidecar[RAW_ROW]).to_numpy()
            index = np.searchsorted(known, rows[places])
            if not np.array_equal(known[np.minimum(index, len(known) - 1)], rows[places]):
                raise StoreError("a sidecar lacks rows of its chunk; `tokenloom verify` names what is damaged")
            for name in {*self.names} & {*sidecar.column_names}:
                values = python_values(one_array(sidecar[name]).take(pa.array(index)))
                for place, value in zip(places.tolist(), values, strict=True):
                    found[name][place] = value
        return found
