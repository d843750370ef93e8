"""Marks of running builds and of collections in a bucket, so that `gc` keeps what running builds use.

A build writes `scratch/<id>.build` with its start and the manifests that it reuses, before it looks at what they name;
`gc` keeps what they name, and what was written or touched shortly before that start or later. A collection writes
`scratch/<id>.gc` before it reads marks; a build that finds one relies on no manifest: it touches all old blobs that it
reuses. Each leaves its sign before it looks for the other's, so at least one of them sees the other.

Signs are written again every hour and count for a day after that: a bucket cannot show that a process has ended.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread

from tokenloom.errors import StoreError
from tokenloom.resources.store.blobs.blobs import RENEW_SECONDS, Blobs
from tokenloom.resources.store.blobs.folder import SCRATCH, STALE_SECONDS
from tokenloom.resources.store.blobs.object_names import is_digest
from tokenloom.resources.store.records import decode_record, encode_record

BUILD, COLLECTION = ".build", ".gc"
REPEAT_SECONDS = 3600.0


@dataclass(frozen=True)
class Mark:
    """The mark of a running build.

    Args:
        since: `gc` keeps blobs written or touched since then (POSIX seconds).
        manifests: object digests of the manifests that the build reuses.
    """

    since: float
    manifests: tuple[str, ...]


@contextmanager
def marked_build(blobs: Blobs, manifests: Iterable[str]) -> Iterator[bool]:
    """Mark a build as running while the context lasts.

    Args:
        manifests: object digests of the manifests that it reuses.

    Yields:
        Whether a collection may be running that has not seen the mark.
    """
    with _sign(blobs, BUILD, {"started": time.time(), "manifests": sorted(manifests)}):
        yield bool(_signs(blobs, COLLECTION))


@contextmanager
def marked_collection(blobs: Blobs) -> Iterator[None]:
    """Make builds that start while the context lasts touch the old blobs that they reuse."""
    with _sign(blobs, COLLECTION, {}):
        yield


def running_builds(blobs: Blobs) -> list[Mark]:
    """Return the marks of builds that can be running."""
    marks = list[Mark]()
    for name, data in blobs.read_all(_signs(blobs, BUILD)).items():
        with suppress(ValueError, KeyError, TypeError):
            content = decode_record(name, data)
            manifests = tuple(digest for digest in content["manifests"] if is_digest(digest))
            marks.append(Mark(float(content["started"]) - RENEW_SECONDS, manifests))
    return marks


@contextmanager
def _sign(blobs: Blobs, kind: str, content: object) -> Iterator[None]:
    name, ended = f"{SCRATCH}/{uuid.uuid4().hex}{kind}", Event()
    data = encode_record(name, content)

    def repeat() -> None:
        while not ended.wait(REPEAT_SECONDS):
            with suppress(StoreError):
                blobs.write(name, data)

    blobs.write(name, data)
    repeating = Thread(target=repeat, name="tokenloom-mark", daemon=True)
    repeating.start()
    try:
        yield
    finally:
        ended.set()
        repeating.join()
        with suppress(StoreError):  # it counts for a day
            blobs.delete(name)


def _signs(blobs: Blobs, kind: str) -> list[str]:
    """Return the names of signs of a kind, and delete those that no longer count."""
    listed = [*blobs.below(SCRATCH)]
    stale = [blob.name for blob in listed if blob.modified < time.time() - STALE_SECONDS]
    if stale:
        blobs.delete_all(stale)
    return [blob.name for blob in listed if blob.name.endswith(kind) and blob.name not in stale]
