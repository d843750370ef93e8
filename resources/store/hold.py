"""Holds on manifests: what a process reads from a store in a folder, `gc` leaves.

A hold is a shared `flock` on the manifest's file. The kernel lets go of it when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenloom.errors import StoreError


class Hold:
    """Holds a file as long as this object, or an unpickled copy of it, lives.

    Raises:
        StoreError: the file is gone.
    """

    def __init__(self, path: Path):
        self._path = path
        gone = StoreError(f"object {path.stem} has been removed by gc; open the dataset again")
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            raise gone from None
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_SH)
        if not os.fstat(self._file.fileno()).st_nlink:
            raise gone

    def __reduce__(self) -> tuple[type[Hold], tuple[Path]]:
        return Hold, (self._path,)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether nobody holds a file; nobody can while the context lasts. Where there are no locks, nobody does."""
    try:
        file = path.open(
            "rb+" if os.access(path, os.W_OK) else "rb"
        )  # over NFS, only what is open for writing is locked
    except FileNotFoundError:
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
