"""Skips files, and the starts of files, that have not changed since the last build and whose chunks are all stored.

The last build recorded the size of each chunk. While the bytes still have the digest of the recorded chunk, they are
neither searched for records nor hashed by row. The file is cut again from shortly before the first bytes that differ.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import numpy as np

from tokenloom.assets.raw.cut import Candidates
from tokenloom.assets.raw.file_groups import FileGroup
from tokenloom.assets.raw.formats.record_boundaries import Finder, RecordBlock
from tokenloom.assets.stage.definition import ChunkOutput, ChunkSize, InputChunk
from tokenloom.errors import SourceError
from tokenloom.resources.digest import digest_parts
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.store import Run
from tokenloom.resources.store.known_files import KnownChunk, KnownFiles, KnownGroup, SharedChunk, file_stamp


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
        # a chunk has at most `maximum` bytes, and rows up to a reach after its end decide whether it ends there
        while ends[sure] + size.maximum + size.reach <= end:
            yield from known[sure].chunks
            sure += 1
        # of the sure stretches only the last reach is needed: its candidates can rival those of the rest
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


FileReader = Callable[[Sequence[KnownChunk]], Iterator[InputChunk]]
"""Reads a file's chunks, given the known chunks that it started with in an earlier build."""


@dataclass(frozen=True)
class UnchangedFiles:
    """Skips reading files that have not changed, and parsing the unchanged start of files that have.

    Args:
        files: what earlier builds recorded about files.
        is_stored: whether the output of the chunk with a given digest is stored.
    """

    files: KnownFiles
    is_stored: Callable[[str], bool]

    def chunks(
        self, file: SourceFile, read: FileReader, again: FileReader, notes: dict[str, dict[str, str]]
    ) -> Iterator[InputChunk]:
        """Yield the chunks of a file; read it only if it changed or a chunk is not stored.

        Args:
            read: reads the file.
            again: reads it where a recorded chunk is loaded after all: by itself, also in a task.
            notes: what was detected in each file, by its name; this file's entry is added.
        """
        entry = self.files.find(file.path)
        if entry and any(chunk.split != file.split for chunk in entry.chunks[:1]):
            entry = None  # the file was in another split
        # the first chunk that is missing ends the prefix: reading continues from there
        stored = list(takewhile(lambda chunk: self.is_stored(chunk.digest), entry.chunks)) if entry else []
        if entry and entry.untouched and len(stored) == len(entry.chunks):
            if entry.found:
                notes[file.name] = entry.found
            yield from (known_chunk(chunk, file, again) for chunk in stored)
            return
        seen: list[KnownChunk] = []
        # taken before reading: a file that is written meanwhile has another stamp in the next build
        before = file_stamp(file.path)
        for chunk in read(stored):
            seen.append(KnownChunk(chunk.digest, chunk.split, chunk.runs[0].offset, chunk.unit, chunk.size))
            yield chunk
        if seen:  # reading a file without rows again is cheaper than an entry
            self.files.note(file.path, before, seen, notes.get(file.name, {}))

    def group_chunks(
        self,
        files: Sequence[SourceFile],
        start: int,
        group: Callable[[], FileGroup],
        read: Callable[[FileGroup], Iterator[InputChunk]],
        notes: dict[str, dict[str, str]],
    ) -> Generator[InputChunk, None, int]:
        """Yield the chunks of a group of small files, and return where it ends; read it only if a file changed.

        Args:
            start: the first file of the group.
            group: opens the group.
            notes: what was detected in each file, by its name; those of this group are added.
        """

        def following(count: int) -> list[tuple[str, str]]:
            return [(file.path, file.name) for file in files[start : start + count]]

        entry = self.files.find_group(following)
        same_split = entry and all(chunk.split == files[start].split for chunk in entry.chunks[:1])
        if entry and same_split and all(self.is_stored(chunk.digest) for chunk in entry.chunks):
            notes |= entry.found
            for chunk in entry.chunks:
                load = partial(_read_again, lambda _: read(group()), chunk.digest, chunk.runs[0].source)
                yield InputChunk(chunk.digest, chunk.split, chunk.runs, load, chunk.unit, size=chunk.size)
            return start + entry.files
        opened, seen = group(), list[SharedChunk]()
        for chunk in read(opened):
            seen.append(SharedChunk(chunk.digest, chunk.split, chunk.runs, chunk.unit, chunk.size))
            yield chunk
        end = opened.end
        detected = {file.name: notes[file.name] for file in files[start:end] if file.name in notes}
        group_read = KnownGroup(end - start, opened.closed, seen, detected)
        self.files.note_group(following(len(opened.stamps)), opened.stamps, group_read)
        return end


def known_chunk(chunk: KnownChunk, file: SourceFile, read: FileReader) -> InputChunk:
    """Return a chunk that an earlier build recorded; loading it reads the file again."""
    load = partial(_read_again, read, chunk.digest, file.name)
    runs = (Run(file.name, offset=chunk.offset),)
    return InputChunk(chunk.digest, chunk.split, runs, load, chunk.unit, size=chunk.size)


def _read_again(read: FileReader, digest: str, name: str) -> ChunkOutput:
    """Return the output of the chunk of a file that has the digest."""
    for chunk in read([]):
        if chunk.digest == digest:
            return chunk.load()
    raise SourceError(f"{name} changed during the build; build again")
