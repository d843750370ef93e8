"""Local copies of the objects in buckets, shared by all processes and buckets.

objects/<ab>/<digest>.arrow      named by the BLAKE3 of their bytes, as in a store
<address>/<name>                 blobs with other names, separate for each store (<address> is a digest of its address)
scratch/                         files being written, and a locked file <digest>.lock for each object being downloaded

Files are written atomically, and their bytes are checked before a process uses them. Above the size limit, the least
recently used objects are deleted; a process that has one mapped can still read it. The processes of a host download an
object once: the others wait for the lock, which ends with its process.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tokenloom.errors import ConfigError, StoreUnavailableError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.file_lock import lock_exclusive

DEFAULT_LIMIT = "50GB"
STALE_SECONDS = 24 * 3600

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as `50GB`, `1.5 TB`, `512MiB` or `1000000`.

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower()) if unit else 0))


class FileCache:
    """A cache in a folder.

    Args:
        root: the folder, created on the first write.
        limit: maximum size of all objects in bytes. Processes that write at the same time can exceed it slightly.
    """

    def __init__(self, root: Path, limit: int):
        self.root, self.limit = root, limit
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._room = 0  # bytes that can be added before the folder is scanned again

    @classmethod
    def from_environment(cls) -> FileCache:
        """Open the cache in `$TOKENLOOM_CACHE` (default: `~/.cache/tokenloom`), limited by `$TOKENLOOM_CACHE_SIZE`.

        Raises:
            ConfigError: the limit is not a size, or the home folder is unknown.
        """
        size = os.environ.get("TOKENLOOM_CACHE_SIZE") or DEFAULT_LIMIT
        try:
            limit = parse_size(size)
        except ValueError:
            message = f"must be a size such as {DEFAULT_LIMIT}, got {size!r}"
            raise ConfigError.at("TOKENLOOM_CACHE_SIZE", message) from None
        try:
            folder = os.environ.get("TOKENLOOM_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/tokenloom"
            return cls(Path(folder).expanduser().absolute(), limit)
        except RuntimeError:
            message = "no home folder found for the cache; set this variable to a folder"
            raise ConfigError.at("TOKENLOOM_CACHE", message) from None

    def find(self, digest: str) -> Path | None:
        """Return the file of an object, or None if it is not cached. A damaged file is removed."""
        path = self._path(digest)
        try:
            status = path.stat()
            # bytes are compared once per process, and again if another one has replaced the file
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if self._checked.get(digest) != stamp:
                if digest_bytes(path.read_bytes()) != digest:
                    self.remove(digest)
                    return None
                self._checked[digest] = stamp
            os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))  # the access time orders eviction
        except OSError:
            return None
        return path

    def obtain(self, digest: str, download: Callable[[], bytes], wait: bool = True) -> Path | None:
        """Return the file of an object, which only one process and thread downloads at a time.

        Args:
            download: returns the object's bytes after checking them. Its errors are raised.
            wait: while another process or thread downloads the object, wait; False: return None instead.

        Raises:
            StoreUnavailableError: the folder cannot be written.
        """
        if path := self.find(digest):
            return path
        lock = self.root / "scratch" / f"{digest}.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise self._unwritable(error) from error
        with lock_exclusive(lock, wait) as free:
            if not free:
                return None
            try:
                return self.find(digest) or self.add(digest, download())
            finally:
                with suppress(OSError):
                    lock.unlink()  # those who wait for it look for the object first

    def add(self, digest: str, data: bytes | memoryview) -> Path:
        """Add an object whose bytes were checked, and return its file.

        Raises:
            StoreUnavailableError: the folder cannot be written.
        """
        path = self._path(digest)
        status = self._write(path, data)
        self._checked[digest] = status.st_ino, status.st_size, status.st_mtime_ns
        self._room -= len(data)
        if self._room < 0:
            self._trim(path)
        return path

    def remove(self, digest: str) -> None:
        """Delete an object from the cache."""
        with suppress(OSError):
            self._path(digest).unlink()

    def put_named(self, address: str, name: str, data: bytes) -> Path:
        """Write a blob that is not named by its digest, and return its file. It does not count towards the limit.

        Args:
            address: address of the store.
            data: the blob's current content.

        Raises:
            StoreUnavailableError: the folder cannot be written.
        """
        path = self.root / digest_bytes(address.encode())[:16] / name
        with suppress(OSError):
            if path.read_bytes() == data:
                return path
        self._write(path, data)
        return path

    def _path(self, digest: str) -> Path:
        return self.root / "objects" / digest[:2] / f"{digest}.arrow"

    def _write(self, path: Path, data: bytes | memoryview) -> os.stat_result:
        temporary = self.root / "scratch" / uuid.uuid4().hex
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            # before the rename: after it, the path can be another process's file, which was not checked here
            found = temporary.stat()
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise self._unwritable(error) from error
        return found

    def _unwritable(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"cannot write to the cache {self.root}: {error.strerror or error}; "
            "set TOKENLOOM_CACHE to a folder with free space, or set a smaller TOKENLOOM_CACHE_SIZE"
        )

    def _trim(self, kept: Path) -> None:
        """Delete the least recently used objects, but not the one just added, until the size is a little below the
        limit; and stale scratch files."""
        objects = sorted(_files(self.root / "objects"))
        total = sum(size for _, size, _ in objects)
        # a little below, so that not every new object scans the folder
        target = self.limit - self.limit // 16 if total > self.limit else total
        for _, size, path in objects:
            if total <= target:
                break
            if path != str(kept):
                with suppress(OSError):
                    Path(path).unlink()
                total -= size
        stale = time.time_ns() - STALE_SECONDS * 10**9
        for used, _, path in _files(self.root / "scratch"):
            if used < stale:
                with suppress(OSError):
                    Path(path).unlink()
        self._room = min(self.limit - total, self.limit // 64)


def _files(folder: Path | str) -> Iterator[tuple[int, int, str]]:
    """Yield the access time (POSIX ns), size and path of each file. Other processes can delete files meanwhile."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
                continue
            with suppress(OSError):
                found = entry.stat()
                yield found.st_atime_ns, found.st_size, entry.path
