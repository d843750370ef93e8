"""The chunks at the begin of a changed file that are as they were, told by their digests alone.

What was known of the file says how many bytes each chunk had. As long as those bytes still have the digest of a chunk,
none of them is searched for records or hashed as rows: only from shortly before the first that differs is the file cut
anew.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.assets.raw.cut import Candidates
from tokenloom.assets.raw.formats.records import Finder, RecordBlock
from tokenloom.assets.stage.definition import ChunkSize, InputChunk
from tokenloom.resources.digest import digest_parts


@dataclass(frozen=True)
class KnownText:
    """A stretch of text between two cuts, as it was: its digest, its bytes, and the chunks made of it."""

    digest: str
    size: int
    chunks: Sequence[InputChunk]


@dataclass(frozen=True)
class Rest:
    """What is left of a file behind its known begin.

    Args:
        text: from the begin of a record.
        known: how many stretches come before.
        size: their bytes.
        before: the candidates that cutting must know of, or None at the file's begin.
    """

    text: Iterator[bytes]
    known: int = 0
    size: int = 0
    before: Candidates | None = None


def known_prefix(
    text: Iterator[bytes],
    known: Sequence[KnownText],
    digest: Callable[[str], str],
    finder: Callable[[], Finder],
    size: ChunkSize,
) -> Generator[InputChunk, None, Rest]:
    """Yields the chunks that `text` begins with as it did, and returns what follows them.

    They are certain when enough of what lies behind them is as it was for cutting to come to the same ends.

    Args:
        digest: a stretch's digest, from that of its bytes.
        finder: finds records in text that begins with one.
    """
    ends = np.cumsum([0, *(stretch.size for stretch in known)]).tolist()
    window, sure, near = _Window(text), 0, 0
    for place, stretch in enumerate(known):
        begin, end = ends[place : place + 2]
        if not window.reaches(end) or digest(digest_parts(window.views(begin, end))) != stretch.digest:
            break
        while ends[sure] + size.maximum + size.reach <= end:
            yield from known[sure].chunks
            sure += 1
        while near < sure and ends[near + 1] + size.reach <= ends[sure]:
            near += 1
        window.forget(ends[near])
    if not sure:
        return Rest(window.rest(0))
    data = np.frombuffer(b"".join(window.views(ends[near], ends[sure])), np.uint8)
    block = RecordBlock(data, finder().find(data, True))
    before = Candidates.of(block.hashes, block.bounds[1:], block.sizes, size).before(len(data), size.reach)
    return Rest(window.rest(ends[sure]), sure, ends[sure], before)


class _Window:
    """Text that is read as far as it is asked for, and forgotten as far as it is not."""

    def __init__(self, text: Iterator[bytes]):
        self._text, self._blocks, self._end = text, deque[tuple[int, bytes]](), 0

    def reaches(self, end: int) -> bool:
        """Whether there are so many bytes."""
        while self._end < end and (block := next(self._text, None)) is not None:
            self._blocks.append((self._end, block))
            self._end += len(block)
        return self._end >= end

    def views(self, begin: int, end: int) -> list[memoryview]:
        """The bytes from `begin` to `end`, in parts."""
        parts = (memoryview(block)[max(begin - at, 0) : max(end - at, 0)] for at, block in self._blocks)
        return [part for part in parts if len(part)]

    def forget(self, begin: int) -> None:
        """Let go of what lies before `begin`."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= begin:
            self._blocks.popleft()

    def rest(self, begin: int) -> Iterator[bytes]:
        """All that lies behind `begin`."""
        return itertools.chain(map(bytes, self.views(begin, self._end)), self._text)
