"""Rereads what a dataset, or the whole store, consists of, and finds what is damaged or missing.

What is damaged is removed, so that the next build makes just that anew; tokenizer files are laid out again from their
object, and a version's record is left with the stages that can still be opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from tokenloom.errors import StoreAddressError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store.actions import ACTIONS, ActionStore, action_key, read_action
from tokenloom.resources.store.artifact_store import ArtifactStore
from tokenloom.resources.store.manifest import Manifest, ManifestChunk
from tokenloom.resources.store.objects import OBJECTS, ObjectStore, is_digest, object_digest
from tokenloom.resources.store.versions import LOADED, VERSIONS, Version

Kind = Literal["output", "rejects", "manifest", "object", "action", "pointer", "version", "tokenizer"]
Problem = Literal["damaged", "missing"]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Args:
        kind: what it is; `object` is one that no manifest names.
        problem: what is wrong with it.
        blob: its name in the store.
        dataset, stage: whose it is, as far as that is known; of several, the first.
        place: of a chunk, where its rows begin; of a tokenizer, the file; of a version's, the version.
        digest: of an object, its name; of an action, its key.
        latest: whether the next build makes it anew; an earlier version's rows may not be there any more.
    """

    kind: Kind
    problem: Problem
    blob: str
    dataset: str = ""
    stage: str = ""
    place: str = ""
    digest: str = ""
    latest: bool = True


@dataclass
class Verification:
    """What was reread.

    Attributes:
        objects, bytes: how many, and their size.
        dropped: outputs that are gone as `keep: sequences` lets them.
        findings: what is wrong.
    """

    objects: int = 0
    bytes: int = 0
    dropped: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class _Expected:
    """An object that should be there with the bytes that its name says, or may be gone."""

    digest: str
    kind: Kind
    dataset: str = ""
    stage: str = ""
    chunk: ManifestChunk | None = None
    latest: bool = True
    may_be_gone: bool = False

    def finding(self, problem: Problem) -> Finding:
        place = self.chunk.place(0) if self.chunk else ""
        blob = ObjectStore.blob(self.digest)
        return Finding(self.kind, problem, blob, self.dataset, self.stage, place, self.digest, self.latest)


