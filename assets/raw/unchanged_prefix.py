"""Finds the chunks at the start of a changed file that are unchanged, by their digests alone.

The last build recorded the size of each chunk. While the bytes still have the digest of the recorded chunk, they are
neither searched for records nor hashed by row. The file is cut again from shortly before the first bytes that differ.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.assets.raw.cut import Candidates
from tokenloom.assets.raw.formats.record_boundaries import Finder, RecordBlock
from tokenloom.assets.stage.definition import ChunkSize, InputChunk
from tokenloom.resources.digest import digest_parts


@dataclass(frozen=True)
class KnownStretch:
    """The text between two cuts in the last build.

    Args:
        digest: its digest, or that of the first chunk made from it.
        size: in bytes.
        chunks: the chunks made from it: two with a validation split.
    """

    digest: str
    size: int
    chunks: Sequence[InputChunk]


@dataclass(frozen=True)
class Rest:
    """The rest of a file after its unchanged prefix.

    Args:
        text: in blocks; starts at a record.
        known: the number of unchanged stretches before it.
        size: their size in bytes.
        before: the candidates less than a reach before the text; None at the start of the file.
    """

    text: Iterator[bytes]
    known: int = 0
    size: int = 0
    before: Candidates | None = None


def unchanged_prefix(
    text: Iterator[bytes],
    known: Sequence[KnownStretch],
    digest: Callable[[str], str],
    finder: Callable[[], Finder],
    size: ChunkSize,
) -> Generator[InputChunk, None, Rest]:
    """Yield the unchanged chunks at the start of `text`, and return the rest of it.

    A chunk counts as unchanged only if enough bytes after it are unchanged for its end to stay where it is.

    Args:
        known: the stretches of the last build, in file order.
        digest: returns a stretch's digest, given the digest of its bytes.
        finder: returns a finder for records in text that starts at a record.
    """
    ends = np.cumsum([0, *(stretch.size for stretch in known)]).tolist()
    window, sure, near = _Window(text), 0, 0
    for index, stretch in enumerate(known):
        start, end = ends[index : index + 2]
        if not window.reaches(end) or digest(digest_parts(window.views(start, end))) != stretch.digest:
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
    before = Candidates.of(block.hashes, block.bounds, size).since(len(data), size.reach)
    return Rest(window.rest(ends[sure]), sure, ends[sure], before)


class _Window:
    """A sliding window over text: reads blocks on demand and releases those that are no longer needed."""

    def __init__(self, text: Iterator[bytes]):
        self._text, self._blocks, self._end = text, deque[tuple[int, bytes]](), 0

    def reaches(self, end: int) -> bool:
        """Read up to `end`; return whether the text has that many bytes."""
        while self._end < end and (block := next(self._text, None)) is not None:
            self._blocks.append((self._end, block))
            self._end += len(block)
        return self._end >= end

    def views(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes [start, end), in parts."""
        parts = (memoryview(block)[max(start - at, 0) : max(end - at, 0)] for at, block in self._blocks)
        return [part for part in parts if len(part)]

    def forget(self, start: int) -> None:
        """Release the blocks that end before `start`."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= start:
            self._blocks.popleft()

    def rest(self, start: int) -> Iterator[bytes]:
        """Return all text from `start` on."""
        return itertools.chain(map(bytes, self.views(start, self._end)), self._text)
