"""Checks the bytes of a memory-mapped object against its digests: block by block, each when it is first read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import DamagedObjectError, StoreError, StoreUnavailableError
from tokenloom.resources.digest import BLOCK_BYTES, BLOCK_DIGEST_BYTES, block_digests
from tokenloom.resources.store.manifest import ManifestChunk
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.tables.ragged import Ints, flat_numbers, one_array

_FRAME = 8
"""Bytes of the magic at the start of a file, and of the marker and length before each message."""

_TAIL = 10
"""Bytes of the footer's length and the magic at the end of a file."""


class MappedObject:
    """A memory-mapped, uncompressed object of one record batch.

    Blocks with only values of `deferred` columns are checked by `touch`. All others are checked on opening,
    before Arrow reads them, because its kernels can crash on damaged bytes.

    Args:
        objects: the store's objects.
        chunk: the manifest's entry for the object.
        dataset: dataset name for error messages.
        deferred: list columns whose flat values are checked by `touch`.
        verify: False: check only the file's size.

    Attributes:
        table: the record batch, as views of the memory map.
        unchecked: number of blocks not yet checked.

    Raises:
        StoreError: the object is missing or damaged.
    """

    def __init__(
        self,
        objects: ObjectStore,
        chunk: ManifestChunk,
        dataset: str,
        deferred: Collection[str] = (),
        verify: bool = True,
    ):
        self._digest, self._dataset = chunk.output, dataset
        self._expected = bytes.fromhex(chunk.blocks)
        self._data = self._map(objects, chunk.bytes)
        blocks = -(-chunk.bytes // BLOCK_BYTES)
        if verify and len(self._expected) != blocks * BLOCK_DIGEST_BYTES:
            raise self._fault("has no block digests")
        self._checked = np.full(blocks, not verify)
        self.unchecked = blocks if verify else 0
        if verify:
            self._check_metadata()
        try:
            self.table = pa.ipc.open_file(self._data).read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise self._fault(f"is damaged: {str(error).splitlines()[0]}") from error
        if verify:
            self._check(np.flatnonzero(~(self._checked | self._holding_values_alone(deferred))))

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
            change += np.bincount(first // BLOCK_BYTES, minlength=len(change))
            change -= np.bincount((end - 1) // BLOCK_BYTES + 1, minlength=len(change))
        self._check(np.flatnonzero((np.cumsum(change[:-1]) > 0) & ~self._checked))

    def _map(self, objects: ObjectStore, size: int) -> pa.Buffer:
        try:
            with pa.memory_map(str(objects.path(self._digest))) as source:
                data = source.read_buffer()
        except StoreUnavailableError:
            raise
        except DamagedObjectError:
            raise self._fault("is damaged") from None
        except StoreError:
            raise self._fault("is missing") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise self._fault(f"cannot be read: {str(error).splitlines()[0]}") from error
        if data.size != size:
            raise self._fault(f"is damaged: expected {size:,} bytes, found {data.size:,}")
        return data

    def _check_metadata(self) -> None:
        """Check the magic, the messages with the schema and the batch's layout, and the footer."""
        self._check_bytes(0, _FRAME)
        end = _FRAME
        for _ in ("schema", "batch"):
            self._check_bytes(end, end + _FRAME)
            begin, end = end, end + _FRAME + self._int32(end + 4)
            self._check_bytes(begin, end)
        end = self._data.size
        self._check_bytes(end - _TAIL, end)
        self._check_bytes(end - _TAIL - self._int32(end - _TAIL), end)

    def _int32(self, at: int) -> int:
        return int.from_bytes(memoryview(self._data)[at : at + 4], "little", signed=True)

    def _check_bytes(self, begin: int, end: int) -> None:
        blocks = np.arange(begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)
        self._check(blocks[~self._checked[blocks]])

    def _holding_values_alone(self, deferred: Collection[str]) -> npt.NDArray[np.bool_]:
        """Return which blocks hold only flat values of one of the columns, bool [blocks]."""
        alone = np.zeros(len(self._checked), bool)
        for name in deferred:
            if name in self.table.column_names:
                values = flat_numbers(one_array(self.table[name]).values)  # offsets are not checked yet
                begin = self._place(values)
                alone[-(-begin // BLOCK_BYTES) : (begin + values.nbytes) // BLOCK_BYTES] = True
        return alone

    def _place(self, view: npt.NDArray[np.generic]) -> int:
        return view.ctypes.data - self._data.address

    def _check(self, blocks: Ints) -> None:
        content = memoryview(self._data)
        for block in blocks.tolist():
            digest = block_digests(content[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
            if digest != self._expected[block * BLOCK_DIGEST_BYTES : (block + 1) * BLOCK_DIGEST_BYTES]:
                raise self._fault(f"is damaged in block {block}")
            self._checked[block] = True
        self.unchecked = int(np.count_nonzero(~self._checked))

    def _fault(self, problem: str) -> StoreError:
        return StoreError(
            f"dataset {self._dataset!r}: object {self._digest} {problem}; "
            f"run `tokenloom verify {self._dataset}`, then build it again"
        )
