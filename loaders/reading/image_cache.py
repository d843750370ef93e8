"""A folder with the model inputs of images, so that a later epoch neither decodes nor resizes them again.

Each image has one file: arrays one after the other, each at a multiple of 64 bytes and integers as bytes if they fit, a
JSON description, the length of that, and a digest of all, which is checked when a process first reads the file. Files
are written under another name and then renamed, so that processes can share a folder.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.errors import ConfigError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import DIGEST_CHARACTERS
from tokenloom.resources.store.blobs.file_cache import parse_size

FOLDER, SIZE, DEFAULT_SIZE = "TOKENLOOM_IMAGE_CACHE", "TOKENLOOM_IMAGE_CACHE_SIZE", "100GB"

_ALIGNED = 64
_TAIL = 8 + DIGEST_CHARACTERS
_COUNTED = 256
"""New files after which other processes' files are counted again."""


class ImageCache:
    """Keeps arrays in a folder, up to a total size; then it keeps what it has.

    Args:
        folder: where the files are; created if it does not exist.
        limit: total size in bytes.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int):
        self.folder, self.limit = Path(folder), limit
        self._size, self._new, self._lock = -1, 0, Lock()
        self._checked: set[str] = set()

    @classmethod
    def from_environment(cls) -> ImageCache | None:
        """Open the cache in `$TOKENLOOM_IMAGE_CACHE`, limited by `$TOKENLOOM_IMAGE_CACHE_SIZE`; None if it is not set.

        Raises:
            ConfigError: the limit is not a size.
        """
        if not (folder := os.environ.get(FOLDER)):
            return None
        size = os.environ.get(SIZE) or DEFAULT_SIZE
        try:
            return cls(Path(folder).expanduser(), parse_size(size))
        except ValueError:
            raise ConfigError.at(SIZE, f"must be a size such as {DEFAULT_SIZE}, got {size!r}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def get(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        """Return the arrays of a key, memory-mapped; None if they are not there, or damaged."""
        try:
            with self._file(key).open("rb") as file:
                data = np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), np.uint8)
            if key not in self._checked:
                if digest_bytes(data[:-DIGEST_CHARACTERS].data) != data[-DIGEST_CHARACTERS:].tobytes().decode():
                    return None
                self._checked.add(key)
            size = int(np.frombuffer(data[-_TAIL:-DIGEST_CHARACTERS], np.int64)[0])
            described = json.loads(data[-_TAIL - size : -_TAIL].tobytes())
            return {
                name: np.frombuffer(data[begin : begin + length], kept).reshape(shape).astype(kind, copy=False)
                for name, (begin, length, kept, kind, shape) in described.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, IndexError):
            return None

    def put(self, key: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Keep the arrays of a key, if there is room. A folder that cannot be written keeps nothing."""
        described, parts, at = dict[str, Any](), list[bytes](), 0
        for name, given in arrays.items():
            array = _small(given)
            described[name] = [at, array.nbytes, array.dtype.str, given.dtype.str, list(array.shape)]
            padding = -array.nbytes % _ALIGNED
            parts += [array.tobytes(), bytes(padding)]
            at += array.nbytes + padding
        tail = json.dumps(described).encode()
        content = b"".join([*parts, tail, np.int64(len(tail)).tobytes()])
        with suppress(OSError):
            if not self._has_room(len(content) + DIGEST_CHARACTERS):
                return
            temporary = self.folder / f".{uuid.uuid4().hex}"
            try:
                with temporary.open("wb") as file:
                    file.writelines([content, digest_bytes(content).encode()])
                temporary.replace(self._file(key))
            finally:
                temporary.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.inputs"

    def _has_room(self, size: int) -> bool:
        """Return whether a file of a size fits, and count it."""
        with self._lock:
            if self._size < 0 or self._new >= _COUNTED:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._size, self._new = sum(entry.stat().st_size for entry in os.scandir(self.folder)), 0
            if self._size + size > self.limit:
                return False
            self._size += size
            self._new += 1
            return True


def _small(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return integers as bytes if they fit: masks of pixels are int64."""
    fits = array.dtype.kind == "i" and array.size and array.min() >= 0 and array.max() < 256
    return array.astype(np.uint8) if fits else array
