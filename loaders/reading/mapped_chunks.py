"""Which chunks stay memory-mapped while a dataset is read that can be larger than the disk, or than the number of maps
that a process can have."""

from __future__ import annotations

from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.ragged import Ints


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
        oldest = np.flatnonzero(free)
        oldest = oldest[np.argsort(self._last_use[oldest], kind="stable")]
        after = self._mapped - np.cumsum(self._sizes[oldest])
        oldest = oldest[: 1 + int(np.count_nonzero(after > self._limit - self._limit // 16))]
        self._mapped -= int(self._sizes[oldest].sum())
        return oldest.tolist()
