"""Chunks of built datasets: opened when a batch first needs them, their bytes checked when first touched."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.batch import SequenceChunk, SequenceColumns
from tokenloom.resources.ragged import Ints
from tokenloom.resources.sides import SIDES
from tokenloom.resources.store import ManifestChunk
from tokenloom.resources.store.mapped import MappedObject
from tokenloom.resources.store.objects import ObjectStore

DEFERRED = tuple(
    f"{side}{name}" for side in ("", *(f"{side}_" for side in SIDES)) for name in ("input_ids", "trained", "weights")
)
"""Columns whose values are checked when a batch touches them: nearly all bytes of a chunk."""


class StoredChunk:
    """A `SequenceChunk` of the store.

    Args:
        chunk: what the manifest says of it.
        dataset: named in errors.
        verify: check the chunk's bytes when they are first touched.
    """

    def __init__(self, objects: ObjectStore, chunk: ManifestChunk, dataset: str, verify: bool = True):
        self.rows, self.unchecked = chunk.table_rows, verify and chunk.table_rows > 0
        self._objects, self._chunk, self._dataset, self._verify = objects, chunk, dataset, verify

    def touch(self, rows: Ints) -> None:
        """Check what the batch of these rows will read.

        Raises:
            StoreError: the chunk is missing or damaged.
        """
        mapped = self._mapped
        for columns in self.sides.values():
            flat = [columns.ids, columns.trained, *([] if columns.weights is None else [columns.weights])]
            mapped.touch(flat, columns.offsets[rows], columns.offsets[rows + 1])
        self.unchecked = mapped.unchecked > 0

    @property
    def sides(self) -> Mapping[str, SequenceColumns]:
        return self._opened.sides

    @property
    def label(self) -> npt.NDArray[np.bool_] | None:
        return self._opened.label

    @cached_property
    def _mapped(self) -> MappedObject:
        return MappedObject(self._objects, self._chunk, self._dataset, DEFERRED, self._verify)

    @cached_property
    def _opened(self) -> SequenceChunk:
        return SequenceChunk(self._mapped.table)
