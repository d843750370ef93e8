"""Checks a memory-mapped object: its structure when it is opened, and its bytes against its digests, block by block,
each when it is first read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import DamagedObjectError, StoreError, StoreUnavailableError
from tokenloom.resources.digest import BLOCK_DIGEST_BYTES, BLOCK_SIZES, block_digests
from tokenloom.resources.store.manifest_chunks import ManifestChunk
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.tables.loaded_chunk import check_mapped
from tokenloom.resources.tables.ragged import Ints, flat_numbers, one_array
from tokenloom.resources.tables.sequence_schema import ID_TYPES, OPTIONAL, REQUIRED, TRAINED, WEIGHTS
from tokenloom.resources.tables.untrusted_table import read_table

_LISTS = (*ID_TYPES, *REQUIRED[TRAINED], *OPTIONAL[WEIGHTS])
_LENGTHS = (pa.uint16(), pa.uint32())


class MappedObject:
    """A memory-mapped, uncompressed object of one record batch.

    Opening validates the whole table, because Arrow's and NumPy's functions can crash on damaged or crafted tables.
    Blocks with only values of `deferred` columns are checked against their digests by `touch`, all others on opening.

    Args:
        objects: the store's objects.
        chunk: the manifest's entry for the object.
        dataset: dataset name for error messages.
        check: raises a ValueError if the table is not what it should be; it must not read values of `deferred` columns.
        deferred: columns of lists or lengths whose flat values are checked by `touch`.
        verify: False: compare no digests.

    Attributes:
        table: the record batch, as views of the memory map.
        unchecked: number of blocks not yet checked.

    Raises:
        StoreError: the object is missing, damaged, or not what `check` expects.
    """

    def __init__(
        self,
        objects: ObjectStore,
        chunk: ManifestChunk,
        dataset: str,
        check: Callable[[pa.Table], None],
        deferred: Collection[str] = (),
        verify: bool = True,
    ):
        self._digest, self._dataset = chunk.output, dataset
        self._expected = bytes.fromhex(chunk.blocks)
        self._data = self._map(objects, chunk.bytes)
        counts = {size: -(-chunk.bytes // size) for size in BLOCK_SIZES}
        fits = [size for size, count in counts.items() if len(self._expected) == count * BLOCK_DIGEST_BYTES]
        if verify and not fits:
            raise self._fault("has no block digests")
        self._block_size = fits[0] if fits else BLOCK_SIZES[0]
        blocks = counts[self._block_size]
        self._checked = np.full(blocks, not verify)
        self.unchecked = blocks if verify else 0
        try:
            self.table = read_table(self._data)
            if verify:
                self._check(np.flatnonzero(~self._holding_values_alone(deferred)))
            check(self.table)
            if self.table.num_rows != chunk.table_rows:
                raise ValueError(f"has {self.table.num_rows:,} rows, but its manifest lists {chunk.table_rows:,}")
        except ValueError as error:
            self._check(np.flatnonzero(~self._checked))  # damaged bytes explain it
            raise self._fault(f"is damaged: {error}") from error

    def touch(self, values: Sequence[npt.NDArray[np.generic]], begins: Ints, ends: Ints) -> None:
        """Check the blocks with items [begin, end) of each of `values`, which are views of `table`.

        Raises:
            StoreError: a block is damaged; raised again each time the block is touched.
        """
        filled = ends > begins
        begins, ends = begins[filled], ends[filled]
        change = np.zeros(len(self._checked) + 1, np.int64)
        for view in values:
            first, end = self._place(view) + begins * view.itemsize, self._place(view) + ends * view.itemsize
            change += np.bincount(first // self._block_size, minlength=len(change))
            change -= np.bincount((end - 1) // self._block_size + 1, minlength=len(change))
        self._check(np.flatnonzero((np.cumsum(change[:-1]) > 0) & ~self._checked))

    def _map(self, objects: ObjectStore, size: int) -> pa.Buffer:
        try:
            data = objects.mapped(self._digest)
        except StoreUnavailableError:
            raise
        except DamagedObjectError:
            raise self._fault("is damaged") from None
        except StoreError:
            raise self._fault("is missing") from None
        if data.size != size:
            raise self._fault(f"is damaged: expected {size:,} bytes, found {data.size:,}")
        return data

    def _holding_values_alone(self, deferred: Collection[str]) -> npt.NDArray[np.bool_]:
        """Return which blocks hold only flat values of one of the columns, bool [blocks]."""
        alone = np.zeros(len(self._checked), bool)
        for name in {*deferred} & {*self.table.column_names}:
            array = one_array(self.table[name])
            flat = array.values if array.type in _LISTS else array
            if array.type not in (*_LISTS, *_LENGTHS) or flat.null_count:
                raise ValueError(f"has nulls, or values of type {array.type}, in column {name}")
            values = flat_numbers(flat)
            check_mapped(values, self._data)
            begin = self._place(values)
            if len(values):
                alone[-(-begin // self._block_size) : (begin + values.nbytes) // self._block_size] = True
        alone[:1] = alone[-1:] = False  # they hold the metadata, which states the places
        return alone

    def _place(self, view: npt.NDArray[np.generic]) -> int:
        return view.ctypes.data - self._data.address

    def _check(self, blocks: Ints) -> None:
        content = memoryview(self._data)
        for block in blocks.tolist():
            digest = block_digests(content[block * self._block_size : (block + 1) * self._block_size], self._block_size)
            if digest != self._expected[block * BLOCK_DIGEST_BYTES : (block + 1) * BLOCK_DIGEST_BYTES]:
                raise self._fault(f"is damaged in block {block}")
            self._checked[block] = True
        self.unchecked = int(np.count_nonzero(~self._checked))

    def _fault(self, problem: str) -> StoreError:
        return StoreError(
            f"dataset {self._dataset!r}: object {self._digest} {problem}; "
            f"run `tokenloom verify {self._dataset}`, then build it again"
        )
