"""A cache of objects on this machine's disk, shared by all processes and all buckets.

objects/<ab>/<digest>.arrow      named by the BLAKE3 of their bytes, as in a store
<place>/<name>                   what is not named so, apart for each bucket
scratch/                         files being written

Each file appears whole, and its bytes are checked before a process uses it. The least recently used go when there is
more than the limit; one that is mapped meanwhile stays readable.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tokenloom.errors import ConfigError, Fault, StoreError
from tokenloom.resources.digest import digest_bytes

DEFAULT_LIMIT = "50GB"
STALE_SECONDS = 24 * 3600

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size such as `50GB`, `1.5 TB`, `512MiB` or `1000000`.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower()) if unit else 0))


class FileCache:
    """The cache below a folder.

    Args:
        root: the folder; made when it is needed.
        limit: bytes of objects that it may hold. Several processes that fill it at once may pass it by a small share.
    """

    def __init__(self, root: Path, limit: int):
        self.root, self.limit = root, limit
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._room = 0  # bytes to add before looking again at what is there

    @classmethod
    def from_environment(cls) -> FileCache:
        """The cache in `$TOKENLOOM_CACHE` (default: `~/.cache/tokenloom`), limited by `$TOKENLOOM_CACHE_SIZE`.

        Raises:
            ConfigError: the limit is no size, or there is no home folder.
        """
        named = os.environ.get("TOKENLOOM_CACHE_SIZE") or DEFAULT_LIMIT
        try:
            limit = parse_size(named)
        except ValueError:
            raise ConfigError(
                [Fault("TOKENLOOM_CACHE_SIZE", f"{named!r} is no size such as {DEFAULT_LIMIT}")]
            ) from None
        try:
            folder = os.environ.get("TOKENLOOM_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/tokenloom"
            return cls(Path(folder).expanduser().absolute(), limit)
        except RuntimeError:
            raise ConfigError(
                [Fault("TOKENLOOM_CACHE", "there is no home folder to cache objects in; set it")]
            ) from None

    def find(self, digest: str) -> Path | None:
        """The file of an object, or None where it is not here; a damaged one is removed."""
        path = self._path(digest)
        try:
            found = path.stat()
            mark = found.st_ino, found.st_size, found.st_mtime_ns
            if self._checked.get(digest) != mark:
                if digest_bytes(path.read_bytes()) != digest:
                    self.remove(digest)
                    return None
                self._checked[digest] = mark
            os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))  # used now; written when it was
        except OSError:
            return None
        return path

    def add(self, digest: str, data: bytes | memoryview) -> Path:
        """Keep an object whose bytes were checked.

        Raises:
            StoreError: the folder cannot be written.
        """
        path = self._path(digest)
        found = self._write(path, data)
        self._checked[digest] = found.st_ino, found.st_size, found.st_mtime_ns
        self._room -= len(data)
        if self._room < 0:
            self._trim(path)
        return path

    def remove(self, digest: str) -> None:
        """Forget an object."""
        with suppress(OSError):
            self._path(digest).unlink()

    def lay(self, place: str, name: str, data: bytes) -> Path:
        """A file with a blob that is not named by its bytes, as it is now; it does not count towards the limit.

        Raises:
            StoreError: the folder cannot be written.
        """
        path = self.root / digest_bytes(place.encode())[:16] / name
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
            found = temporary.stat()
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(
                f"cannot write to the cache {self.root}: {error.strerror or error}; "
                "set TOKENLOOM_CACHE to a folder with room, or a smaller TOKENLOOM_CACHE_SIZE"
            ) from error
        return found

    def _trim(self, kept: Path) -> None:
        """Remove what was not used for longest, down to a little below the limit, and what was left half-written."""
        held = sorted(_files(self.root / "objects"))
        total = sum(size for _, size, _ in held)
        wanted = self.limit - self.limit // 16 if total > self.limit else total
        for _, size, path in held:
            if total <= wanted:
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
    """When each file was last used (nanoseconds, POSIX), its size and its path; others may remove them meanwhile."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
                continue
            with suppress(OSError):
                found = entry.stat()
                yield found.st_atime_ns, found.st_size, entry.path
