"""A build in a bucket: what it reads and lists when it starts, so that it sends few requests afterwards, and its
mark.

A build writes `scratch/<id>.build` with its start and the manifests that it reuses, before it looks at what they name;
`gc` keeps what they name, and what was written or touched shortly before that start or later. A collection writes
`scratch/<id>.gc` before it reads marks; a build that finds one relies on no manifest: it touches all old blobs that it
reuses. Each leaves its sign before it looks for the other's, so at least one of them sees the other.

Signs are written again every hour and count for a day after that: a bucket cannot show that a process has ended.

The latest manifests of a dataset state what its chunks became. They are read together; one listing shows which of the
objects and actions that they name exist. The build's mark keeps these from `gc`, so none of them is touched.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Any

from tokenloom.errors import StoreError, StoreUnavailableError
from tokenloom.resources.store.actions import (
    ACTIONS,
    OBJECT_KINDS,
    Action,
    ActionStore,
    CertificateStore,
    KeyParts,
    ProbeStore,
    decode_record,
    encode_record,
)
from tokenloom.resources.store.blobs.blobs import RENEW_SECONDS, Blob, Blobs, is_digest
from tokenloom.resources.store.blobs.bucket import Bucket, at_once, is_same
from tokenloom.resources.store.blobs.folder import SCRATCH, STALE_SECONDS
from tokenloom.resources.store.manifest import LENGTHS, Manifest
from tokenloom.resources.store.manifest_chunks import KnownActions
from tokenloom.resources.store.objects import ObjectStore

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
        # looked up after the mark is written: a collection that starts later reads the mark
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
            # a build uses blobs up to RENEW_SECONDS old without touching them
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
    listed = [*blobs.below(SCRATCH)]
    stale = [blob.name for blob in listed if blob.modified < time.time() - STALE_SECONDS]
    if stale:
        blobs.delete_all(stale)
    return [blob.name for blob in listed if blob.name.endswith(kind) and blob.name not in stale]


LISTED = 20
"""Most requests for a listing of all actions, which shows that results of new chunks do not exist."""


class BucketBuild:
    """A running build.

    Args:
        pointers: blob names of the pointers to the dataset's latest manifests.

    Attributes:
        pointers: the content of each, by blob name; None: it does not exist. Damaged ones are not listed.
        manifests: those of the manifests that can be read, by object digest.
    """

    def __init__(self, bucket: Bucket, objects: ObjectStore, pointers: Sequence[str]):
        self._bucket, self._objects = bucket, objects
        self.pointers: dict[str, dict[str, Any] | None] = {}
        records = bucket.read_all(pointers)
        for name in pointers:
            with suppress(ValueError):
                content = decode_record(name, records[name]) if name in records else None
                if content is None or (isinstance(content, dict) and is_digest(content.get("manifest"))):
                    self.pointers[name] = content
        self.manifests = self._read([content["manifest"] for content in self.pointers.values() if content])
        named = self._read([digest for one in self.manifests.values() for digest in one.named.values()])
        self.manifests |= named
        is_stored = partial(self.is_stored, dropped=False)
        self._joined = [KnownActions(one.chunks, is_stored) for one in named.values() if one.stage == LENGTHS]
        self._keys: set[str] | None = None
        self._void: set[str] = set()

    def _read(self, digests: Sequence[str]) -> dict[str, Manifest]:
        def read(digest: str) -> Manifest | None:
            try:
                return Manifest.from_table(self._objects.get_intact(digest))
            except StoreUnavailableError:
                raise
            except StoreError:
                return None  # reported when it is needed

        read_all = zip(digests, at_once(read, digests), strict=True)
        return {digest: manifest for digest, manifest in read_all if manifest is not None}

    @contextmanager
    def running(self, certificates: CertificateStore) -> Iterator[None]:
        """Mark the build as running while the context lasts, and list what its manifests name."""
        with marked_build(self._bucket, self.manifests) as collecting:
            if collecting:
                self.manifests.clear()  # what they name is looked up one by one, and touched if it is old
            else:
                self._list(certificates)
            try:
                yield
            finally:
                # without the mark, `gc` can remove what was listed
                self._bucket.marked.clear()

    def _list(self, certificates: CertificateStore) -> None:
        named = defaultdict[str, set[str]](set)
        for manifest in self.manifests.values():
            for kind, digests in manifest.inventory():
                named[kind].update(digests)
        keys = {*map(ActionStore.blob, named["key"])}

        def objects() -> dict[str, Blob]:
            digests = {*self.manifests}.union(*(named[kind] for kind in OBJECT_KINDS))
            return self._bucket.found([*map(ObjectStore.blob, digests)])

        def actions() -> dict[str, Blob]:
            listed = self._bucket.all_below(ACTIONS, max(LISTED, len(keys)))
            # too many actions to list: those of the manifests are looked up, and new keys one by one
            if listed is None:
                return self._bucket.found(keys)
            self._keys = {*listed}
            return {name: listed[name] for name in keys if name in listed}

        def tokenizer_files() -> dict[str, Blob]:
            folders = (f"tokenizers/{digest}" for digest in named["tokenizer"])
            return {blob.name: blob for folder in folders for blob in self._bucket.below(folder)}

        def void() -> dict[str, Blob]:
            self._void = {engine for engine in named["engine"] if certificates.is_void(engine)}
            return {}

        for listed in at_once(lambda look: look(), [objects, actions, tokenizer_files, void]):
            self._bucket.marked |= listed

    def is_stored(self, key: str, action: Action, dropped: bool) -> bool:
        """Return whether the listing has an action and what it names.

        Args:
            dropped: a missing output counts too.
        """
        kept = self._bucket.kept
        output = kept(ObjectStore.blob(action.output))
        right = action.engine not in self._void and (output.size == action.bytes if output else dropped)
        named = (ActionStore.blob(key), *map(ObjectStore.blob, action.beside))
        return right and all(kept(name) for name in named)

    def find(self, key: str) -> Action | None:
        """Return the action under the key of joined lengths, if it is known without asking the store."""
        return next((action for actions in self._joined if (action := actions.get(key)) is not None), None)

    def lacks(self, key: str) -> bool:
        """Whether it is known that no action has a key."""
        return self._keys is not None and ActionStore.blob(key) not in self._keys

    def add(self, key: str) -> None:
        """Note that the build stores an action."""
        if self._keys is not None:
            self._keys.add(ActionStore.blob(key))

    def publish_again(self, folder: str) -> None:
        """Write those pointers again that another build has replaced since this one read or wrote them: the build that
        ends last decides, as in a folder."""
        records = {name: encode_record(name, content) for name, content in self.pointers.items() if content}
        stored = {blob.name: blob for blob in self._bucket.below(folder)}
        replaced = [name for name, data in records.items() if not is_same(stored.get(name), data)]
        at_once(lambda name: self._bucket.write(name, records[name]), replaced)

    def note_probes(self, probes: ProbeStore) -> None:
        """Add the probes that the manifests state, so that they are not read."""
        for manifest in self.manifests.values():
            if (parts := KeyParts.from_json(manifest.parts)) is not None:
                probes.note(parts.stage, parts.version, parts.libraries, parts.probe)
