"""Advisory locks on files, released by the kernel when the process ends.

Without `fcntl` (Windows), and on file systems without locks, no lock is taken: `lock_shared` does nothing and
`lock_exclusive` always reports that the lock is free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:
    fcntl = None


def lock_shared(file: BinaryIO) -> None:
    """Take a shared lock on an open file, waiting for an exclusive lock to be released. It lasts until the file is
    closed."""
    if fcntl is not None:
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(file, fcntl.LOCK_SH)


@contextmanager
def lock_exclusive(path: Path, wait: bool = False, forks: bool = True) -> Iterator[bool]:
    """Try to lock a file exclusively while the context lasts; yields False if another process or thread holds a lock
    on it.

    A file that does not exist counts as free.

    Args:
        wait: wait until the lock is released instead.
        forks: whether processes that this one forks hold the lock too, until they end.
    """
    try:
        file = path.open("rb+" if os.access(path, os.W_OK) else "rb")  # NFS only locks files that are open for writing
    except FileNotFoundError:
        yield True
        return
    with file:
        if not forks and fcntl is not None:
            os.register_at_fork(after_in_child=file.close)
        yield _lock(file, wait)


def _lock(file: BinaryIO, wait: bool) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # the file system has no locks
            pass
    return True
