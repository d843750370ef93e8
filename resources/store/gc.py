"""Garbage: what no published state that is kept reaches.

Roots are, for each dataset, the latest manifests and those of its latest versions, those that mixtures read, and those
that a process has open. They keep their chunks' actions, outputs and rejects, and tokenizers; outputs of a stage that
the dataset's latest build lets go (`keep: sequences`) are not kept. What was written or touched lately stays, and what
a young action names. What is removed goes in such an order that no version or action is left that names what is gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from tokenloom.errors import StoreAddressError, StoreError
from tokenloom.resources.store.actions import ACTIONS, action_key, read_action
from tokenloom.resources.store.artifact_store import ArtifactStore
from tokenloom.resources.store.blobs.blobs import Blob
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.store.hold import claimed
from tokenloom.resources.store.manifest import Manifest
from tokenloom.resources.store.objects import OBJECTS, ObjectStore, object_digest
from tokenloom.resources.store.versions import LOADED, VERSIONS, Version

_TOKENIZER_FILE = re.compile(r"tokenizers/([0-9a-f]{64})/[^/]+")


@dataclass
class Garbage:
    """What is removed, or would be.

    Attributes:
        versions, actions, objects, tokenizers: blobs, by kind.
        owners: for an object that a dataset let go, the dataset; others were never published, or by nobody known.
    """

    versions: list[Blob] = field(default_factory=list)
    actions: list[Blob] = field(default_factory=list)
    objects: list[Blob] = field(default_factory=list)
    tokenizers: list[Blob] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)


@dataclass
class _States:
    """A dataset's manifests by stage, its versions by blob that are kept, and those that are not."""

    latest: dict[str, str]
    kept: dict[Blob, Version]
    beyond: dict[Blob, Version]

    def manifests(self) -> set[str]:
        """Digests of the manifests that are kept."""
        return {
            digest
            for stages in (self.latest, *(one.stages for one in self.kept.values()))
            for digest in stages.values()
        }


