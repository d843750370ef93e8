"""Garbage collection (`tokenloom gc`): finds and removes what no kept version of a dataset needs.

Roots are, for each dataset, its latest manifests and those of its latest versions, the manifests that pins name, those
that mixtures read, and those that a process holds a read lock on. Roots keep the actions, outputs and rejects of their
chunks, the images of these, and tokenizers. Outputs of stages that the dataset's latest build drops (`keep: sequences`)
are not kept.

Recently written or touched blobs are never removed, nor what a recent action names, nor what a running build wrote or
found. Blobs are removed in an order in which no remaining version or action ever names a removed object. In a bucket,
blobs are removed in bulk, each batch right after it was looked up again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain

from tokenloom.errors import ConfigError, StoreAddressError, StoreError
from tokenloom.resources.file_lock import lock_exclusive
from tokenloom.resources.store.actions import ACTIONS, OBJECT_KINDS, action_key, read_action
from tokenloom.resources.store.artifact_store import ArtifactStore
from tokenloom.resources.store.blobs.blobs import (
    MEDIA,
    OBJECTS,
    RENEW_SECONDS,
    TOKENIZER_FILE,
    Blob,
    media_digest,
    object_digest,
)
from tokenloom.resources.store.blobs.folder import Folder, announce_collection, in_use_since
from tokenloom.resources.store.bucket_build import marked_collection, running_builds
from tokenloom.resources.store.manifest import Manifest, is_manifest, manifests
from tokenloom.resources.store.objects import IMAGES, ObjectStore, media_of, skipping_damaged
from tokenloom.resources.store.versions import LOADED, Version

BUCKET_AGE = timedelta(seconds=2 * RENEW_SECONDS)
"""Minimum age of what is removed from a bucket: a build uses blobs up to RENEW_SECONDS old without touching them."""

BATCH = 1000
"""Blobs that are removed from a bucket at once."""


@dataclass
class Garbage:
    """Blobs that were removed, or would be.

    Attributes:
        versions, actions, objects, media, tokenizers: the blobs, by kind.
        owners: by object digest, the dataset whose removed version or dropped stage names the object. An object without
            an owner was, as far as is known, never published.
    """

    versions: list[Blob] = field(default_factory=list)
    actions: list[Blob] = field(default_factory=list)
    objects: list[Blob] = field(default_factory=list)
    media: list[Blob] = field(default_factory=list)
    tokenizers: list[Blob] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)


@dataclass
class _States:
    """What to do with a dataset: manifests to keep, stages whose outputs it drops, and versions to remove, by blob."""

    kept: set[tuple[str, str]]
    dropped: set[str]
    removed: dict[Blob, Version]


def collect(
    store: ArtifactStore,
    keep: int = 3,
    older_than: timedelta = timedelta(days=1),
    delete: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> Garbage:
    """Find garbage, and with `delete` remove it.

    Args:
        keep: number of versions with different content to keep per dataset, latest first.
        older_than: blobs written or touched more recently than this are kept; in a bucket at least BUCKET_AGE if
            `delete`.
        delete: remove the garbage; by default it is only listed.
        on_step: called with a description of each step before it starts.

    Raises:
        ConfigError: `older_than` is too short for a bucket.
        StoreAddressError: no store exists at the address.
        StoreError: a root cannot be read, so what it needs is unknown. Nothing has been removed.
    """
    return _Collection(store, keep, older_than, delete, on_step).run()


class _Collection:
    def __init__(
        self, store: ArtifactStore, keep: int, older_than: timedelta, delete: bool, on_step: Callable[[str], None]
    ):
        self._store, self._keep, self._delete, self._on_step = store, keep, delete, on_step
        self._age, self._since = older_than, 0.0
        self._garbage = Garbage()
        self._objects: set[str] = set()
        self._actions: set[str] = set()
        self._media: set[str] = set()
        self._marked: set[str] = set()  # manifests of kept versions

    def run(self) -> Garbage:
        if self._store.blobs.size("FORMAT") is None:
            raise StoreAddressError(f"no store found at {self._store.address}")
        with ExitStack() as collecting:
            if self._delete and not isinstance(self._store.blobs, Folder):
                collecting.enter_context(marked_collection(self._store.blobs))
            marks = [] if isinstance(self._store.blobs, Folder) else running_builds(self._store.blobs)
            # before any manifest is read: a build that starts later touches what it uses, which is then newer than this
            self._since = min([self._kept_since(), *(mark.since for mark in marks)])
            self._on_step("reading manifests")
            states = {name: self._states(name) for name in self._store.names()}
            for name, state in states.items():
                self._mark(state.kept, name, state.dropped)
            for digest in {digest for mark in marks for digest in mark.manifests}:
                with skipping_damaged():  # a build does not reuse a manifest that it cannot read
                    self._mark([("", digest)], "a running build")
            # versions, then actions, then objects: what names a blob goes before the blob
            self._remove_versions(states)
            self._on_step("listing actions")
            self._sweep_actions()
            self._on_step("listing objects")
            self._sweep_objects()
        return self._garbage

    def _kept_since(self) -> float:
        now, blobs, unsafe = time.time(), self._store.blobs, self._delete and self._age < BUCKET_AGE
        if not isinstance(blobs, Folder):
            if unsafe:
                hours = BUCKET_AGE // timedelta(hours=1)
                message = f"must be at least {hours}h with --delete for a store in a bucket, which has no locks"
                raise ConfigError.at("--older-than", message)
            return now - self._age.total_seconds()
        if unsafe:
            now = announce_collection(blobs)
        return min(now - self._age.total_seconds(), in_use_since(blobs))

    def _states(self, name: str) -> _States:
        latest = {stage: self._store.manifest_digest(name, stage) for stage in self._store.stages(name)}
        dropped = {stage for stage, digest in latest.items() if self._manifest(digest, name).droppable}
        pins = self._store.pins.of(name)
        kept = {*latest.items()}.union(*(pin.stages.items() for pin in pins))
        removed: dict[Blob, Version] = {}
        digests: set[str] = set()
        pinned = {pin.digest for pin in pins}
        for blob in reversed(self._store.versions.blobs(name)):
            if (version := self._store.versions.read(blob.name)) is None:
                raise StoreError(
                    f"{blob.name} cannot be read; `tokenloom verify {name}` removes it, then run `tokenloom gc` again"
                )
            # from the latest one back: states of equal content count once
            if len(digests) < self._keep or version.digest in digests:
                digests.add(version.digest)
            elif version.digest not in pinned:
                with self._lock(version.stages.get(LOADED)) as free:
                    if free:  # else a loader reads it
                        removed[blob] = version
                        continue
            kept.update(version.stages.items())
        return _States(kept, dropped, removed)

    def _mark(self, roots: Iterable[tuple[str, str]], name: str, dropped: Collection[str] = ()) -> None:
        """Mark manifests, and all that they name, as needed, unless they are marked; but not the outputs of stages that
        the dataset drops. `name` is the dataset, for errors."""
        unmarked = [root for root in roots if root[1] not in self._marked]
        for _, digest, manifest in manifests(unmarked, lambda _, digest: self._manifest(digest, name)):
            self._marked.add(digest)
            self._objects.add(digest)
            for kind, digests in manifest.inventory():
                if kind == "key":
                    self._actions.update(digests)
                elif kind == "output" and manifest.stage in dropped:
                    self._garbage.owners |= dict.fromkeys(digests, name)
                elif kind != "engine":
                    self._objects.update(digests)
                    if kind == "output" and manifest.counters.get(IMAGES):
                        self._mark_media(digests)
            self._mark(manifest.pinned.items(), name)

    def _mark_media(self, outputs: Iterable[str]) -> None:
        for digest in outputs:
            with skipping_damaged():  # the next build recomputes such an output, and stores its images again
                self._media |= media_of(self._store.objects.get(digest))

    def _manifest(self, digest: str, name: str) -> Manifest:
        try:
            if self._store.objects.is_intact(digest):
                return Manifest.from_table(self._store.objects.get(digest))
        except StoreError as error:
            problem = str(error)
        else:
            problem = f"object {digest} is damaged"
        raise StoreError(
            f"a manifest of {name} cannot be read, so what it needs is unknown: {problem}; "
            f"run `tokenloom verify {name}`, build the dataset, then run `tokenloom gc` again"
        )

    def _remove_versions(self, states: dict[str, _States]) -> None:
        """Remove old versions. The manifest that a loader would lock is removed together with its version, under an
        exclusive lock, so that no loader can open it in between."""
        for name, state in states.items():
            for blob, version in state.removed.items():
                self._record_owner(version, name)
                digest = version.stages.get(LOADED)
                with self._lock(digest) as free:
                    # in the meantime, it can have been opened, pinned, or published again
                    pinned = {pin.digest for pin in self._store.pins.of(name)}
                    manifest = self._store.blobs.stat(ObjectStore.blob(digest)) if digest else None
                    if not free or version.digest in pinned or (manifest is not None and self._is_recent(manifest)):
                        self._mark(version.stages.items(), name, state.dropped)
                        continue
                    self._garbage.versions.append(blob)
                    if self._delete:
                        # the version before its manifest: no version that can be listed names a removed one
                        self._store.blobs.delete(blob.name)
                        if digest and digest not in self._objects:
                            self._remove_locked(ObjectStore.blob(digest), self._garbage.objects)

    def _record_owner(self, version: Version, name: str) -> None:
        """Record the dataset of the objects that a version names, as far as its manifests are readable."""

        def read(_: str, digest: str) -> Manifest | None:
            self._garbage.owners[digest] = name
            with suppress(StoreError):
                return Manifest.from_table(self._store.objects.get(digest))

        for _, _, manifest in manifests(version.stages.items(), read):
            objects = (digests for kind, digests in manifest.inventory() if kind in OBJECT_KINDS)
            self._garbage.owners |= dict.fromkeys(chain.from_iterable(objects), name)

    def _sweep_actions(self) -> None:
        unknown = [
            blob
            for blob in self._store.blobs.below(ACTIONS)
            if (key := action_key(blob.name)) is not None and key not in self._actions
        ]
        removed = self._remove_all([blob.name for blob in unknown if not self._is_recent(blob)], self._garbage.actions)
        # those that stay can belong to a running build, which needs the objects that they name
        names = [blob.name for blob in unknown if blob.name not in removed]
        for name, data in self._store.blobs.read_all(names).items():
            if (action := read_action(name, data)) is not None:
                self._objects.update(action.objects.values())
                if action.counters.get(IMAGES):
                    self._mark_media([action.output])

    def _sweep_objects(self) -> None:
        unmarked: dict[str, Blob] = {}
        for blob in self._store.blobs.below(OBJECTS):
            digest = object_digest(blob.name)
            if digest is not None and digest not in self._objects and not self._is_recent(blob):
                unmarked[digest] = blob
        # all locks are looked at before any object goes: an open manifest keeps what it names
        for digest in unmarked:
            with self._lock(digest) as free:
                if free:
                    continue
                # an output that a build is touching, or a manifest that no version names any more
                if self._store.objects.is_intact(digest) and not is_manifest(self._store.objects.get(digest)):
                    self._objects.add(digest)
                else:
                    self._mark([("", digest)], "a running process")
        folders: dict[str, list[Blob]] = {}
        for blob in self._store.blobs.below("tokenizers"):
            if file := TOKENIZER_FILE.fullmatch(blob.name):
                folders.setdefault(file[1], []).append(blob)
        for digest, files in folders.items():
            if digest not in self._objects and not any(map(self._is_recent, files)):
                self._remove_all([blob.name for blob in files], self._garbage.tokenizers)
        images = [
            blob.name
            for blob in self._store.blobs.below(MEDIA)
            if (digest := media_digest(blob.name)) and digest not in self._media and not self._is_recent(blob)
        ]
        garbage = [blob.name for digest, blob in unmarked.items() if digest not in self._objects]
        if self._delete:
            self._on_step(f"removing {len(garbage):,} objects")
        self._remove_all(garbage, self._garbage.objects)
        self._remove_all(images, self._garbage.media)

    def _remove_all(self, names: list[str], removed: list[Blob]) -> set[str]:
        """Remove blobs (without `delete`, only record them); returns the names of those that no build has touched since
        they were listed."""
        blobs = self._store.blobs
        if isinstance(blobs, Folder):
            return {name for name in names if self._remove(name, removed)}
        gone = set[str]()
        for start in range(0, len(names), BATCH):
            # looked up again right before: the shorter the time in between, the fewer blobs are touched meanwhile
            still_there = blobs.found(names[start : start + BATCH])
            old = {name: blob for name, blob in still_there.items() if not self._is_recent(blob)}
            if self._delete:
                blobs.delete_all(old)
            removed += [old[name] for name in sorted(old)]
            gone |= old.keys()
        return gone

    def _remove(self, name: str, removed: list[Blob]) -> bool:
        """Remove a blob (without `delete`, only record it); False if a build has touched it since it was listed."""
        with self._lock_blob(name) as free:
            return free and self._remove_locked(name, removed)

    def _remove_locked(self, name: str, removed: list[Blob]) -> bool:
        # under the lock: a build that touched it since it was listed keeps it
        blob = self._store.blobs.stat(name)
        if blob is None or self._is_recent(blob):
            return False
        if self._delete:
            self._store.blobs.delete(name)
        removed.append(blob)
        return True

    def _is_recent(self, blob: Blob) -> bool:
        return blob.modified >= self._since

    def _lock(self, digest: str | None) -> AbstractContextManager[bool]:
        return nullcontext(True) if digest is None else self._lock_blob(ObjectStore.blob(digest))

    def _lock_blob(self, name: str) -> AbstractContextManager[bool]:
        """Lock a blob exclusively while the context lasts; its value is False if a process has it open. A bucket has no
        locks: there, only the age of a blob protects it."""
        blobs = self._store.blobs
        return lock_exclusive(blobs.root / name) if isinstance(blobs, Folder) else nullcontext(True)


def total(blobs: Iterable[Blob]) -> int:
    """Return the total size of blobs in bytes."""
    return sum(blob.size for blob in blobs)
