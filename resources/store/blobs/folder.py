"""Blobs in a folder. Writes are atomic: a file is written to `scratch`, synced to disk, then renamed.

Reads and writes take no locks. Listing does not follow symbolic links, so that nothing outside the folder is ever
deleted.

A build marks itself with a locked file, `scratch/<id>.build`. Its modification time is the start of the build: what is
written or touched since then is in use. The lock ends with the process, even if it is killed; a stopped process keeps
it. Where files cannot be locked, a mark has no effect.

A build touches only what is older than RENEW_SECONDS, until a collection that removes younger blobs announces itself
with the folder `scratch/gc`. Builds that start within a day of that touch everything that they find, and are marked as
`scratch/<id>.exact.build`. A build and a collection each leave their sign before they look for the other's, so at least
one of them sees the other.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tokenloom.errors import StoreError, StoreRefusedError, StoreUnavailableError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.file_lock import lock_exclusive, lock_shared
from tokenloom.resources.store.blobs.blobs import RENEW_SECONDS, Blob, renew

SCRATCH = "scratch"
STALE_SECONDS = 24 * 3600


def _open_regular(path: str, flags: int) -> int:
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # a pipe would block, and a device never end
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.open(path, flags)


class Folder:
    """Blobs in a folder, which hosts can share over a network file system."""

    cache = None

    def __init__(self, root: Path):
        self.root = root
        self._prefix = f"{root}{os.sep}"
        self._scratch = root / SCRATCH
        self._touching: list[float] = []

    @property
    def address(self) -> str:
        return str(self.root)

    def read(self, name: str) -> bytes:
        path = self._file(name)
        with store_errors(self.root, f"cannot read {name}"), open(path, "rb", opener=_open_regular) as file:
            return file.read()

    def read_all(self, names: Collection[str]) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        for name in names:
            with suppress(FileNotFoundError):
                contents[name] = self.read(name)
        return contents

    def size(self, name: str) -> int | None:
        return found.size if (found := self.stat(name)) else None

    def stat(self, name: str) -> Blob | None:
        try:
            found = os.stat(self._file(name))  # noqa: PTH116
        except OSError:
            return None
        return Blob(name, found.st_size, found.st_mtime)

    def found(self, names: Collection[str]) -> dict[str, Blob]:
        return {name: blob for name in names if (blob := self.stat(name))}

    def kept(self, name: str) -> Blob | None:
        """Return None: a file is looked up in no time."""
        return None

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._write(name, data, Path.replace)

    def _write(self, name: str, data: bytes | memoryview, publish: Callable[[Path, Path], Any]) -> Any:
        path, temporary = self._path(name), self._scratch / uuid.uuid4().hex
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                # before the rename, or a power failure could leave the name without the bytes
                os.fsync(file.fileno())
            return publish(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _refused(self.root, f"cannot write {path.name}", error) from error

    def create(self, name: str, data: bytes | memoryview) -> None:
        try:
            exists = self.size(name) == len(data)
            if exists:  # with Arrow: Python compares a memoryview byte by byte, and holds the GIL
                exists = pa.py_buffer(self._path(name).read_bytes()).equals(pa.py_buffer(data))
        except OSError:
            exists = False
        if not exists or renew(self, name) is None:  # `gc` removed it in the meantime
            self.write(name, data)

    def create_all(self, contents: Mapping[str, bytes | memoryview]) -> None:
        for name, data in contents.items():
            self.create(name, data)

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        return self._write(name, data, _link)

    def below(self, prefix: str) -> Iterator[Blob]:
        if (self.root / prefix).is_symlink():
            raise StoreError(
                f"{prefix} in the store {self.root} is a symbolic link, which is not followed; "
                "replace it with a folder that has its content"
            )
        try:
            unsorted = os.scandir(self.root / prefix)
            # a folder sorts with its slash, as the names of the blobs in it do
            entries = sorted(unsorted, key=lambda entry: entry.name + "/" * entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _refused(self.root, f"cannot list {prefix or 'its files'}", error) from error
        for entry in entries:
            if entry.is_dir():
                yield from self.below(f"{prefix}/{entry.name}".lstrip("/"))
                continue
            with suppress(FileNotFoundError):  # another process removed it
                found = entry.stat(follow_symlinks=False)
                yield Blob(f"{prefix}/{entry.name}".lstrip("/"), found.st_size, found.st_mtime)

    def delete(self, name: str) -> None:
        with store_errors(self.root, f"cannot remove {name}"), suppress(FileNotFoundError):
            self._path(name).unlink()

    def delete_all(self, names: Collection[str]) -> None:
        for name in names:
            self.delete(name)

    @property
    def fresh_since(self) -> float:
        return max([time.time() - RENEW_SECONDS, *self._touching])

    @contextmanager
    def touching_since(self, moment: float | None) -> Iterator[None]:
        """While the context lasts, builds touch all blobs that are older than a moment; None: only old blobs."""
        moments = [] if moment is None else [moment]
        self._touching += moments
        try:
            yield
        finally:
            for each in moments:
                self._touching.remove(each)

    def touch(self, name: str) -> None:
        path = self._path(name)
        with suppress(OSError), path.open("rb") as file:
            lock_shared(file)  # `gc` locks what it removes: it sees the touch, or the blob is gone
            os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)

    def local(self, name: str) -> Path:
        path = self._path(name)
        if not path.is_file():
            raise FileNotFoundError(name)
        return path

    def fetch(self, names: Iterable[str]) -> None:
        """Do nothing: all blobs are local."""

    def _path(self, name: str) -> Path:
        return Path(self._file(name))

    def _file(self, name: str) -> str:
        """Return the path of a blob's file as text, which is faster than a `Path` where there are thousands. A name
        that leads out of the folder, read from a crafted store, is a StoreError."""
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise StoreError(f"{name[:200]!r} is not a valid name in a store")
        return self._prefix + name

    def sweep(self) -> None:
        limit = time.time() - STALE_SECONDS
        for blob in self.below(SCRATCH):
            if blob.modified < limit:
                with store_errors(self.root, f"cannot open {blob.name}"), lock_exclusive(self.root / blob.name) as free:
                    if free:  # else the mark of a build that runs for longer
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


_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space there"),
    errno.EFBIG: "raise the limit on file sizes (`ulimit -f`)",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make the folder readable and writable"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "remove the file that is in its place"),
}


@contextmanager
def store_errors(root: Path, problem: str) -> Iterator[None]:
    """Raise errors of the file system as StoreUnavailableError, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(root, problem, error) from error


