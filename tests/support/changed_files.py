"""Changes of a file's lines, what chunks hold, and known files in memory: for tests of files that are read again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tokenloom.assets.stage.definition import InputChunk
from tokenloom.resources.store.known_files import KnownChunk, KnownFile, KnownFiles

Lines = list[bytes]


class Remembered(KnownFiles):
    """Known files in memory; every file counts as modified each time."""

    def __init__(self) -> None:
        self.entries: dict[str, list[KnownChunk]] = {}

    def find(self, path: str) -> KnownFile | None:
        return KnownFile(self.entries[path], {}, untouched=False) if path in self.entries else None

    def note(self, path: str, before: list[int] | None, chunks: list[KnownChunk], found: dict[str, str]) -> None:
        self.entries[path] = chunks


def changes(lines: Lines, line: Callable[[], bytes], pick: random.Random) -> Iterator[tuple[str, Lines]]:
    """Yield the lines after each of several changes."""
    at = pick.randrange(len(lines))
    yield "nothing", lines
    yield "appended", [*lines, *(line() for _ in range(40))]
    yield "cut short", lines[:at]
    yield "begun with", [line(), *lines]
    yield "inserted", [*lines[:at], line(), *lines[at:]]
    yield "deleted", [*lines[:at], *lines[at + 1 :]]
    yield "edited", [*lines[:at], line(), *lines[at + 1 :]]
    yield "its end lost", [*lines[:-1], lines[-1].rstrip()]
    yield "its middle lost", [*lines[: at // 2], *lines[at:]]


def described(chunks: list[InputChunk]) -> list[tuple[object, ...]]:
    """Return the properties and contents of chunks."""
    found: list[tuple[object, ...]] = []
    for chunk in chunks:
        output = chunk.load()
        rows = output.table.to_pylist(), output.rejects.to_pylist(), output.rows_in
        found.append((chunk.digest, chunk.split, chunk.runs, chunk.unit, chunk.size, rows))
    return found
