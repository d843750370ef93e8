"""Memory-mapped chunks: which stay mapped, how rows of many are gathered in one operation, how they are checked, and
how those of a bucket are opened.

Only addresses inside buffers that are kept alive here are read, for three reasons:

- `hold` takes only arrays, whose memory NumPy knows; lists are checked to be within their values.
- `rows` checks the bounds of every list that is gathered, also against offsets that changed since.
- Every gather is checked against all held buffers if TOKENLOOM_CHECK_BOUNDS is 1, as in the tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import DamagedObjectError, StoreError, StoreUnavailableError
from tokenloom.resources.digest import BLOCK_DIGEST_BYTES, BLOCK_SIZES, block_digests
from tokenloom.resources.store.manifest_chunks import ManifestChunk
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.tables.ragged import Ints, flat_numbers, list_views, offsets_of, one_array, ranges
from tokenloom.resources.tables.sequence_schema import (
    ID_TYPES,
    OPTIONAL,
    REQUIRED,
    TRAINED,
    WEIGHTS,
    check_mapped,
    read_table,
)

_FIRST = 64
"""Lowest address of the array: NumPy treats address 0 as a null pointer."""

_PLACES, _WIDEST = 1 << 48, 1 << 13
"""Size of a view of memory: start addresses, and values per start. NumPy limits their product to 63 bits."""

_CHECKED = os.environ.get("TOKENLOOM_CHECK_BOUNDS") == "1"

_VIEWS = 1024
"""Number of views of different widths that are kept."""


class _Memory:
    """This process's memory as a read-only array of bytes."""

    __array_interface__: ClassVar[dict[str, Any]] = {
        "data": (_FIRST, True),
        "shape": (1 << 56,),
        "typestr": "|u1",
        "version": 3,
    }


# one array over all addresses: rows of any chunks are one indexing operation, without a loop over chunks
_MEMORY = np.asarray(_Memory())


