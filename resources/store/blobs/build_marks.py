"""Marks of running builds and of collections in a folder, so that `gc` keeps what running builds use.

A build marks itself with a locked file, `scratch/<id>.build`. Its modification time is the start of the build: what is
written or touched since then is in use. The lock ends with the process, even if it is killed; a stopped process keeps
it. Where files cannot be locked, a mark has no effect.

A build touches only what is older than RENEW_SECONDS, until a collection that removes younger blobs announces itself
with the folder `scratch/gc`. Builds that start within a day of that touch everything that they find, and are marked as
`scratch/<id>.exact.build`. A build and a collection each leave their sign before they look for the other's, so at least
one of them sees the other.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from tokenloom.errors import StoreUnavailableError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.file_lock import lock_exclusive, lock_shared
from tokenloom.resources.store.blobs.blobs import RENEW_SECONDS
from tokenloom.resources.store.blobs.folder import SCRATCH, STALE_SECONDS, Folder, store_errors

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
    """Write the mark of a build; returns its name, and the file that holds its lock."""
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
