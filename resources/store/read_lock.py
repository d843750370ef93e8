"""Read locks on manifests: `gc` keeps what a process has open.

A read lock is a shared `flock` on the manifest's file, for stores in folders only. The kernel releases it when the
process ends, even if it is killed. Where the platform has no `flock` (Windows), no lock is taken: do not run `gc` while
processes read old versions there.
"""

from __future__ import annotations

import os
from pathlib import Path

from tokenloom.errors import StoreError, StoreUnavailableError
from tokenloom.resources.file_lock import lock_shared


class ReadLock:
    """A shared lock on a file, held as long as this object or an unpickled copy of it exists.

    Raises:
        StoreError: the file has been removed.
    """

    def __init__(self, path: Path):
        self._path = path
        removed = StoreError(f"object {path.stem} has been removed by gc; open the dataset again")
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            raise removed from None
        except OSError as error:
            raise StoreUnavailableError(f"object {path.stem} cannot be read: {error.strerror}") from error
        lock_shared(self._file)
        if not os.fstat(self._file.fileno()).st_nlink:  # gc deleted it between `open` and the lock
            raise removed

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def __reduce__(self) -> tuple[type[ReadLock], tuple[Path]]:
        return ReadLock, (self._path,)