class FlatValues:
    """Values of one dtype in all chunks. A place is a memory address, counted in values.

    Args:
        dtype: dtype of the values; a chunk with another dtype is converted.
        chunks: number of chunks.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self.dtype = np.dtype(dtype)
        self._memory = _MEMORY.view(self.dtype)
        self._begins, self._sizes = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        self._held: dict[int, npt.NDArray[Any]] = {}
        self._views: dict[int, npt.NDArray[Any]] = {}

    def hold(self, chunk: int, values: npt.NDArray[Any]) -> None:
        """Register the values of a chunk and keep them alive."""
        # aligned: the address is then a whole number of values from the first one
        values = np.require(values, self.dtype, ["C", "ALIGNED"])
        self._held[chunk], self._sizes[chunk] = values, len(values)
        self._begins[chunk] = (values.ctypes.data - _FIRST) // values.itemsize

    def release(self, chunk: int) -> None:
        """Drop the values of a chunk, if they are held."""
        self._held.pop(chunk, None)

    def held(self, chunk: int) -> npt.NDArray[Any]:
        """Return the values of a chunk."""
        return self._held[chunk]

    def places(self, chunks: Ints, positions: Ints) -> Ints:
        """Return the places of values at positions within their chunks; all int64, of one shape."""
        return self._begins[chunks] + positions

    def reach(self, chunks: Ints, positions: Ints) -> Ints:
        """Return the number of values from each position to the end of its chunk."""
        return self._sizes[chunks] - positions

    def at(self, places: Ints) -> npt.NDArray[Any]:
        """Return the values at places."""
        if _CHECKED:
            self._check(places, 1)
        return self._memory[places]

    def lists(self, places: Ints, lengths: Ints) -> npt.NDArray[Any]:
        """Return the `lengths` values from each place on, concatenated."""
        if _CHECKED:
            self._check(places, lengths)
        return self._memory[ranges(places, lengths)]

    def windows(self, places: Ints, width: int) -> npt.NDArray[Any]:
        """Return the `width` values from each place on: [places, width]."""
        if _CHECKED:
            self._check(places, width)
        view = self._views.get(width)
        if view is not None:
            return view[places]
        if width > _WIDEST:
            # NumPy limits the product of a view's shape: wider windows are two halves
            half = width // 2
            return np.concatenate([self.windows(places, half), self.windows(places + half, width - half)], axis=1)
        if len(self._views) == _VIEWS:
            self._views.clear()
        step = self.dtype.itemsize
        # overlapping windows, one at each value: choosing rows of this view copies whole windows
        self._views[width] = view = np.ndarray((_PLACES // step, width), self.dtype, self._memory, 0, (step, step))
        return view[places]

    def _check(self, places: Ints, lengths: Ints | int) -> None:
        """Raise an IndexError unless all values from places on are within one held array."""
        held = np.array([*self._held], np.int64)
        held = held[np.argsort(self._begins[held], kind="stable")]
        begins, ends = self._begins[held], self._begins[held] + self._sizes[held]
        places = np.asarray(places, np.int64)
        at = begins.searchsorted(places, "right") - 1
        inside = (at >= 0) & (places + lengths <= ends[at])
        if not (inside | (np.asarray(lengths) == 0)).all():
            raise IndexError("values outside of all chunks")


class RaggedLists:
    """Lists of values of one dtype in all chunks.

    Attributes:
        values: the concatenated lists.
    """

    def __init__(self, dtype: npt.DTypeLike, chunks: int):
        self.values, self._offsets = FlatValues(dtype, chunks), FlatValues(np.int32, chunks)

    def hold(self, chunk: int, column: pa.Array | pa.ChunkedArray) -> None:
        """Register the lists of a chunk and keep them alive.

        Raises:
            StoreError: a list reaches beyond its chunk.
        """
        offsets, values = list_views(column)
        # gathers read addresses, not arrays: an offset too far would read other memory
        if offsets[0] or offsets[-1] > len(values) or (offsets[1:] < offsets[:-1]).any():
            raise StoreError("a row reaches beyond its chunk: an object is damaged; `tokenloom verify` names it")
        self._offsets.hold(chunk, offsets)
        self.values.hold(chunk, values)

    def release(self, chunk: int) -> None:
        """Drop the lists of a chunk, if they are held."""
        self._offsets.release(chunk)
        self.values.release(chunk)

    def rows(self, chunks: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Return where the lists of rows begin within their chunk's values, and their lengths: int64 [rows] each."""
        begins, ends = self._offsets.windows(self._offsets.places(chunks, rows), 2).T.astype(np.int64)
        lengths, reach = ends - begins, self.values.reach(chunks, ends)
        # a mapped file can be changed by others at any time
        if len(rows) and min(begins.min(), lengths.min(), reach.min()) < 0:  # the file changed after it was opened
            raise StoreError("a row reaches beyond its chunk: an object is damaged; `tokenloom verify` names it")
        return begins, lengths


