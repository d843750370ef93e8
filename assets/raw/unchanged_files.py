"""Skips files that have not changed since the last build and whose chunks are all stored."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from tokenloom.assets.raw.file_groups import FileGroup
from tokenloom.assets.stage.definition import ChunkOutput, InputChunk
from tokenloom.errors import SourceError
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.store import Run
from tokenloom.resources.store.known_files import (
    KnownChunk,
    KnownFiles,
    KnownGroup,
    SharedChunk,
    file_stamp,
)

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

    def chunks(self, file: SourceFile, read: FileReader, notes: dict[str, dict[str, str]]) -> Iterator[InputChunk]:
        """Yield the chunks of a file; read it only if it changed or a chunk is not stored.

        Args:
            notes: what was detected in each file, by its name; this file's entry is added.
        """
        entry = self.files.find(file.path)
        if entry and any(chunk.split != file.split for chunk in entry.chunks[:1]):
            entry = None  # the file was in another split
        stored = list(takewhile(lambda chunk: self.is_stored(chunk.digest), entry.chunks)) if entry else []
        if entry and entry.untouched and len(stored) == len(entry.chunks):
            if entry.found:
                notes[file.name] = entry.found
            yield from (known_chunk(chunk, file, read) for chunk in stored)
            return
        seen: list[KnownChunk] = []
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
        found = {file.name: notes[file.name] for file in files[start:end] if file.name in notes}
        group_read = KnownGroup(end - start, opened.closed, seen, found)
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
