"""Verification (`tokenloom verify`): rereads a dataset or the whole store and finds damaged, missing or unknown blobs.

Damaged blobs are removed, so that the next build recomputes only those. Damaged tokenizer files are restored from their
object. Stages that can no longer be opened are removed from a version's record. Unknown files are only listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import pyarrow as pa

from tokenloom.errors import DamagedObjectError, StoreAddressError, StoreError, StoreUnavailableError
from tokenloom.resources.digest import BLOCK_SIZES, block_digests, digest_bytes
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store.actions import (
    CERTIFICATES,
    PROBES,
    ActionStore,
    action_key,
    decode_record,
    parse_certificate,
    read_action,
    void_key,
)
from tokenloom.resources.store.artifact_store import ArtifactStore
from tokenloom.resources.store.blobs.blobs import TOKENIZER_FILE, is_digest, media_digest, object_digest
from tokenloom.resources.store.blobs.folder import SCRATCH
from tokenloom.resources.store.known_files import FILES
from tokenloom.resources.store.manifest import LENGTHS, NAMED, SIDECARS, TOKENIZERS, Manifest, manifests
from tokenloom.resources.store.manifest_chunks import ManifestChunk
from tokenloom.resources.store.objects import IMAGES, MediaStore, ObjectStore, skipping_damaged
from tokenloom.resources.store.versions import LOADED, PINS, VERSIONS, Pin, Version
from tokenloom.resources.tables.ragged import flat_numbers, list_parts, sides
from tokenloom.resources.tables.sequence_schema import (
    INPUT_IDS,
    SequenceFacts,
    check_lengths,
    check_mapped,
    check_sequences,
    check_sidecar,
    check_tokenizer,
    read_table,
)

Kind = Literal[
    "output",
    "rejects",
    "lengths",
    "manifest",
    "object",
    "image",
    "action",
    "pointer",
    "version",
    "pin",
    "tokenizer",
    "certificate",
    "probe",
    "source file",
    "file",
]
Problem = Literal["damaged", "missing", "unknown", "healed"]

_RECORDS: dict[str, Kind] = {CERTIFICATES: "certificate", PROBES: "probe", FILES: "source file"}
"""Folders of records that belong to no dataset."""

_OF_DATASETS = re.compile(rf"(datasets|{PINS}|{VERSIONS})/[^/]+/[^/]+\.json")
_RECORD = re.compile(rf"({'|'.join(_RECORDS)})/(?:[^/]+/)?[^/]+\.json")


@dataclass(frozen=True)
class Finding:
    """A damaged, missing or unknown blob.

    Args:
        kind: kind of the blob; `object` is an object that no manifest names, `source file` what is known about a file
            that was read, `file` an unknown file, or FORMAT.
        problem: what is wrong with it.
        blob: its name in the store.
        dataset, stage: the first dataset and stage that it belongs to; "" if unknown.
        place: for a chunk, the source position of its first row; for a tokenizer, the file; for a version, the version.
        digest: the digest of an object, or the key of an action.
        latest: whether the next build recomputes it. Rows of an earlier version can be gone from the source.
    """

    kind: Kind
    problem: Problem
    blob: str
    dataset: str = ""
    stage: str = ""
    place: str = ""
    digest: str = ""
    latest: bool = True

    def __str__(self) -> str:
        owner = "/".join(filter(None, (self.dataset, self.stage))) or "no dataset"
        place = f" of {self.place}" if self.place else ""
        earlier = "" if self.latest else ", in an earlier version"
        return f"{owner}: {self.kind}{place} is {self.problem}{earlier}: {self.digest or self.blob}"


@dataclass
class Verification:
    """The result of a verification.

    Attributes:
        objects, bytes: number of objects read, and their size.
        dropped: outputs that are missing because of `keep: sequences`, which is not a fault.
        findings: the damaged, missing and unknown blobs.
    """

    objects: int = 0
    bytes: int = 0
    dropped: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class _Expected:
    """An object that should exist, match its digest and pass `check`; `may_be_gone` allows it to be missing."""

    digest: str
    kind: Kind
    dataset: str = ""
    stage: str = ""
    chunk: ManifestChunk | None = None
    latest: bool = True
    may_be_gone: bool = False
    check: Callable[[pa.Table, pa.Buffer], None] = lambda table, data: None

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
        dataset: name of a dataset or mixture; None: the whole store.
        engine: reads several objects in parallel; default: one per CPU core.
        remove: remove damaged blobs, and repair what can be repaired without a build.
        on_progress: called with the number of objects checked and their total.

    Raises:
        StoreAddressError: no store exists at the address.
        DatasetNotFoundError: the dataset does not exist.
    """
    return _Run(store, engine or ComputeEngine(), remove, on_progress).run(dataset)


