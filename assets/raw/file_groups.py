"""Groups of small files: consecutive files of one layout are read as one stream of records, so that they share chunks.

A group also ends after a file whose content has a low hash for its size. A change of one file therefore makes only the
files of its group be read again, 16 chunks on average.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from tokenloom.assets.raw.formats.record_boundaries import NEWLINE, RecordBlock
from tokenloom.assets.raw.formats.record_file import RecordFile, open_records
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import DatasetConfig
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.sources.source_file import TABLES, SourceFile
from tokenloom.resources.store import Run
from tokenloom.resources.store.known_files import Stamp, file_stamp
from tokenloom.resources.tables.ragged import Ints

GROUP_CHUNKS = 16
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 4096
_NO_RECORDS = RecordBlock(np.zeros(0, np.uint8), np.zeros(1, np.int64))


class GroupedFile(NamedTuple):
    """A file of a group: its position in the group's stream, in records, and the lines of the file before its first
    record."""

    file: SourceFile
    found: dict[str, str]
    start: int
    first_line: int


def consecutive_files(files: Iterable[SourceFile], size: ChunkSize) -> Iterator[list[SourceFile]]:
    """Yield the files in order: consecutive ones that are smaller than any chunk together, every other one alone.

    Empty files are omitted, except those of formats in which they can be damaged.
    """
    small: list[SourceFile] = []
    for file in files:
        size_in_bytes = file.local_size
        if size_in_bytes == 0 and file.format in ("jsonl", "text"):
            continue
        # no cut is made within a reach of both ends, so such a file would always be one chunk
        if size_in_bytes is not None and size_in_bytes < size.reach and file.format not in TABLES:
            small.append(file)
            continue
        if small:
            yield small
            small = []
        yield [file]
    if small:
        yield small


class FileGroup:
    """The first files of a list that can share chunks.

    Args:
        files: small files.
        start: the first file of the group.

    Attributes:
        end: the number of files in `files` up to the end of the group, as far as it was read.
        closed: whether the group ends there for any file after it.
        stamps: those of the files that were opened, from before they were opened.
        members: the files that have text.
        records: how the records of the first member are read; None if no file has text.
        alone: whether the group has one member, which is read like a large file.
    """

    def __init__(self, dataset: DatasetConfig, files: Sequence[SourceFile], start: int, size: ChunkSize):
        self._dataset, self._files, self._bytes = dataset, files, GROUP_CHUNKS * size.target
        self.start = self.end = start
        self.closed = False
        self.stamps: list[Stamp | None] = []
        self.members: list[GroupedFile] = []
        self.records: RecordFile | None = None
        self._count = 0
        self._blocks = self._opened()
        # the second file, which may not share the layout, shows whether the first is alone
        self._first = list(islice(self._blocks, 2))
        self.alone = len(self._first) == 1
        self._lines: list[int] = []

    def _opened(self) -> Iterator[RecordBlock]:
        """Open the files of the group, and yield the records of each."""
        while self.end < len(self._files) and not self.closed:
            file = self._files[self.end]
            self.stamps.append(file_stamp(file.path))
            opened = open_records(self._dataset, file)
            shares = opened.line_ends is not None
            if self.records and not (shares and opened.facts == self.records.facts):
                return
            # of a file that shares no chunks only the first block is read here, to know whether it has text
            text = b"".join(opened.text) if shares else next(opened.text, b"")
            self.end += 1
            if text:
                self.records = self.records or opened
                self.members.append(GroupedFile(file, opened.found, self._count, opened.first_line))
                block = _records_of(opened, text) if shares else _NO_RECORDS
                # its own content decides, so that files that are added or removed elsewhere move no other group's end
                self.closed = not shares or int(digest_bytes(text)[:16], 16) * self._bytes < len(text) << 64
                self._count += len(block.bounds) - 1
                yield block

    def blocks(self) -> Iterator[RecordBlock]:
        """Yield the records of all files, in blocks. Every file ends with a newline, if need be an added one."""
        batch, size = self._first, 0
        for block in self._blocks:
            batch.append(block)
            size += len(block.data)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
                yield RecordBlock.join(batch)
                batch, size = [], 0
        if batch:
            yield RecordBlock.join(batch)

    def runs(self, first: int, line: int, positions: Ints) -> tuple[slice, tuple[Run, ...]]:
        """Find the files that a chunk's records are from, and its runs. Call it for all chunks in order.

        Args:
            first: the chunk's first record in the stream.
            line: its first line in the stream.
            positions: int64 [records], the line within the chunk at which each record starts.
        """
        end = first + len(positions)
        within = slice(bisect_right(self.members, first, key=_start) - 1, bisect_left(self.members, end, key=_start))
        runs: list[Run] = []
        for index in range(within.start, within.stop):
            member = self.members[index]
            at = int(positions[max(member.start - first, 0)])
            if member.start >= first:
                # the stream's line at which the file begins; chunks that continue it count from there
                self._lines.append(line + at)
            runs.append(Run(member.file.name, at, member.first_line + line + at - self._lines[index]))
        return within, tuple(runs)


_start = attrgetter("start")


def _records_of(records: RecordFile, text: bytes) -> RecordBlock:
    """Return the records of a small file, the last one with a newline at its end."""
    # only a file beyond the limit can hold a record that is too large to be read
    if len(text) > records.limit:
        block = RecordBlock.join(list(records.blocks(iter([text]))))
    else:
        data = np.frombuffer(text, np.uint8)
        block = RecordBlock(data, records.finder(records.first_line).find(data, True))
    if block.data[-1] == NEWLINE:
        return block
    bounds = block.bounds.copy()
    # the last record grows by the newline, so that it does not run into the next file's first
    bounds[-1] += 1
    return RecordBlock(np.append(block.data, NEWLINE), bounds, block.skipped)
