"""The kept columns of rows (`dataset.keep_columns`), read from the sidecars of chunks as Python values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.loaders.reading.address_space import RaggedLists
from tokenloom.loaders.reading.rectangles import Flags
from tokenloom.resources.tables.json_text import is_json, python_values
from tokenloom.resources.tables.ragged import Ints, offsets_of, one_array
from tokenloom.resources.tables.sequence_schema import RAW_ROW

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