def _checks_of(manifest: Manifest) -> dict[Kind, Callable[[ManifestChunk, pa.Table, pa.Buffer], None]]:
    def has_rows(chunk: ManifestChunk, table: pa.Table, data: pa.Buffer) -> None:
        if table.num_rows != chunk.table_rows:
            raise ValueError(f"has {table.num_rows:,} rows")

    def is_sequences(chunk: ManifestChunk, table: pa.Table, data: pa.Buffer) -> None:
        has_rows(chunk, table, data)
        check_sequences(table, facts)
        for side in sides(table).values():
            check_mapped(flat_numbers(list_parts(side[INPUT_IDS])[1]), data)

    def is_lengths(chunk: ManifestChunk, table: pa.Table, data: pa.Buffer, longest: int) -> None:
        check_lengths(table, chunk.table_rows, longest)

    def is_sidecar(chunk: ManifestChunk, table: pa.Table, data: pa.Buffer) -> None:
        has_rows(chunk, table, data)
        check_sidecar(table, manifest.facts.get("columns", ()))

    if manifest.stage == LOADED:
        facts = SequenceFacts.of(manifest.facts)
        return {"output": is_sequences, "lengths": partial(is_lengths, longest=facts.max_length)}
    if manifest.stage == LENGTHS:
        if type(longest := manifest.facts.get("max_length")) is not int:
            raise ValueError("has no valid max_length")
        return {"output": partial(is_lengths, longest=longest)}
    if manifest.stage == TOKENIZERS:
        return {"output": lambda _, table, __: check_tokenizer(table)}
    return {"output": is_sidecar if manifest.stage == SIDECARS else has_rows}