def collect(
    store: ArtifactStore,
    keep: int = 3,
    older_than: timedelta = timedelta(days=1),
    delete: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> Garbage:
    """Find what nothing needs, and with `delete` remove it.

    Args:
        keep: so many of a dataset's latest states stay, told apart by their content.
        older_than: what was written or touched more lately stays.
        on_step: told what is done next.

    Raises:
        StoreAddressError: there is no store.
        StoreError: a root cannot be read, so that what it needs is not known; nothing has been removed then.
    """
    return _Collection(store, keep, older_than, delete, on_step).run()


class _Collection:
    def __init__(
        self, store: ArtifactStore, keep: int, older_than: timedelta, delete: bool, on_step: Callable[[str], None]
    ):
        self._store, self._keep, self._delete, self._tell = store, keep, delete, on_step
        self._since = time.time() - older_than.total_seconds()
        self._garbage = Garbage()
        self._objects: set[str] = set()
        self._actions: set[str] = set()

    def run(self) -> Garbage:
        if self._store.blobs.size("FORMAT") is None:
            raise StoreAddressError(f"there is no store at {self._store.address}")
        self._tell("reading manifests")
        names = {blob.name.split("/")[1] for kind in ("datasets", VERSIONS) for blob in self._store.blobs.below(kind)}
        states = {name: self._states(name) for name in sorted(names)}
        for name, state in states.items():
            self._reach(name, state)
        self._release(states)
        self._tell("listing actions")
        self._sweep_actions()
        self._tell("listing objects")
        self._sweep_objects()
        return self._garbage

    def _states(self, name: str) -> _States:
        latest = {stage: self._store.manifest_digest(name, stage) for stage in self._store.stages(name)}
        kept: dict[Blob, Version] = {}
        beyond: dict[Blob, Version] = {}
        digests: set[str] = set()
        for blob in reversed(self._store.versions.blobs(name)):
            if (version := self._store.versions.read(blob.name)) is None:
                raise StoreError(
                    f"{blob.name} cannot be read; `tokenloom verify {name}` removes it, then collect again"
                )
            if len(digests) < self._keep or version.digest in digests:
                digests.add(version.digest)
                kept[blob] = version
            elif self._is_held(version):
                kept[blob] = version
            else:
                beyond[blob] = version
        return _States(latest, kept, beyond)

    def _is_held(self, version: Version) -> bool:
        with self._unheld(version.stages.get(LOADED)) as free:
            return not free

    def _reach(self, name: str, state: _States) -> None:
        """Mark everything that a dataset's kept manifests need."""
        found = {digest: self._manifest(digest, name) for digest in state.manifests()}
        dropped = {stage for stage, digest in state.latest.items() if found[digest].droppable}
        for digest, manifest in found.items():
            self._mark(digest, manifest, name if manifest.stage in dropped else None)
        for digest in {digest for manifest in found.values() for digest in manifest.pinned.values()}:
            self._mark(digest, self._manifest(digest, name))

    def _mark(self, digest: str, manifest: Manifest, drops: str | None = None) -> None:
        self._objects.add(digest)
        self._actions.update(chunk.key for chunk in manifest.chunks)
        self._objects.update(chunk.rejects for chunk in manifest.chunks if chunk.rejects)
        outputs = {chunk.output for chunk in manifest.chunks}
        if drops is None:
            self._objects |= outputs
        else:
            self._garbage.owners |= dict.fromkeys(outputs, drops)
        self._objects |= {named for named in [manifest.facts.get("tokenizer")] if isinstance(named, str)}

    def _manifest(self, digest: str, name: str) -> Manifest:
        try:
            if self._store.objects.is_intact(digest):
                return Manifest.from_table(self._store.objects.get(digest))
        except StoreError as error:
            problem = str(error)
        else:
            problem = f"object {digest} is damaged"
        raise StoreError(
            f"a manifest of {name} cannot be read, so that what it needs is not known: {problem}; "
            f"run `tokenloom verify {name}`, build it, and collect again"
        )

    def _release(self, states: dict[str, _States]) -> None:
        """Let versions go, each with the manifest that a loader would hold, while none can take hold of it."""
        for name, state in states.items():
            for blob, version in state.beyond.items():
                self._garbage.owners |= dict.fromkeys(self._named_by(version), name)
                digest = version.stages.get(LOADED)
                with self._unheld(digest) as free:
                    if not free:  # since a moment ago
                        state.kept[blob] = version
                        self._reach(name, state)
                        continue
                    self._garbage.versions.append(blob)
                    if self._delete:
                        self._store.blobs.delete(blob.name)
                        if digest and digest not in self._objects:
                            self._remove(ObjectStore.blob(digest), self._garbage.objects)

    def _named_by(self, version: Version) -> Iterator[str]:
        """Digests of the objects of a version that goes, as far as it can be read."""
        for digest in version.stages.values():
            yield digest
            try:
                manifest = Manifest.from_table(self._store.objects.get(digest))
            except StoreError:
                continue
            for chunk in manifest.chunks:
                yield from (chunk.output, *([chunk.rejects] if chunk.rejects else []))

    def _sweep_actions(self) -> None:
        for blob in self._store.blobs.below(ACTIONS):
            key = action_key(blob.name)
            if key is None or key in self._actions:
                continue
            young = self._is_young(blob)
            if young or not self._remove(blob.name, self._garbage.actions):
                self._spare(blob.name)

    def _spare(self, name: str) -> None:
        """Mark what an action names that stays."""
        try:
            action = read_action(self._store.blobs.read(name))
        except FileNotFoundError:
            return
        if action is not None:
            self._objects |= {action.output, *([action.rejects] if action.rejects else [])}

    def _sweep_objects(self) -> None:
        unreached: dict[str, Blob] = {}
        for blob in self._store.blobs.below(OBJECTS):
            digest = object_digest(blob.name)
            if digest is not None and digest not in self._objects and not self._is_young(blob):
                unreached[digest] = blob
        for digest in unreached:
            with self._unheld(digest) as free:
                if not free:  # a manifest that no version names
                    self._mark(digest, self._manifest(digest, "a process that runs"))
        folders: dict[str, list[Blob]] = {}
        for blob in self._store.blobs.below("tokenizers"):
            if found := _TOKENIZER_FILE.fullmatch(blob.name):
                folders.setdefault(found[1], []).append(blob)
        for digest, files in folders.items():
            if digest not in self._objects and not any(map(self._is_young, files)):
                for blob in files:
                    self._remove(blob.name, self._garbage.tokenizers)
        doomed = [blob for digest, blob in unreached.items() if digest not in self._objects]
        if self._delete:
            self._tell(f"removing {len(doomed):,} objects")
        for blob in doomed:
            self._remove(blob.name, self._garbage.objects)

    def _remove(self, name: str, removed: list[Blob]) -> bool:
        """Remove a blob, or without `delete` count it, unless somebody relies on it since it was listed."""
        blob = self._store.blobs.stat(name)
        if blob is None or self._is_young(blob):
            return False
        if self._delete:
            self._store.blobs.delete(name)
        removed.append(blob)
        return True

    def _is_young(self, blob: Blob) -> bool:
        return blob.modified > self._since

    @contextmanager
    def _unheld(self, digest: str | None) -> Iterator[bool]:
        """Whether no process holds a manifest; none can while the context lasts. Only folders have holds."""
        if digest is None or not isinstance(self._store.blobs, Folder):
            yield True
            return
        with claimed(self._store.blobs.root / ObjectStore.blob(digest)) as free:
            yield free


def total(blobs: Iterable[Blob]) -> int:
    """Bytes of some blobs."""
    return sum(blob.size for blob in blobs)