def _refused(root: Path, problem: str, error: OSError) -> StoreUnavailableError:
    """Return the error for an operation that the file system refused: the stored data is not damaged."""
    if not root.is_dir() and root.exists():
        return StoreUnavailableError(
            f"the store {root} is a file, not a folder; choose another (--store or $TOKENLOOM_STORE)"
        )
    remedy = _REMEDIES.get(error.errno or 0, "check the file system")
    kind = StoreRefusedError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreUnavailableError
    return kind(
        f"the store {root}: {problem}: {error.strerror or error}; {remedy}, or use another store (--store or "
        "$TOKENLOOM_STORE)"
    )


COLLECTION = f"{SCRATCH}/gc"
BUILD, EXACT, ONLY = ".build", ".exact.build", ".only"
WAIT_SECONDS = 1.0


@contextmanager
def running_build(folder: Folder) -> Iterator[None]:
    """Mark a build as running while the context lasts.

    If `scratch` is not writable, the build runs without a mark: it can only reuse outputs, and publishes nothing.
    """
    mark = None
    with suppress(StoreUnavailableError):
        mark = _mark(folder)
    if mark is None:
        yield
        return
    name, lock = mark
    since = blob.modified if name.endswith(EXACT) and (blob := folder.stat(name)) else None
    try:
        with lock, folder.touching_since(since):
            yield
    finally:
        folder.delete(name)


def _mark(folder: Folder) -> tuple[str, BinaryIO]:
    unmarked = f"{SCRATCH}/{uuid.uuid4().hex}"
    name = f"{unmarked}{BUILD}"
    folder.write(unmarked, b"")
    with store_errors(folder.root, "cannot mark a build as running"):
        lock = (folder.root / unmarked).open("rb")
        lock_shared(lock)
        (folder.root / unmarked).rename(folder.root / name)  # so that no mark is ever without its lock
        announced = folder.stat(COLLECTION)
        if announced is not None and announced.modified > time.time() - STALE_SECONDS:
            (folder.root / name).rename(folder.root / f"{unmarked}{EXACT}")
            name = f"{unmarked}{EXACT}"
            os.utime(folder.root / name)  # a collection that has not seen this mark began before this time
    return name, lock


@contextmanager
def only_build(folder: Folder, dataset: str, on_wait: Callable[[float], None]) -> Iterator[None]:
    """Wait until no other process holds this context for the same dataset, then hold it.

    It ends with the process, even if it is killed. Where `scratch` is not writable or files cannot be locked, there is
    no waiting: two builds of a dataset compute the same.

    Args:
        on_wait: called every second while another process holds it, with the number of seconds so far.
    """
    lock, started = folder.root / SCRATCH / f"{digest_json(dataset)[:32]}{ONLY}", time.monotonic()
    while True:
        with suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
        with lock_exclusive(lock) as free:
            if free:
                yield
                return
        on_wait(time.monotonic() - started)
        time.sleep(WAIT_SECONDS)


def in_use_since(folder: Folder) -> float:
    """Return the earliest time at which a blob that a running build uses can have been written or touched."""
    since = time.time()
    for blob in [*folder.below(SCRATCH)]:
        if blob.name.endswith(BUILD):
            with lock_exclusive(folder.root / blob.name) as free:
                if not free:
                    # only an exact build touches all that it uses; others leave blobs up to RENEW_SECONDS old
                    since = min(since, blob.modified - (0 if blob.name.endswith(EXACT) else RENEW_SECONDS))
    return since


def announce_collection(folder: Folder) -> float:
    """Make builds that start within a day touch everything that they find.

    Returns:
        The current time by the folder's clock, which can differ from `time.time()`.
    """
    path = folder.root / COLLECTION
    with store_errors(folder.root, f"cannot write {COLLECTION}"):
        path.mkdir(parents=True, exist_ok=True)
        os.utime(path)
        return path.stat().st_mtime