class _Run:
    def __init__(
        self, store: ArtifactStore, engine: ComputeEngine, remove: bool, on_progress: Callable[[int, int], None]
    ):
        self._store, self._engine, self._remove, self._on_progress = store, engine, remove, on_progress
        self._result = Verification()
        self._expected: dict[str, _Expected] = {}
        self._manifests: set[str] = set()
        self._tokenizers: dict[str, str] = {}
        self._keys: set[str] = set()
        self._visited: set[str] = set()
        self._media: set[str] = set()
        self._named_media: dict[str, Manifest] = {}

    def run(self, dataset: str | None) -> Verification:
        store = self._store
        if store.blobs.size("FORMAT") is None:
            raise StoreAddressError(f"no store found at {store.address}")
        if store.healed:
            self._result.findings.append(Finding("file", "healed", "FORMAT"))
        if dataset is not None and not store.stages(dataset) and not store.versions.blobs(dataset):
            store.manifest_digest(dataset)  # raises DatasetNotFoundError, which lists the datasets
        for name in [dataset] if dataset is not None else store.names():
            if name not in self._visited:
                self._check_dataset(name)
        records = self._list_store() if dataset is None else []
        faulty = self._check_objects(list(self._expected.values()))
        for digest in self._tokenizers.keys() - faulty:
            self._check_tokenizer(digest)
        checks = (
            (self._check_image, sorted(self._media | self._named_media.keys())),
            (self._check_action, sorted(self._keys)),
            (self._check_record, records),
        )
        for check, names in checks:
            for finding in filter(None, self._engine.map(check, names)):
                self._report(finding)
        return self._result

    def _list_store(self) -> list[str]:
        """Expect every object and action of the store and every tokenizer folder with an object, and report unknown
        files. Return the records that belong to no dataset."""
        named, folders, records = self._expected.keys() | self._manifests, dict[str, list[str]](), list[str]()
        for name in (blob.name for blob in self._store.blobs.below("")):
            if digest := object_digest(name):
                if digest not in named:
                    self._expected[digest] = _Expected(digest, "object")
            elif key := action_key(name):
                self._keys.add(key)
            elif digest := media_digest(name):
                self._media.add(digest)
            elif file := TOKENIZER_FILE.fullmatch(name):
                folders.setdefault(file[1], []).append(name)
            elif _RECORD.fullmatch(name):
                records.append(name)
            elif name != "FORMAT" and not name.startswith(f"{SCRATCH}/") and not _OF_DATASETS.fullmatch(name):
                self._report(Finding("file", "unknown", name))
        for digest in folders.keys() - self._tokenizers.keys():
            if digest in self._expected:
                self._tokenizers[digest] = ""
            else:
                self._result.findings += [Finding("file", "unknown", name) for name in folders[digest]]
        return records

    def _check_dataset(self, name: str) -> None:
        """Check a dataset's pointers, versions and manifests, and collect what they name in `_expected`. For a mixture,
        check its datasets too."""
        self._visited.add(name)
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
        states = [*versions.values(), *self._pins(name)]
        named = latest.union(*(state.stages.items() for state in states))
        intact: dict[tuple[str, str], Manifest] = {}
        mixed: dict[str, str] = {}
        for is_latest, roots in ((True, latest), (False, named - latest)):
            for stage, digest, manifest in manifests(sorted(roots), partial(self._read_manifest, name, is_latest)):
                intact[stage, digest] = manifest
                self._expect(manifest, is_latest)
                mixed |= manifest.pinned
        for blob, version in versions.items():
            # stages that cannot be opened now, and will not be after the next build, leave the record
            usable = intact.keys() | latest
            kept = {stage: digest for stage, digest in version.stages.items() if (stage, digest) in usable}
            loaded = intact.get((LOADED, kept.get(LOADED, "")))
            if LOADED not in kept or (loaded is not None and loaded.digest != version.digest):
                self._report(Finding("version", "damaged", blob, name, place=str(version), latest=False))
            elif len(kept) < len(version.stages) and self._remove:
                self._store.versions.put(blob, replace(version, stages=kept))
        for dataset in mixed.keys() - self._visited:
            self._check_dataset(dataset)

    def _pins(self, name: str) -> list[Pin]:
        """Return a dataset's pins. A damaged one is reported and kept: without it, `gc` could remove what it named."""
        pins = list[Pin]()
        for blob in self._store.blobs.below(f"{PINS}/{name}"):
            try:
                pins += filter(None, [self._store.pins.read(blob.name)])
            except StoreUnavailableError:
                raise
            except StoreError:
                self._result.findings.append(Finding("pin", "damaged", blob.name, name, latest=False))
        return pins

    def _read_manifest(self, dataset: str, latest: bool, stage: str, digest: str) -> Manifest | None:
        """Return a manifest, or report it and return None if its bytes do not match its digest, or if it belongs to
        another dataset or stage. Several versions can name the same sidecars and lengths: they are read once."""
        expected = _Expected(digest, "manifest", dataset, stage, latest=latest)
        if stage in NAMED and digest in self._manifests:
            return None
        pointer = f"datasets/{dataset}/{stage}.json" if latest else ""
        wrong_pointer = Finding("pointer", "damaged", pointer, dataset, stage, latest=latest)
        self._manifests.add(digest)
        if not is_digest(digest):
            return self._report(wrong_pointer)
        problem, size = self._check_object(expected)
        self._count(size)
        if problem is not None:
            return self._report(expected.finding(problem))
        try:
            manifest = Manifest.from_table(self._store.objects.get(digest))
            _checks_of(manifest)
        except StoreUnavailableError:
            raise
        except (StoreError, ValueError):
            return self._report(expected.finding("damaged"))
        # an intact object that another name leads to: only the pointer is wrong
        if (manifest.dataset, manifest.stage) != (dataset, stage):
            return self._report(wrong_pointer)
        return manifest

    def _expect(self, manifest: Manifest, latest: bool) -> None:
        """Add what a manifest names to `_expected`. If several manifests name an object, the first one is reported,
        unless a later one is stricter about it."""
        stage, checks = manifest.stage, _checks_of(manifest)
        needed = not manifest.droppable if latest else stage in (LOADED, *NAMED, TOKENIZERS)
        for chunk in manifest.chunks:
            for kind, digest in chunk.objects.items():
                may_be_gone = kind == "output" and not needed
                other = self._expected.get(digest)
                if other is None or (other.may_be_gone, not other.latest) > (may_be_gone, not latest):
                    check = partial(checks[kind], chunk) if kind in checks else _Expected.check
                    named = (digest, kind, manifest.dataset, stage, chunk, latest, may_be_gone, check)
                    self._expected[digest] = _Expected(*named)
            if latest:
                self._keys.add(chunk.key)
            if needed and (chunk.counters or {}).get(IMAGES):
                with skipping_damaged():  # an output is reported by itself
                    self._named_media |= dict.fromkeys(self._store.media_of(chunk), manifest)
            if stage == TOKENIZERS:
                self._tokenizers.setdefault(chunk.output, manifest.dataset)

    def _check_objects(self, expected: list[_Expected]) -> set[str]:
        faulty: set[str] = set()
        checked = self._engine.map(lambda item: (item, *self._check_object(item)), expected)
        for count, (item, problem, size) in enumerate(checked, 1):
            self._count(size)
            if problem is not None:
                faulty.add(item.digest)
                if problem == "missing" and item.may_be_gone:
                    self._result.dropped += item.latest
                else:
                    self._report(item.finding(problem))
            self._on_progress(count, len(expected))
        return faulty

    def _check_object(self, expected: _Expected) -> tuple[Problem | None, int]:
        try:
            data = self._store.blobs.read(ObjectStore.blob(expected.digest))
        except FileNotFoundError:
            return "missing", 0
        intact = digest_bytes(data) == expected.digest
        if expected.chunk and expected.kind == "output" and (blocks := expected.chunk.blocks):
            # loaders compare blocks only: the manifest's block digests must be those of the bytes
            intact = intact and any(blocks == block_digests(data, size).hex() for size in BLOCK_SIZES)
        try:
            if intact:
                content = pa.py_buffer(data)
                expected.check(read_table(content), content)
        except ValueError:
            intact = False
        return (None if intact else "damaged"), len(data)

    def _count(self, size: int) -> None:
        self._result.objects += size > 0
        self._result.bytes += size

    def _check_image(self, digest: str) -> Finding | None:
        manifest, blob = self._named_media.get(digest), MediaStore.blob(digest)
        dataset, stage = (manifest.dataset, manifest.stage) if manifest else ("", "")
        try:
            self._count(len(self._store.media.read(digest)))
        except StoreUnavailableError:
            raise
        except DamagedObjectError:
            return Finding("image", "damaged", blob, dataset, stage, digest=digest)
        except StoreError:
            return Finding("image", "missing", blob, dataset, stage, digest=digest)
        return None

    def _check_action(self, key: str) -> Finding | None:
        blob = ActionStore.blob(key)
        try:
            intact = read_action(blob, self._store.blobs.read(blob)) is not None
        except FileNotFoundError:
            return None
        return None if intact else Finding("action", "damaged", blob, digest=key)

    def _check_record(self, name: str) -> Finding | None:
        folder = name.partition("/")[0]
        try:
            data = self._store.blobs.read(name)
            decode_record(name, data)
        except FileNotFoundError:
            return None
        except ValueError:
            return Finding(_RECORDS[folder], "damaged", name)
        is_fact = folder == CERTIFICATES and void_key(name) is None
        return Finding("certificate", "damaged", name) if is_fact and parse_certificate(name, data) is None else None

    def _check_tokenizer(self, digest: str) -> None:
        """Compare a tokenizer's files with the object that stores them, and restore them if they differ. Of one that no
        manifest names, an interrupted build or `gc` can have left some of the files."""
        table = self._store.objects.get(digest)
        folder = f"tokenizers/{digest}"
        blobs = [blob.name for blob in self._store.blobs.below(folder)]
        if table.column_names != ["file", "content"]:
            self._result.findings += [Finding("file", "unknown", name) for name in blobs]
            return
        files = dict(zip(table["file"].to_pylist(), table["content"].to_pylist(), strict=True))
        stored = self._store.blobs.read_all([f"{folder}/{name}" for name in files])
        problems: dict[str, Problem | None] = dict.fromkeys(files)
        for name, content in files.items():
            if (blob := f"{folder}/{name}") not in stored:
                problems[name] = "missing"
            elif stored[blob] != content:
                problems[name] = "damaged"
        dataset = self._tokenizers[digest]
        if not dataset:
            problems = {name: problem for name, problem in problems.items() if problem != "missing"}
        for name, problem in problems.items():
            if problem is not None:
                finding = Finding("tokenizer", problem, f"{folder}/{name}", dataset, TOKENIZERS, name, digest)
                self._result.findings.append(finding)
        for name in {blob.rpartition("/")[2] for blob in blobs} - files.keys():
            self._result.findings.append(Finding("tokenizer", "unknown", f"{folder}/{name}", digest=digest))
        if any(problems.values()) and self._remove:
            self._store.publish_tokenizer(digest, files)

    def _report(self, finding: Finding) -> None:
        self._result.findings.append(finding)
        if self._remove and finding.problem == "damaged" and finding.blob:
            if key := void_key(finding.blob):  # without it, results of a wrong engine would count again
                self._store.certificates.void(key, "the reason is lost")
            else:
                self._store.blobs.delete(finding.blob)