def verify(
    store: ArtifactStore,
    dataset: str | None = None,
    engine: ComputeEngine | None = None,
    remove: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Reread everything that a dataset's latest manifests and its versions name, or everything in the store.

    Args:
        dataset: its name, or that of a mixture; None: everything.
        engine: what rereads several at a time.
        remove: whether what is damaged is removed, and mended where that takes no build.
        on_progress: told how many objects are done, and of how many.

    Raises:
        StoreAddressError: there is no store.
        DatasetNotFoundError: there is no such dataset.
    """
    return _Reading(store, engine or ComputeEngine(), remove, on_progress).run(dataset)


class _Reading:
    def __init__(
        self, store: ArtifactStore, engine: ComputeEngine, remove: bool, on_progress: Callable[[int, int], None]
    ):
        self._store, self._engine, self._remove, self._on_progress = store, engine, remove, on_progress
        self._done = Verification()
        self._expected: dict[str, _Expected] = {}
        self._manifests: set[str] = set()
        self._tokenizers: dict[str, str] = {}
        self._keys: set[str] = set()
        self._named: set[str] = set()

    def run(self, dataset: str | None) -> Verification:
        store = self._store
        if store.blobs.size("FORMAT") is None:
            raise StoreAddressError(f"there is no store at {store.address}")
        if dataset is not None and not store.stages(dataset) and not store.versions.blobs(dataset):
            store.manifest_digest(dataset)  # says which datasets there are
        every = (blob.name.split("/")[1] for kind in ("datasets", VERSIONS) for blob in store.blobs.below(kind))
        for name in [dataset] if dataset is not None else sorted(set(every)):
            if name not in self._named:
                self._dataset(name)
        if dataset is None:
            found = [object_digest(blob.name) for blob in store.blobs.below(OBJECTS)]
            known = self._expected.keys() | self._manifests
            self._expected |= {
                digest: _Expected(digest, "object") for digest in found if digest and digest not in known
            }
            self._keys |= {key for blob in store.blobs.below(ACTIONS) if (key := action_key(blob.name))}
        damaged = self._objects(list(self._expected.values()))
        for digest in self._tokenizers.keys() - damaged:
            self._tokenizer(digest)
        for finding in self._engine.map(self._action, sorted(self._keys)):
            if finding:
                self._report(finding)
        return self._done

    def _dataset(self, name: str) -> None:
        """Check a dataset's pointers, versions and manifests, and expect what they name; of a mixture, its datasets."""
        self._named.add(name)
        store, latest, versions = self._store, set[tuple[str, str]](), dict[str, Version]()
        for stage in store.stages(name):
            if (digest := store.latest(name, stage)) is None:
                self._report(Finding("pointer", "damaged", f"datasets/{name}/{stage}.json", name, stage))
            else:
                latest.add((stage, digest))
        for blob in store.versions.blobs(name):
            if (version := store.versions.read(blob.name)) is None:
                self._report(Finding("version", "damaged", blob.name, name))
            else:
                versions[blob.name] = version
        named = latest.union(*(version.stages.items() for version in versions.values()))
        whole: dict[tuple[str, str], Manifest] = {}
        mixed: dict[str, str] = {}
        for stage, digest in sorted(named, key=lambda one: (one not in latest, one)):
            is_latest = (stage, digest) in latest
            if manifest := self._manifest(_Expected(digest, "manifest", name, stage, latest=is_latest)):
                whole[stage, digest] = manifest
                self._expect(manifest, is_latest)
                mixed |= manifest.pinned
        for blob, version in versions.items():
            self._version(name, blob, version, whole, latest)
        for dataset in mixed.keys() - self._named:
            self._dataset(dataset)

    def _manifest(self, expected: _Expected) -> Manifest | None:
        """A manifest, where the bytes are those of its name, and it is the dataset's and the stage's."""
        pointer = f"datasets/{expected.dataset}/{expected.stage}.json" if expected.latest else ""
        misled = Finding("pointer", "damaged", pointer, expected.dataset, expected.stage, "", "", expected.latest)
        self._manifests.add(expected.digest)
        if not is_digest(expected.digest):
            return self._report(misled)
        problem, size = self._problem(expected)
        self._count(size)
        if problem is not None:
            return self._report(expected.finding(problem))
        manifest = Manifest.from_table(self._store.objects.get(expected.digest))
        if (manifest.dataset, manifest.stage) != (expected.dataset, expected.stage):
            return self._report(misled)
        return manifest

    def _version(
        self,
        name: str,
        blob: str,
        version: Version,
        whole: dict[tuple[str, str], Manifest],
        latest: set[tuple[str, str]],
    ) -> None:
        """Leave a version with the stages that can be opened, or will be after the next build."""
        kept = {
            stage: digest for stage, digest in version.stages.items() if {(stage, digest)} & (whole.keys() | latest)
        }
        last = whole.get((LOADED, kept.get(LOADED, "")))
        if LOADED not in kept or (last is not None and last.digest != version.digest):
            self._report(Finding("version", "damaged", blob, name, place=str(version), latest=False))
        elif len(kept) < len(version.stages) and self._remove:
            self._store.versions.put(blob, replace(version, stages=kept))

    def _expect(self, manifest: Manifest, latest: bool) -> None:
        """Expect what a manifest names; the first who names an object is told of."""
        for chunk in manifest.chunks:
            needed = not manifest.droppable if latest else manifest.stage in (LOADED, "tokenizer")
            named: dict[Kind, str | None] = {"output": chunk.output, "rejects": chunk.rejects}
            for kind, digest in named.items():
                if digest is None:
                    continue
                gone = kind == "output" and not needed
                known = self._expected.get(digest)
                if known is None or (known.may_be_gone, not known.latest) > (gone, not latest):
                    stage = manifest.stage
                    self._expected[digest] = _Expected(digest, kind, manifest.dataset, stage, chunk, latest, gone)
            if latest:
                self._keys.add(chunk.key)
            if manifest.stage == "tokenizer":
                self._tokenizers.setdefault(chunk.output, manifest.dataset)

    def _objects(self, expected: list[_Expected]) -> set[str]:
        """Reread objects; returns the digests of those that are damaged or missing."""
        wrong: set[str] = set()
        checked = self._engine.map(lambda one: (one, *self._problem(one)), expected)
        for count, (one, problem, size) in enumerate(checked, 1):
            self._count(size)
            if problem is not None:
                wrong.add(one.digest)
                if problem == "missing" and one.may_be_gone:
                    self._done.dropped += one.latest
                else:
                    self._report(one.finding(problem))
            self._on_progress(count, len(expected))
        return wrong

    def _problem(self, expected: _Expected) -> tuple[Problem | None, int]:
        """What is wrong with an object, and how many bytes were read."""
        try:
            data = self._store.blobs.read(ObjectStore.blob(expected.digest))
        except FileNotFoundError:
            return "missing", 0
        return (None if digest_bytes(data) == expected.digest else "damaged"), len(data)

    def _count(self, size: int) -> None:
        self._done.objects += size > 0
        self._done.bytes += size

    def _action(self, key: str) -> Finding | None:
        blob = ActionStore.blob(key)
        try:
            whole = read_action(self._store.blobs.read(blob)) is not None
        except FileNotFoundError:
            return None
        return None if whole else Finding("action", "damaged", blob, digest=key)

    def _tokenizer(self, digest: str) -> None:
        """Compare a tokenizer's files with the object that holds them."""
        table = self._store.objects.get(digest)
        files = dict(zip(table["file"].to_pylist(), table["content"].to_pylist(), strict=True))
        wrong: dict[str, Problem | None] = {
            name: self._differs(digest, name, content) for name, content in files.items()
        }
        for name, problem in wrong.items():
            if problem is not None:
                blob, dataset = f"tokenizers/{digest}/{name}", self._tokenizers[digest]
                self._done.findings.append(Finding("tokenizer", problem, blob, dataset, "tokenizer", name, digest))
        if any(wrong.values()) and self._remove:
            self._store.publish_tokenizer(digest, files)

    def _differs(self, digest: str, name: str, content: bytes) -> Problem | None:
        try:
            return None if self._store.blobs.read(f"tokenizers/{digest}/{name}") == content else "damaged"
        except FileNotFoundError:
            return "missing"

    def _report(self, finding: Finding) -> None:
        self._done.findings.append(finding)
        if self._remove and finding.problem == "damaged" and finding.blob:
            self._store.blobs.delete(finding.blob)
