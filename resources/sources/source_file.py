"""A source file: opened, with fsspec if it is remote or compressed, and read in blocks."""

from __future__ import annotations

import bz2
import lzma
import os
import re
import socket
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from http import HTTPStatus
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa

from tokenloom.config.yaml_file import open_regular
from tokenloom.errors import SourceError, SourceUnavailableError, TokenloomError, escaped
from tokenloom.resources.visible import causes, first_line

BLOCK_BYTES = 4 << 20

TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers of a server that can be others later, besides those from 500."""

LOST_CONNECTIONS = {
    "aiohttp.ClientConnectionError",
    "aiohttp.ClientPayloadError",
    "botocore.ConnectionError",
    "botocore.HTTPClientError",
}
"""Exceptions of libraries that are not imported here: the package and the name of the class."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
"""fsspec's name of the compression of each file extension."""

_STREAMS: Mapping[str, Callable[[], Any]] = {"bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}

_SPECIAL = "it is a pipe, a socket or a device; write what it gives to a file"
_CLEARLY = {
    "requires too much memory": (
        "it was compressed with a window of more than 128 MiB (zstd --long=28 or more); compress it again: "
        "zstd -d --long=31 -c FILE | zstd -o NEW_FILE"
    ),
    "Dictionary mismatch": (
        "it was compressed with a dictionary, which it does not contain; decompress it: zstd -d -D DICTIONARY FILE"
    ),
    "Unknown frame descriptor": "the data there are not zstd",
    "Cannot seek streaming": "the server states no size of it, without which only text is read; download it",
    "not a regular file": _SPECIAL,
    "No such device or address": _SPECIAL,
}
"""Messages of Arrow's zstd and others, and what they mean."""

_UNPACKED, _UNPACKED_PER_BYTE = 1 << 30, 1000
"""Most bytes that a compressed table is unpacked to, and per byte of the file if that is more."""


class FileFormat(NamedTuple):
    """What files of one format have in common.

    Args:
        endings: of their names.
        options: of `dataset.reader`, that are for this format.
        delimiter: usual delimiter between cells, or "".
        is_table: whether a library reads it as a table; other formats are records in text.
        sessions: for sessions of agents, the families of formats that the endings of their files declare.
    """

    endings: tuple[str, ...]
    options: tuple[str, ...] = ()
    delimiter: str = ""
    is_table: bool = False
    sessions: tuple[str, ...] = ()


FILE_FORMATS = {
    "json": FileFormat((".json",), ("root",)),
    "jsonl": FileFormat((".jsonl", ".ndjson"), ("root",)),
    "csv": FileFormat((".csv",), ("header", "delimiter"), ","),
    "tsv": FileFormat((".tsv",), ("header", "delimiter"), "\t"),
    "parquet": FileFormat((".parquet",), is_table=True),
    "arrow": FileFormat((".arrow", ".feather"), is_table=True),
    "text": FileFormat((".txt", ".text", ".md"), ("lines_per_row",)),
    "megatron": FileFormat((".idx",), is_table=True),
    "flat_tokens": FileFormat((".npy",), ("dtype", "eos_id"), is_table=True),
    "mds": FileFormat((), ("dtype",), is_table=True),
    "litdata": FileFormat((), is_table=True),
    "claude_code": FileFormat((), sessions=("json",)),
    "codex": FileFormat((), sessions=("json",)),
    "atif": FileFormat((), sessions=("json",)),
    "swe_agent": FileFormat((".traj",), sessions=("json", "swe_agent")),
}
SHARDED = ("mds", "litdata")
"""Formats of folders whose `index.json` lists the files."""

TOKEN_FILES = ("megatron", "flat_tokens", *SHARDED)
"""Formats of token ids; their files can have others beside them, such as masks."""

_COMPANION = re.compile(r".*_loss_mask\.(idx|bin)|labels_mask_part_.*\.npy|token_ids_part_.*\.csv\.gz", re.IGNORECASE)

SESSIONS = tuple(name for name, each in FILE_FORMATS.items() if each.sessions)
TABLES = {name for name, each in FILE_FORMATS.items() if each.is_table}
FORMATS = {ending: name for name, each in FILE_FORMATS.items() for ending in each.endings}
"""The format that an ending declares."""


def format_of(name: str) -> str | None:
    """Return the format that a file name's ending declares, without that of its compression; None if it is unknown."""
    return _format_of_endings(name.rstrip("/").rpartition("/")[2][1:].partition(".")[2])


@lru_cache(4096)  # a folder can have many thousands of files
def _format_of_endings(endings: str) -> str | None:
    stem, ending = os.path.splitext(f"file.{endings}")  # noqa: PTH122
    while ending.lower() in COMPRESSIONS:
        stem, ending = os.path.splitext(stem)  # noqa: PTH122
    return FORMATS.get(ending.lower())


@dataclass(frozen=True)
class SourceFile:
    """One file of a dataset's source.

    Args:
        path: path or URL, as fsspec opens it, with credentials.
        name: its name in messages and manifests, as `escaped` returns it.
        format: name of its format, such as `jsonl`.
        split: the split that its rows belong to.
    """

    path: str = field(repr=False)
    name: str
    format: str
    split: str = "train"

    @property
    def compressed(self) -> bool:
        return self.name.lower().endswith(tuple(COMPRESSIONS))

    @property
    def local_size(self) -> int | None:
        """The size in bytes of a local, uncompressed file; None for any other path."""
        if self.compressed:
            return None
        try:
            status = os.stat(self.path)  # noqa: PTH116  # `Path` would change URLs
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def remote(self) -> bool:
        """Whether the path is a URL. Causes of its errors are not shown: libraries name the URL with credentials."""
        return "://" in self.path

    def beside(self, pattern: str, text: str) -> SourceFile:
        """Return the file in the same folder whose name has `text` in place of what matches a pattern."""
        path, query, rest = self.path.partition("?") if self.remote else (self.path, "", "")
        folder, slash, name = path.rpartition("/")
        shown, shown_slash, last = self.name.rpartition("/")
        renamed = re.sub(pattern, text, name, flags=re.IGNORECASE)
        own = re.sub(pattern, text, last, flags=re.IGNORECASE)
        return replace(self, path=f"{folder}{slash}{renamed}{query}{rest}", name=f"{shown}{shown_slash}{own}")

    def exists(self) -> bool:
        """Return whether there is such a file.

        Raises:
            SourceError: a server did not respond.
        """
        if not self.remote:
            return os.path.lexists(self.path)  # what is there and cannot be read is refused, not passed over
        import fsspec

        with self.named_errors():
            system, path = fsspec.url_to_fs(self.path)
            return bool(system.isfile(path))

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[bytes]:
        """Yield the decompressed content in blocks of `size` bytes; the last one can be shorter, and none is empty.

        Raises:
            SourceError: the file cannot be read, for example a truncated archive. The message says how many bytes were
                read.
        """
        done = 0
        with self.named_errors(lambda: f" after byte {done}" if done else ""), self._open() as file:
            while block := _read(file, size):
                yield block
                done += len(block)

    @contextmanager
    def seekable(self, stated: int | None = None) -> Iterator[Any]:
        """Open the decompressed content as a seekable file.

        Args:
            stated: the size of the decompressed content, as an index states it; no more is unpacked.

        Raises:
            SourceError: the file cannot be read, or unpacks to more than is stated or supported.
        """
        with self.named_errors():
            if not self.remote and not self.compressed:
                refuse_special(self.path)
                with pa.OSFile(self.path) as file:  # not a memory map: truncating a mapped file kills the process
                    yield file
            elif not self.compressed:
                with self._open() as file:
                    yield pa.PythonFile(file, "r")
            else:
                with tempfile.TemporaryFile(prefix="tokenloom-") as spool:
                    # a table is read at several places, and decompressors only forwards
                    for block in self.blocks():
                        spool.write(block)
                        if stated is not None and spool.tell() > stated:
                            raise SourceError(f"{self.name}: unpacks to more than the {stated:,} bytes that are stated")
                        if spool.tell() > _UNPACKED and spool.tell() > _UNPACKED_PER_BYTE * self._packed_size():
                            raise SourceError(
                                f"{self.name}: unpacks to more than {_UNPACKED_PER_BYTE:,} times its size; unpack it "
                                "yourself if it is meant to"
                            )
                    spool.seek(0)
                    yield pa.PythonFile(spool, "r")

    def _open(self) -> IO[bytes]:
        if not self.remote and not self.compressed:
            return open(self.path, "rb", opener=open_regular)  # `Path` takes longer than reading
        import fsspec

        refuse_special(self.path)
        compression = next((kind for suffix, kind in COMPRESSIONS.items() if self.name.lower().endswith(suffix)), None)
        if compression == "zstd":  # unlike fsspec's, Arrow's decompressor detects truncated files
            return pa.CompressedInputStream(cast(Any, fsspec.open(self.path, "rb", expand=False)).open(), "zstd")  # pyright: ignore[reportReturnType]
        if decoder := _STREAMS.get(compression or ""):
            return cast(Any, _Streams(cast(Any, fsspec.open(self.path, "rb", expand=False)).open(), decoder))
        return cast(Any, fsspec.open(self.path, "rb", compression=compression, expand=False)).open()

    def _packed_size(self) -> int:
        import fsspec

        system, path = fsspec.url_to_fs(self.path)
        return system.info(path).get("size") or 0

    @contextmanager
    def named_errors(self, where: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Raise what goes wrong as errors that name the file, and how far it was read."""
        try:
            yield
        except TokenloomError:
            raise
        except Exception as error:
            if self.remote:
                raise server_error(self.name, error, self.path, where()) from None
            if not isinstance(error, OSError | EOFError | ValueError | zlib.error | lzma.LZMAError):
                raise
            if isinstance(error, FileNotFoundError):
                raise SourceError(f"{self.name}: no such file") from None
            reason = escaped(first_line(error).replace(self.path, self.name))
            reason = next((clear for known, clear in _CLEARLY.items() if known in reason), reason)
            raise SourceError(f"{self.name}: cannot be read{where()}: {reason}") from error


def refuse_special(path: str) -> None:
    """Raise an OSError if a path, or a URL of files inside a local one, leads to a pipe, a socket or a device."""
    innermost = path.rpartition("::")[2].removeprefix("file://")
    if "://" not in innermost and not stat.S_ISREG(os.stat(innermost).st_mode):  # noqa: PTH116  # as `local_size`
        os.close(open_regular(innermost, os.O_RDONLY))


def companion_files(file: SourceFile) -> list[SourceFile]:
    """Return the files beside one of token ids that belong to it: its data, masks, and places of documents."""
    if file.format == "megatron":
        ids, mask = file.beside(r"\.idx$", ".bin"), file.beside(r"\.idx$", "_loss_mask.idx")
        return [ids, *([mask, mask.beside(r"\.idx$", ".bin")] if mask.exists() else [])]
    if file.format != "flat_tokens" or not file.name.rpartition("/")[2].startswith("token_ids_part_"):
        return []
    named = (file.beside("^token_ids_part_", "labels_mask_part_"), file.beside(r"\.npy$", ".csv.gz"))
    return [each for each in named if each.exists()]


def is_companion(name: str) -> bool:
    """Return whether a file's name is that of a companion of a file of token ids."""
    return _COMPANION.fullmatch(name.rpartition("/")[2]) is not None


class _Streams:
    """Reads the bzip2 or xz streams of a file one after the other, as their command-line tools do: Python's own readers
    take damage at the start of a stream, and padding between streams, for the end of the file."""

    def __init__(self, raw: IO[bytes], decoder: Callable[[], Any]):
        self._raw, self._new, self._decoder, self._ended = raw, decoder, decoder(), 0

    def __enter__(self) -> _Streams:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Return up to `size` decompressed bytes; none at the end of the file. A stream that is truncated is an
        EOFError, something else than zeros or a stream after a stream a ValueError."""
        content = b""
        while not content:
            data = b""
            if self._decoder.eof:
                # zeros can follow a stream, to fill a block of a tape
                data = self._decoder.unused_data.lstrip(b"\0")
                while not data and (block := self._raw.read(BLOCK_BYTES)):
                    data = block.lstrip(b"\0")
                if not data:
                    return b""
                self._decoder, self._ended = self._new(), self._ended + 1
            elif self._decoder.needs_input and not (data := self._raw.read(BLOCK_BYTES)):
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            try:
                content = self._decoder.decompress(data, size)
            except (OSError, lzma.LZMAError) as error:
                if not self._ended:
                    raise
                streams = "stream" if self._ended == 1 else f"{self._ended} streams"
                raise ValueError(f"the data after the complete {streams} are damaged, or not compressed") from error
        return content


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source, those of each split together.

    Args:
        config: the config of the folder's README.md that is read, or None.
        notices: sentences about which files are which split, and which are not read.
    """

    files: list[SourceFile]
    config: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def splits(self) -> list[str]:
        """The splits, in order."""
        return [*dict.fromkeys(file.split for file in self.files)]


def server_error(name: str, error: BaseException, path: str, where: str = "") -> TokenloomError:
    """Return the error of a remote file, whose URL and credentials it does not show.

    A server that is away, overloaded or broken is a `SourceUnavailableError`; all else is a `SourceError`.

    Args:
        error: what fsspec raised; it hides the status of a server's answer in the causes.
        path: the URL.
        where: how far the file was read.
    """
    every = [error, *causes(error.__cause__ or error.__context__)]
    status = next((code for cause in every if (code := _status(cause))), None)
    if status in TEMPORARY or (status or 0) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return SourceUnavailableError(f"{name}: the server returned {status}{where}; try again")
    if status is None and any(map(_is_lost_connection, every)):
        lost = "the server is unreachable" if isinstance(error, FileNotFoundError) else "the connection was lost"
        return SourceUnavailableError(f"{name}: {lost}{where}; try again")
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) or (status is None and isinstance(error, FileNotFoundError)):
        return SourceError(f"{name}: no such file")
    reason = f"the server returned {status}" if status else escaped(first_line(error).replace(path, name))
    reason = f"the server states no {reason}" if reason in ("'ContentLength'", "'ETag'", "'LastModified'") else reason
    reason = next((clear for known, clear in _CLEARLY.items() if known in reason), reason)
    return SourceError(f"{name}: cannot be read{where}: {reason}")


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    stated = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    status = getattr(error, "status", None) or stated.get("HTTPStatusCode")
    return status if isinstance(status, int) and status >= HTTPStatus.BAD_REQUEST else None


def _is_lost_connection(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    return not names.isdisjoint(LOST_CONNECTIONS)


def _read(file: IO[bytes], size: int) -> bytes:
    """Read `size` bytes, or the rest of the file. Some streams return fewer bytes per call."""
    parts, missing = [], size
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]