def flat_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the concatenated lists of a column."""
    return list_views(column)[1]


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
        self._checked = np.full(counts[self._block_size], not verify)
        try:
            self.table = read_table(self._data)
            if verify:
                # first the blocks that say where everything is, before anything follows their offsets
                self._check(np.flatnonzero(~self._holding_values_alone(deferred)))
            check(self.table)
            if self.table.num_rows != chunk.table_rows:
                raise ValueError(f"has {self.table.num_rows:,} rows, but its manifest lists {chunk.table_rows:,}")
        except ValueError as error:
            self._check(np.flatnonzero(~self._checked))  # damaged bytes explain it
            raise self._fault(f"is damaged: {error}") from error

    def checked(self, values: Sequence[npt.NDArray[np.generic]]) -> bool:
        """Return whether all bytes of each of `values`, which are views of `table`, are checked."""
        spans = [(self._place(view), self._place(view) + view.nbytes) for view in values]
        return all(self._checked[begin // self._block_size : -(-end // self._block_size)].all() for begin, end in spans)

    def values_of(self, column: str) -> tuple[int, npt.NDArray[Any]]:
        """Return where the values of a column of numbers begin in the file, in bytes, and a view of them."""
        values = flat_numbers(one_array(self.table[column]))
        return self._place(values), values

    def touch(self, values: Sequence[npt.NDArray[np.generic]], begins: Ints, ends: Ints) -> None:
        """Check the blocks with items [begin, end) of each of `values`, which are views of `table`.

        Raises:
            StoreError: a block is damaged; raised again each time the block is touched.
        """
        filled = ends > begins
        begins, ends = begins[filled], ends[filled]  # an empty row would touch the block before it
        # +1 where a range of blocks begins and -1 after its end: the running sum is positive inside
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
                # whole blocks only: one that a value shares with metadata is checked on opening
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

    def _fault(self, problem: str) -> StoreError:
        return StoreError(
            f"dataset {self._dataset!r}: object {self._digest} {problem}; "
            f"run `tokenloom verify {self._dataset}`, then build it again"
        )


class Use:
    """Chunks that are in use."""

    def __init__(self, chunks: Ints):
        self.chunks = chunks


class MappedChunks:
    """Which chunks stay mapped: those in use, and the most recently used ones.

    A mapped file occupies the disk, also after the cache has evicted it. Not thread-safe.

    Args:
        sizes: int64 [chunks], bytes of each chunk; or 1 for each, to limit their number.
        limit: sum of the sizes of chunks that can be mapped.
    """

    def __init__(self, sizes: Ints, limit: int):
        self._sizes, self._limit = sizes, limit
        self._last_use = np.zeros(len(sizes), np.int64)
        self._mapped, self._clock = 0, 0
        self._uses = WeakSet[Use]()

    def use(self, chunks: Ints) -> Use:
        """Keep chunks mapped as long as the result lives, and count this as their last use."""
        use = Use(np.unique(chunks))
        self._clock += 1
        self._last_use[use.chunks] = self._clock
        self._uses.add(use)
        return use

    def add(self, chunk: int) -> None:
        """Count a chunk that was mapped."""
        self._mapped += int(self._sizes[chunk])

    def surplus(self, mapped: npt.NDArray[np.bool_]) -> list[int]:
        """Return the chunks to unmap: the least recently used ones beyond the limit, down to a little below it.

        Args:
            mapped: bool [chunks], the chunks that were added and not unmapped.
        """
        if self._mapped <= self._limit:
            return []
        free = mapped & (self._sizes > 0)
        for use in self._uses:
            free[use.chunks] = False
        # what a batch still uses stays: unmapping would pull its memory away
        oldest = np.flatnonzero(free)
        oldest = oldest[np.argsort(self._last_use[oldest], kind="stable")]
        after = self._mapped - np.cumsum(self._sizes[oldest])
        # a little below the limit, so that not every new chunk searches for one to unmap
        oldest = oldest[: 1 + int(np.count_nonzero(after > self._limit - self._limit // 16))]
        self._mapped -= int(self._sizes[oldest].sum())
        return oldest.tolist()


@dataclass(frozen=True)
class FarChunks:
    """What a reader needs to know of chunks that are not on this host.

    Args:
        sizes: int64 [chunks], the bytes of each chunk's objects; 0 if they are on this host.
        limit: the bytes that the cache can hold.
        download: downloads some chunks in parallel, given their indexes, unless they are cached or being downloaded.
    """

    sizes: Ints
    limit: int
    download: Callable[[Ints], None]

    @classmethod
    def joined(cls, parts: Sequence[FarChunks | None], counts: Sequence[int]) -> FarChunks | None:
        """Return the chunks of several datasets, `counts[i]` chunks in part i; None if all are on this host."""
        far = [part for part in parts if part is not None]
        if not far:
            return None
        first = offsets_of(np.array(counts))
        sizes = [
            np.zeros(count, np.int64) if part is None else part.sizes for part, count in zip(parts, counts, strict=True)
        ]

        def download(chunks: Ints) -> None:
            numbers = first.searchsorted(chunks, "right") - 1
            for number, part in enumerate(parts):
                of_part = numbers == number
                if part is not None and of_part.any():
                    part.download(chunks[of_part] - first[number])

        return cls(np.concatenate(sizes), far[0].limit, download)
