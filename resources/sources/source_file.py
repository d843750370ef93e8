"""One file of a dataset's source: opened through fsspec, decompressed, read in blocks."""

from __future__ import annotations

import lzma
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa

from tokenloom.errors import SourceError, SourceUnavailableError

BLOCK_BYTES = 4 << 20

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
"""File endings, and what fsspec calls their compression."""


@dataclass(frozen=True)
class SourceFile:
    """One file: `path` as fsspec opens it, `name` as messages and manifests show it, `format` a key of readers."""

    path: str
    name: str
    format: str

    @property
    def compressed(self) -> bool:
        return any(self.name.lower().endswith(suffix) for suffix in COMPRESSIONS)

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[bytes]:
        """The decompressed content in blocks of `size` bytes, the last one shorter; none of them is empty.

        Raises:
            SourceError: it cannot be read, for example a truncated archive; the message says how far reading got.
        """
        done = 0
        with self._named_errors(lambda: f" after byte {done}"), self._open() as file:
            while block := _read(file, size):
                yield block
                done += len(block)

    @contextmanager
    def seekable(self) -> Iterator[Any]:
        """The decompressed content as a file that can be read at any position.

        Raises:
            SourceError: it cannot be read.
        """
        with self._named_errors():
            if "://" not in self.path and not self.compressed:
                with pa.OSFile(self.path) as file:  # not a map: a file that shrinks meanwhile would end the process
                    yield file
            elif not self.compressed:
                with self._open() as file:
                    yield pa.PythonFile(file, "r")
            else:
                with tempfile.TemporaryFile(prefix="tokenloom-") as spool:
                    for block in self.blocks():
                        spool.write(block)
                    spool.seek(0)
                    yield pa.PythonFile(spool, "r")

    def _open(self) -> IO[bytes]:
        import fsspec

        compression = next((kind for suffix, kind in COMPRESSIONS.items() if self.name.lower().endswith(suffix)), None)
        if compression == "zstd":  # Arrow's decompressor, unlike fsspec's, refuses a truncated file
            return pa.CompressedInputStream(cast(Any, fsspec.open(self.path, "rb", expand=False)).open(), "zstd")  # pyright: ignore[reportReturnType]
        return cast(Any, fsspec.open(self.path, "rb", compression=compression, expand=False)).open()

    @contextmanager
    def _named_errors(self, where: Any = lambda: "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if "://" in self.path and any(isinstance(cause, OSError) for cause in _causes(error)):
                raise SourceUnavailableError(f"{self.name}: its server cannot be reached; try again") from error
            raise SourceError(f"{self.name}: there is no such file at its address") from error
        except SourceError:
            raise
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            reason = str(error).replace(self.path, self.name).splitlines() or [type(error).__name__]
            raise SourceError(f"{self.name}: cannot be read{where()}: {reason[0]}") from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an exception was raised from."""
    while (cause := error.__cause__ or error.__context__) is not None:
        yield cause
        error = cause


def _read(file: IO[bytes], size: int) -> bytes:
    """`size` bytes, or what is left: some streams return less at a time."""
    parts, room = [], size
    while room and (part := file.read(room)):
        parts.append(part)
        room -= len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]
