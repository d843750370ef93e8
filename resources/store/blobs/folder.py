"""Blobs in a folder. Writes are atomic: a file is written to `scratch`, synced to disk, then renamed.

Takes no locks. Listing does not follow symbolic links, so that nothing outside the folder is ever deleted.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.resources.store.blobs.blobs import Blob

SCRATCH = "scratch"
STALE_SECONDS = 24 * 3600


class Folder:
    """Blobs in a folder, which hosts can share over a network file system."""

    def __init__(self, root: Path):
        self.root = root
        self._scratch = root / SCRATCH

    @property
    def address(self) -> str:
        return str(self.root)

    def read(self, name: str) -> bytes:
        with _store_errors(name, "read"):
            return (self.root / name).read_bytes()

    def size(self, name: str) -> int | None:
        return found.size if (found := self.stat(name)) else None

    def stat(self, name: str) -> Blob | None:
        try:
            found = (self.root / name).stat()
        except OSError:
            return None
        return Blob(name, found.st_size, found.st_mtime)

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._write(name, data, Path.replace)

    def _write(self, name: str, data: bytes | memoryview, publish: Callable[[Path, Path], Any]) -> Any:
        path, temporary = self.root / name, self._scratch / uuid.uuid4().hex
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return publish(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(f"cannot write {path.name} to the store: {error.strerror or error}") from error

    def create(self, name: str, data: bytes | memoryview) -> None:
        try:
            exists = self.size(name) == len(data) and (self.root / name).read_bytes() == data
        except OSError:
            exists = False
        if not exists:
            self.write(name, data)

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        return self._write(name, data, _link)

    def below(self, prefix: str) -> Iterator[Blob]:
        if (self.root / prefix).is_symlink():
            raise StoreError(
                f"{prefix} in the store {self.root} is a symbolic link, which is not followed; "
                "replace it with a folder that has its content"
            )
        try:
            entries = sorted(os.scandir(self.root / prefix), key=_sort_key)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if entry.is_dir():
                yield from self.below(f"{prefix}/{entry.name}".lstrip("/"))
                continue
            with suppress(FileNotFoundError):  # another process removed it
                found = entry.stat(follow_symlinks=False)
                yield Blob(f"{prefix}/{entry.name}".lstrip("/"), found.st_size, found.st_mtime)

    def delete(self, name: str) -> None:
        with _store_errors(name, "remove"), suppress(FileNotFoundError):
            (self.root / name).unlink()

    def touch(self, name: str) -> None:
        with suppress(OSError):
            os.utime(self.root / name, follow_symlinks=os.utime not in os.supports_follow_symlinks)

    def local(self, name: str) -> Path:
        path = self.root / name
        if not path.is_file():
            raise FileNotFoundError(name)
        return path

    def fetch(self, names: Iterable[str]) -> None:
        """Do nothing: all blobs are local."""

    def sweep(self) -> None:
        limit = time.time() - STALE_SECONDS
        for blob in self.below(SCRATCH):
            if blob.modified < limit:
                self.delete(blob.name)


def _link(temporary: Path, path: Path) -> bool:
    """Move a file to a path, unless that exists; returns whether it was moved. The file is gone in any case."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # the file system has no hard links
        if path.exists():
            return False
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _sort_key(entry: os.DirEntry[str]) -> str:
    """Return a key that sorts a folder by the names of the blobs in it."""
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


@contextmanager
def _store_errors(name: str, action: str) -> Iterator[None]:
    """Raise errors of the file system as StoreError, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"cannot {action} {name} in the store: {error.strerror or error}") from error
