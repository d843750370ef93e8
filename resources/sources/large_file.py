"""Reads large files from several places at once: by threads of this process, or by tasks on other machines that see the
same file."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar, cast

from tokenloom.config.yaml_file import open_regular
from tokenloom.errors import SourceError, redacted_address
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.sources.source_file import BLOCK_BYTES, SourceFile

READERS = 16
"""Most parts of a file that are read at the same time."""

LARGE_BYTES = 8 * BLOCK_BYTES
"""Smaller files have one reader."""

_SAME = ("size", "ETag", "LastModified", "VersionId", "mtime", "etag", "last_modified")
"""What fsspec reports of a remote file that changes with its content."""

T = TypeVar("T")
U = TypeVar("U")


def stamp_of(file: SourceFile) -> Sequence[Any] | None:
    """Return the size of a file and what else tells its versions apart; None if it cannot be read in parts.

    Raises:
        SourceError: a server did not respond.
    """
    if not file.remote:
        readable = file.local_size is not None and hasattr(os, "pread")
        return _stamp(os.stat(file.path)) if readable else None  # noqa: PTH116  # as `local_size`
    if file.compressed or "::" in file.path:
        return None
    import fsspec
    from fsspec.asyn import AsyncFileSystem  # others open the file for each part, and read more of it than asked for

    with file.named_errors():
        system, path = fsspec.url_to_fs(file.path)
        if not isinstance(system, AsyncFileSystem):
            return None
        system.invalidate_cache(path)
        info = system.info(path)
    if not info.get("partial", True) or not isinstance(info.get("size"), int):
        return None
    return [str(info.get(name)) for name in _SAME]


def stamp_if_large(file: SourceFile, engine: ComputeEngine) -> Sequence[Any] | None:
    """Return the stamp of a file that several workers of an engine read, else None."""
    stamp = None if engine.in_process and engine.workers == 1 else stamp_of(file)
    return stamp if stamp and int(stamp[0]) >= LARGE_BYTES and engine.workers > 1 else None


def _stamp(status: os.stat_result) -> list[Any]:
    return [status.st_size, status.st_mtime_ns]


def changed(file: SourceFile) -> SourceError:
    """Return the error of a file that is not the one that was opened."""
    return SourceError(f"{file.name} changed during the build; build again")


class Ranges:
    """The bytes of a file by their position. A copy in another process opens the file itself.

    Args:
        stamp: what `stamp_of` returns.
    """

    def __init__(self, file: SourceFile, stamp: Sequence[Any]):
        self.file, self.stamp, self.size, self.block = file, stamp, int(stamp[0]), BLOCK_BYTES
        self._descriptor: int | None = None
        if not file.remote:
            with file.named_errors():
                self._descriptor = open_regular(file.path, os.O_RDONLY)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None}

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, start: int) -> bytes:
        """Return a block from a position on; it is shorter at the end of the file.

        Raises:
            SourceError: they cannot be read, or another process sees another file.
        """
        with self.file.named_errors(lambda: f" after byte {start}" if start else ""):
            if self.file.remote:
                return self._requested(start, min(start + self.block, self.size))
            if self._descriptor is not None:
                return self._read(self._descriptor, start)
            with open(self.file.path, "rb", opener=open_regular) as opened:  # as in `SourceFile`
                if _stamp(os.fstat(opened.fileno())) != self.stamp:
                    raise changed(self.file)
                return self._read(opened.fileno(), start)

    def _read(self, descriptor: int, start: int) -> bytes:
        parts, end = list[bytes](), start + self.block
        # one system call returns at most 2 GB, and less if a signal comes
        while start < end and (part := os.pread(descriptor, end - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _requested(self, start: int, end: int) -> bytes:
        import fsspec

        if start >= end:
            return b""
        system, path = fsspec.url_to_fs(self.file.path)
        if self.file.path.startswith("http"):  # its `cat_file` reads the whole file if the server sends no parts
            with system.open(path, "rb", size=self.size, cache_type="none") as opened:
                opened.seek(start)
                data = opened.read(end - start)
        else:
            data = system.cat_file(path, start=start, end=end)
        if len(data) != end - start:
            raise changed(self.file)
        return data


def _made(ranges: Ranges, make: Callable[[bytes], T], start: int) -> tuple[int, T]:
    data = ranges.read(start)
    return len(data), make(data)


class LargeFile:
    """A file that is read by as many readers as the engine has workers, at most `READERS`. Small and compressed files,
    and those of servers that send no parts, have one. Close it after use.

    Attributes:
        first: its first block, once it is read.
    """

    def __init__(self, file: SourceFile, engine: ComputeEngine):
        self.file, self.engine, self.first = file, engine, b""

    @cached_property
    def _ranges(self) -> Ranges | None:
        stamp = stamp_if_large(self.file, self.engine)
        return Ranges(self.file, stamp) if stamp else None

    @property
    def is_large(self) -> bool:
        """Whether several readers read it, once its first block is read."""
        return len(self.first) == BLOCK_BYTES and self._ranges is not None

    @property
    def threads(self) -> ComputeEngine:
        """Threads of this process, as many as there are readers."""
        return self.engine.here.beside(READERS) if self.is_large else ComputeEngine(1)

    def close(self) -> None:
        """Close the file if it is open."""
        if (ranges := self.__dict__.get("_ranges")) is not None:
            ranges.close()

    def blocks(self) -> Iterator[bytes]:
        """Yield what `SourceFile.blocks` does. The first block is read alone: often no other is needed."""
        if not self.file.remote and self._ranges:  # else the first block shows whether it is worth a request
            rest = iter(())
            self.first = self._ranges.read(0)
        else:
            rest = self.file.blocks()
            self.first = next(rest, b"")
        if self.is_large:
            rest = self.parts(BLOCK_BYTES, bytes, here=True)
        yield from filter(None, chain([self.first], rest))

    def parts(self, start: int, make: Callable[[bytes], T], here: bool = False) -> Iterator[T]:
        """Yield what a function makes of each part of the file, in order. At most two parts per reader are in memory.

        Args:
            start: where the first part starts.
            make: it can be pickled.
            here: whether only this process reads.

        Raises:
            SourceError: a part cannot be read, or a remote file changed.
        """
        ranges = self._ranges
        assert ranges is not None
        function, size, at = partial(_made, ranges, make), BLOCK_BYTES, start
        offsets = range(start, ranges.size, BLOCK_BYTES)
        engine = self.engine.here if here else self.engine
        for size, value in spread(engine, function, offsets, self.file, READERS):
            yield value
            at += size
            # the file ends here, whatever its size was when it was opened
            if size < BLOCK_BYTES:
                break
        while size == BLOCK_BYTES:  # a file can grow while it is read
            size, value = function(at)
            yield value
            at += size
        # parts of two versions of the file would be rows that never were
        if self.file.remote and stamp_of(self.file) != ranges.stamp:
            raise changed(self.file)


def _attempt(function: Callable[[T], U], item: T) -> U | None:
    """Call a function on another machine, which can lack the file, credentials or packages."""
    with suppress(Exception):
        return function(item)
    return None


def spread(
    engine: ComputeEngine, function: Callable[[T], U], items: Sequence[T], file: SourceFile, most: int
) -> Generator[U]:
    """Yield `function(item)` for each item, in order, computed by up to `most` workers of an engine. Once a task on
    another machine fails, threads of this process do the rest, so that only errors of this process are raised. A URL
    with credentials is not sent.

    Args:
        function: never returns None.
        file: what the function reads.
    """
    done = 0
    # a URL with credentials would be in the task, and in logs of the cluster
    if not engine.in_process and redacted_address(file.path) == file.path:
        tasks = engine.beside(most).map(partial(_attempt, function), items)
        with closing(cast("Generator[U | None]", tasks)) as results:
            for result in results:
                if result is None:
                    break
                done += 1
                yield result
    if done < len(items):
        yield from engine.here.beside(most).map(function, items[done:])
