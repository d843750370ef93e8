"""The chunks of a dataset in a bucket, which readers download to the cache of this host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.resources.tables.ragged import Ints, offsets_of


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
