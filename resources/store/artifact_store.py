"""The artifact store: a folder or bucket with everything that builds compute.

FORMAT                              version of this layout
objects/<ab>/<digest>.arrow         immutable Arrow IPC files, named by the BLAKE3 of their bytes
actions/<ab>/<key>.json             result of a stage on one chunk, named by its cache key
certificates/<key>/<digest>.json    code points on which two tokenizer engines agree
datasets/<name>/<stage>.json        digest of the latest manifest, which is an object (`mixture.json` for mixtures)
probes/<name>-<digest>.json         digest of a stage's output for fixed rows; what a tokenizer declares
pins/<name>/<run>.json              manifests that a run needs, which `gc` keeps
versions/<name>/<time>-<…>.json     manifests of each published state of a dataset
media/<ab>/<digest>                 images, as they were in the source
tokenizers/<digest>/<file>          tokenizer files, as `from_pretrained` reads them
files/<…>.json                      chunks and stamps of source files that were read
scratch/                            files being written, marks of running builds

Each JSON file is a record, with a digest of its name and content.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from tokenloom.errors import DatasetNotFoundError, PinnedError, StoreAddressError, StoreError, did_you_mean
from tokenloom.resources.digest import BLOCK_SIZES, block_digests, digest_bytes
from tokenloom.resources.store.actions import (
    Action,
    ActionStore,
    CertificateStore,
    Outcome,
    ProbeStore,
    decode_record,
    encode_record,
)
from tokenloom.resources.store.blobs.blobs import Blobs, ReadOnly, is_digest, renew
from tokenloom.resources.store.blobs.folder import SCRATCH, Folder, only_build, running_build
from tokenloom.resources.store.manifest import MIXTURE, Manifest
from tokenloom.resources.store.manifest_chunks import KnownActions
from tokenloom.resources.store.objects import IMAGES, RECOMPUTED, MediaStore, ObjectStore, encode_table, media_of
from tokenloom.resources.store.versions import (
    LOADED,
    PINS,
    VERSIONS,
    Pin,
    PinStore,
    ReadLock,
    VersionStore,
    default_store,
)
from tokenloom.resources.tables.sequence_schema import is_file_name

if TYPE_CHECKING:
    from tokenloom.resources.store.bucket_build import BucketBuild

FORMAT = "tokenloom store 3\n"
WRITERS = {"tokenloom store 1": "a version before tokenloom 0.1", "tokenloom store 2": "tokenloom 0.1"}
"""The versions of tokenloom that wrote older formats."""

_ANY_FORMAT = re.compile(r"tokenloom store [0-9]{1,9}\n")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]+):(//|/(?=[^/]))")
Missed = Literal["new", "lost", "void"]
"""Why an action is a cache miss: it does not exist, its objects are missing, or its certificate was withdrawn."""


def open_blobs(address: str | os.PathLike[str] | None = None) -> Blobs:
    """Open an address: a folder, or a prefix in a bucket as `s3://bucket/prefix`.

    Raises:
        StoreAddressError: the address is a URL of another kind, or not a valid S3 address.
    """
    location = os.fspath(address or default_store())
    if url := _URL.match(location):
        if url[1] != "s3" or url[2] != "//":  # `pathlib.Path` turns `//` into `/`
            raise StoreAddressError(
                f"{url[1]}:{url[2]} is not a supported store address; use a folder, or s3://bucket/prefix as a string"
            )
        from tokenloom.resources.store.blobs.bucket import Bucket

        return Bucket(location)
    try:
        return Folder(Path(location).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown user, a null character
        raise StoreAddressError(f"{location!r} is not a valid store address: {error}") from error


class ArtifactStore:
    """One store. Reading never writes to it; `prepare` creates it.

    Args:
        address: a folder or `s3://bucket/prefix`. Default: `default_store()`.
        read_only: ignore all writes and deletions.
        heal_format: write FORMAT again, which sets `healed`, if it is damaged and a manifest is of this version.

    Raises:
        StoreError: the store has another format, or FORMAT is damaged.
        StoreAddressError: the address cannot be opened.
    """

    def __init__(
        self, address: str | os.PathLike[str] | None = None, read_only: bool = False, heal_format: bool = False
    ):
        blobs = open_blobs(address)
        self.blobs = cast(Blobs, ReadOnly(blobs)) if read_only else blobs
        self.objects = ObjectStore(self.blobs)
        self.media = MediaStore(self.blobs)
        self.actions = ActionStore(self.blobs)
        self.certificates = CertificateStore(self.blobs)
        self.probes = ProbeStore(self.blobs)
        self.versions = VersionStore(self.blobs)
        self.pins = PinStore(self.blobs)
        self._build: BucketBuild | None = None
        self.healed = False
        self._exists = self._check_format(heal_format)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_build": None}

    @property
    def address(self) -> str:
        """The address that opens the same store again."""
        return self.blobs.address

    def _check_format(self, heal: bool) -> bool:
        try:
            stored = self.blobs.read("FORMAT").decode(errors="replace")
        except FileNotFoundError:
            stored = ""
            if not (heal and self._is_of_this_format()):
                return False
        if stored != FORMAT:
            shown = stored.strip()[:60]
            if not _ANY_FORMAT.fullmatch(stored):
                self.healed = heal and self._is_of_this_format()
                if not self.healed:
                    raise StoreError(
                        f"the file FORMAT of the store {self.address} is damaged: {shown!r} is not {FORMAT.strip()!r}; "
                        "run `tokenloom verify`, which writes it again if a dataset of the store is of this version"
                    )
                self.blobs.write("FORMAT", FORMAT.encode())
                return True
            writer = WRITERS.get(shown, "another version of tokenloom")
            raise StoreError(
                f"the store {self.address} has the format {shown!r}, written by {writer}; this version reads "
                f"{FORMAT.strip()!r}; build into another store (--store or $TOKENLOOM_STORE), or delete {self.address} "
                "and build again"
            )
        return True

    def _is_of_this_format(self) -> bool:
        """Return whether the latest manifest of a stage can be read; its version changes with the format."""
        for name in self.names():
            for digest in filter(None, (self.latest(name, stage) for stage in self.stages(name))):
                with suppress(StoreError):
                    return bool(self.manifest_at(digest))
        return False

    def prepare(self) -> None:
        """Create the store if it does not exist, and delete what killed processes left half-written."""
        if not (self._exists and self._is_far) and self.blobs.size("FORMAT") is None:
            self.blobs.write("FORMAT", FORMAT.encode())
        self._exists = True
        self.blobs.sweep()

    def leave_mark(self) -> str:
        """Write a blob, by which another machine can check that it sees the same store; returns its name, or "" if
        the store is opened to be read only.

        Raises:
            StoreError: the store does not exist there, or cannot be written.
        """
        if isinstance(self.blobs, ReadOnly):
            return ""
        if self.blobs.size("FORMAT") is None:
            raise StoreError(f"no store found at {self.address}")
        mark = f"{SCRATCH}/{uuid.uuid4().hex}"
        self.blobs.write(mark, b"")
        return mark

    def take_mark(self, mark: str) -> bool:
        """Remove a blob that `leave_mark` wrote; returns whether it was there."""
        is_there = self.blobs.size(mark) is not None
        self.blobs.delete(mark)
        return is_there

    @property
    def _is_far(self) -> bool:
        return not isinstance(self.blobs, Folder)

    @contextmanager
    def building(self, dataset: str | None = None, stages: Sequence[str] = ()) -> Iterator[None]:
        """Prepare the store for a build, and make `gc` keep what the build writes and finds while the context lasts.

        In a bucket, results that the latest manifests of these stages name are looked up at once, when it starts.

        Args:
            dataset: the dataset that is built, if it is one.
        """
        self.prepare()
        if isinstance(self.blobs, Folder):
            with running_build(self.blobs):
                yield
        elif dataset is None or isinstance(self.blobs, ReadOnly) or self._build is not None:
            yield
        else:
            from tokenloom.resources.store.blobs.bucket import Bucket
            from tokenloom.resources.store.bucket_build import BucketBuild

            assert isinstance(self.blobs, Bucket)
            build = BucketBuild(self.blobs, self.objects, [self._pointer(dataset, stage) for stage in stages])
            build.note_probes(self.probes)
            with build.running(self.certificates):
                self._build = build
                try:
                    yield
                finally:
                    self._build = None

    def known_actions(self, latest: Manifest | None, dropped: bool = False) -> KnownActions:
        """Return the actions that the latest manifest of a stage states.

        In a bucket, one listing showed what they name, when the build started.

        Args:
            dropped: a missing output is a hit too.
        """
        if latest is None or (self._is_far and (self._build is None or not self._build.manifests)):
            return KnownActions()
        if self._build is not None:
            return KnownActions(latest.chunks, partial(self._build.is_stored, dropped=dropped))
        return KnownActions(
            latest.chunks, lambda key, action: not self.voids([action.engine]) and self._is_stored(key, action, dropped)
        )

    @contextmanager
    def building_alone(self, dataset: str, log: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other process builds a dataset in this context, to reuse what that one computes.

        A bucket has no locks: there, two builds of a dataset at once compute the same twice.

        Args:
            log: receives a message at first, and then every minute, while this process waits.
        """
        logged = -1

        def on_wait(seconds: float) -> None:
            nonlocal logged
            minutes = int(seconds / 60)
            if minutes > logged:
                logged = minutes
                waited = f" ({minutes} min so far)" if minutes else ""
                log(f"another run is building {dataset}; waiting for it, to reuse what it computes{waited}")

        with only_build(self.blobs, dataset, on_wait) if isinstance(self.blobs, Folder) else nullcontext():
            yield

    def find_action(self, key: str, dropped: bool = False) -> Action | None:
        """Return the action under `key` on a cache hit, or None on a miss; arguments as in `look_up`."""
        action = self.look_up(key, dropped)
        return action if isinstance(action, Action) else None

    def look_up(self, key: str, dropped: bool = False) -> Action | Missed:
        """Return the action under `key` on a cache hit, else why it is a miss.

        It is a hit if the action's objects exist with the right size and its certificate was not withdrawn. `gc` keeps
        an action that was a hit, and its objects, for a day.

        Args:
            dropped: a missing output is a hit too.
        """
        if self._build is not None:
            if (listed := self._build.find(key)) is not None:
                return "lost" if self._lacks_images(listed) else listed
            if self._build.lacks(key):
                return "new"
        action = self.actions.get(key)
        if action is None:
            return "new"
        if self.voids([action.engine]):
            return "void"
        is_lost = not self._is_stored(key, action, dropped) or self._lacks_images(action)
        return "lost" if is_lost else action

    def _is_stored(self, key: str, action: Action, dropped: bool) -> bool:
        """Return whether an action and what it names exist; keeps them from `gc` for a day."""
        size = self.objects.size(action.output) if dropped else self.objects.renew(action.output)
        if not (size == action.bytes or (dropped and size is None)) or not all(map(self.objects.renew, action.beside)):
            return False
        # objects first: an action that `gc` keeps must find them
        return renew(self.blobs, self.actions.blob(key)) is not None

    def _lacks_images(self, action: Action) -> bool:
        """Return whether an image that an output refers to is missing; `gc` can have dropped the output."""
        if not action.counters.get(IMAGES) or self.objects.size(action.output) is None:
            return False
        return bool(self.media.missing(self.media_of(action)))

    def media_of(self, action: Outcome) -> set[str]:
        """Return the digests of the images that the output of an action refers to.

        Raises:
            StoreError: the output is missing or damaged.
        """
        return media_of(self.objects.get(action.output))

    def voids(self, engines: Iterable[str]) -> bool:
        """Return whether one of the certificates was withdrawn; "" names none."""
        return any(self.certificates.is_void(engine) for engine in engines if engine)

    def put_action(
        self,
        key: str,
        table: pa.Table,
        rejects: pa.Table,
        counts: dict[str, int],
        counters: dict[str, int],
        compressed: bool,
        blocks: bool = False,
        lengths: pa.Table | None = None,
        engine: str = "",
        write: Callable[[Callable[[], None]], object] = lambda store: store(),
        block_size: int = BLOCK_SIZES[0],
        stored: Action | None = None,
        media: Mapping[str, bytes] | None = None,
    ) -> Action:
        """Store the result of a stage on one chunk: objects first, then the action that names them.

        Args:
            table: the output.
            rejects: the rejected rows.
            counts: rows_in, rows_out, rejected, filtered and tokens.
            counters: further counts of the stage.
            compressed: store `table` compressed.
            blocks: store the block digests of `table`, for loaders to check.
            lengths: number of tokens of each row of `table`, for loaders.
            engine: key of the certificate that the result relies on, or "".
            write: receives the function that writes everything, once all digests are known; it can call it later, in
                another thread.
            block_size: one of `BLOCK_SIZES`.
            stored: an action with the same output, which is then neither encoded nor written again.
            media: the bytes of new images that `table` refers to, by digest.
        """
        if stored is None:
            data = encode_table(table, compressed)
            output, size = digest_bytes(memoryview(data)), data.size
        else:
            data, output, size = None, stored.output, stored.bytes
        rejected = encode_table(rejects, compressed=True) if rejects.num_rows else None
        counted = encode_table(lengths, compressed=False) if lengths is not None else None
        action = Action(
            output=output,
            bytes=size,
            rejects=digest_bytes(memoryview(rejected)) if rejected is not None else None,
            lengths=digest_bytes(memoryview(counted)) if counted is not None else None,
            **counts,
            table_rows=table.num_rows,
            blocks=block_digests(memoryview(data), block_size).hex() if blocks and data is not None else "",
            counters=counters,
            engine=engine,
        )
        encoded = ((rejected, action.rejects), (data, action.output), (counted, action.lengths))

        def store() -> None:
            if media:
                self.media.put_all(media)
            # objects before the action: an action never names what does not exist
            self.objects.put_all([(content, digest) for content, digest in encoded if content is not None and digest])
            self.actions.put(key, action)
            if self._build is not None:
                self._build.add(key)

        write(store)
        return action

    def put_manifest(self, manifest: Manifest, declared_by: str | None = None) -> str:
        """Store a manifest as the latest of its dataset and stage; returns the digest of its object.

        Args:
            declared_by: identifies the file that declares the dataset.
        """
        digest = self.put_manifest_object(manifest)
        # the pointer last: readers that see it find the manifest and everything that it names
        if self.latest(manifest.dataset, manifest.stage) != digest:
            pointer = self._pointer(manifest.dataset, manifest.stage)
            content = {"manifest": digest} | ({"declared_by": declared_by} if declared_by else {})
            self.blobs.write(pointer, encode_record(pointer, content))
            if self._build is not None:
                self._build.pointers[pointer] = content
        if self._build is not None and manifest.stage == LOADED:
            self._build.publish_again(f"datasets/{manifest.dataset}")
        return digest

    def declared_by(self, dataset: str) -> str | None:
        """Return what identifies the file that declared the latest version of a dataset, if that is known."""
        return self._read_pointer(self._pointer(dataset, LOADED), strict=False, field="declared_by")

    def put_manifest_object(self, manifest: Manifest) -> str:
        """Store a manifest that another one names; returns the digest of its object."""
        return self.objects.put(encode_table(manifest.to_table(), compressed=False))

    def latest(self, dataset: str, stage: str) -> str | None:
        """Return the object digest of a stage's latest manifest, or None if its pointer is missing or damaged."""
        return self._read_pointer(self._pointer(dataset, stage), strict=False)

    def manifest(self, dataset: str, stage: str = LOADED, version: str | None = None) -> Manifest:
        """Return a manifest of a dataset's stage.

        Args:
            version: a digest prefix or a date, see `VersionStore.find`. Default: the latest version.

        Raises:
            DatasetNotFoundError: no such dataset, stage or version exists; the message lists the existing ones.
            StoreError: the manifest is damaged.
        """
        return self.manifest_at(self.manifest_digest(dataset, stage, version))

    def manifest_at(self, digest: str, remove_damaged: bool = False) -> Manifest:
        """Return the manifest whose object has that digest.

        Raises:
            StoreError: it is missing or damaged; RemovedObjectError, if a damaged one was removed.
        """
        if self._build is not None and digest in self._build.manifests:
            return self._build.manifests[digest]
        return Manifest.from_table((self.objects.get_verified if remove_damaged else self.objects.get_intact)(digest))

    def manifest_digest(self, dataset: str, stage: str = LOADED, version: str | None = None) -> str:
        """Return the object digest of a manifest. Takes the same arguments as `manifest`.

        Raises:
            DatasetNotFoundError: no such dataset, stage or version exists; the message lists the existing ones.
        """
        pointer = self._pointer(dataset, stage)
        if version is not None and dataset in self.datasets():
            published = self.versions.find(dataset, version)
            if stage not in published.stages:
                raise DatasetNotFoundError(f"version {published} of dataset {dataset!r} has no {stage}")
            return published.stages[stage]
        digest = self._read_pointer(pointer)
        if digest is None:
            raise DatasetNotFoundError(self._not_found(dataset, stage))
        return digest

    def datasets(self) -> list[str]:
        """Return the names of all datasets and mixtures in the store that can be opened, sorted.

        Those that were inspected, or whose build failed, cannot.
        """
        opened = (f"{LOADED}.json", f"{MIXTURE}.json")
        names = (blob.name.split("/") for blob in self.blobs.below("datasets"))
        return sorted({name for _, name, *stage in names if stage and stage[-1] in opened})

    def names(self) -> list[str]:
        """Return every name that has pointers, pins or versions, sorted; not all of them can be opened."""
        blobs = (blob for kind in ("datasets", PINS, VERSIONS) for blob in self.blobs.below(kind))
        return sorted({blob.name.split("/")[1] for blob in blobs})

    def stages(self, dataset: str) -> list[str]:
        """Return the names of the stages of a dataset that have a pointer to a latest manifest, even a damaged one."""
        names = (blob.name.rpartition("/")[2] for blob in self.blobs.below(f"datasets/{dataset}"))
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def remove(self, dataset: str) -> int:
        """Remove a dataset or mixture: its pointers and its versions, so that `gc` frees what only it needs.

        Returns:
            The number of versions that were removed.

        Raises:
            DatasetNotFoundError: it does not exist; the message lists the datasets.
            PinnedError: a training run pins it.
        """
        self._pointer(dataset, LOADED)  # refuses names that are not valid
        if pins := [pin.run for pin in self.pins.of(dataset)]:
            raise PinnedError(
                f"{dataset} is pinned by {', '.join(pins)}; release it first: tokenloom unpin {dataset} --as {pins[0]}"
            )
        pointers = [
            f"datasets/{name}/{stage}.json" for name in (dataset, inspected(dataset)) for stage in self.stages(name)
        ]
        versions = [blob.name for blob in self.versions.blobs(dataset)]
        if not pointers and not versions:
            raise DatasetNotFoundError(self._not_found(dataset, LOADED))
        self.blobs.delete_all([*pointers, *versions])
        return len(versions)

    def read_lock(self, digest: str) -> ReadLock | None:
        """Lock a manifest, so that `gc` keeps it and everything it names as long as the returned object exists.

        Returns None for a store in a bucket, which has no locks.

        Raises:
            StoreError: the manifest has been removed.
        """
        return ReadLock(self.objects.path(digest)) if isinstance(self.blobs, Folder) else None

    def hold_latest(self, dataset: str) -> tuple[str, ReadLock | None]:
        """Return the object digest of the latest manifest of sequences, and its read lock.

        Raises:
            DatasetNotFoundError: no such dataset exists; the message lists the existing ones.
            StoreError: the manifest is missing.
        """
        while True:
            digest = self.manifest_digest(dataset)
            try:
                return digest, self.read_lock(digest)
            except StoreError:
                if self.manifest_digest(dataset) == digest:
                    raise  # else a build replaced it and gc removed it in the meantime

    def pin(self, dataset: str, run: str, version: str | None = None, stage: str = LOADED) -> Pin:
        """Pin a version of a dataset for a run, so that `gc` keeps it; returns the pin, also if it exists already.

        Args:
            version: as in `manifest`; default: the latest.
            stage: `mixture` for a mixture.

        Raises:
            DatasetNotFoundError: no such dataset or version exists, or the run already pins another version.
            StoreError: the version was removed in the meantime, or the pin is damaged.
            ValueError: the run's name is not valid.
        """
        digest = self.manifest_digest(dataset, stage, version)
        # held until the pin is stored, so that `gc` cannot remove the manifest in between
        lock = self.read_lock(digest)
        manifest = self.manifest_at(digest)
        published = next((each for each in self.versions.of(dataset) if each.stages.get(stage) == digest), None)
        pin = self.pins.add(Pin(dataset, run, manifest.digest, published.stages if published else {stage: digest}))
        if self.objects.size(digest) is None:  # only in a bucket, where the lock is None
            self.pins.remove(dataset, run)
            raise StoreError(f"version {pin} has been removed by gc")
        del lock
        return pin

    def pinned(self, dataset: str, run: str, stage: str = LOADED) -> Pin:
        """Return a run's pin of a dataset. If it has none, pin the latest version. All ranks of a run get the same pin.

        Raises:
            DatasetNotFoundError: no such dataset exists.
            StoreError: the pin is damaged.
            ValueError: the run's name is not valid.
        """
        if (pin := self.pins.find(dataset, run)) is not None:
            return pin
        try:
            return self.pin(dataset, run, stage=stage)
        except DatasetNotFoundError:  # another rank was faster, and a version was published in between
            if (pin := self.pins.find(dataset, run)) is None:
                raise
            return pin

    def publish_tokenizer(self, digest: str, files: dict[str, bytes]) -> None:
        """Write a tokenizer's files into one folder, for `from_pretrained`. Intact files are kept.

        Raises:
            StoreError: a name is not that of a file in the folder.
        """
        for name in files:
            if not is_file_name(name):
                raise StoreError(f"tokenizer {digest} has a file {name[:80]!r}; {RECOMPUTED}")
        self.blobs.create_all({f"tokenizers/{digest}/{name}": content for name, content in files.items()})

    def tokenizer_folder(self, digest: str) -> Path:
        """Return a local folder with a tokenizer's files.

        Raises:
            StoreError: they are missing, or `digest` is not a digest.
        """
        if not is_digest(digest):
            raise StoreError(f"{digest[:80]!r} is not a valid digest of a tokenizer")
        files = [self.blobs.local(blob.name) for blob in self.blobs.below(f"tokenizers/{digest}")]
        if not files:
            raise StoreError(f"tokenizer {digest} is missing; build the dataset again")
        return files[0].parent

    @staticmethod
    def _pointer(dataset: str, stage: str) -> str:
        if dataset in ("", ".", "..") or "/" in dataset or "\\" in dataset:
            raise DatasetNotFoundError(f"{dataset!r} is not a valid dataset name")
        return f"datasets/{dataset}/{stage}.json"

    def _read_pointer(self, pointer: str, strict: bool = True, field: str = "manifest") -> str | None:
        try:
            if self._build is not None and pointer in self._build.pointers:
                digest = (self._build.pointers[pointer] or {}).get(field)
                return digest if is_digest(digest) else None
            digest = decode_record(pointer, self.blobs.read(pointer))[field]
            if is_digest(digest):
                return digest
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            pass
        if strict:
            raise StoreError(f"{pointer.removeprefix('datasets/')} is damaged; build the dataset again")
        return None

    def _not_found(self, dataset: str, stage: str) -> str:
        stages = self.stages(dataset)
        if MIXTURE in stages and stage != MIXTURE:
            mixed = ", ".join(self.manifest(dataset, MIXTURE).pinned)
            return f"{dataset!r} is a mixture; open it with `open_mixture`, or one of its datasets: {mixed}"
        if LOADED in stages and stage == MIXTURE:
            return f"{dataset!r} is a dataset, not a mixture; open it with `open_dataset`"
        if stages:
            return f"dataset {dataset!r} has no {stage} yet; run `tokenloom build` on its YAML"
        if self.blobs.size("FORMAT") is None:
            return f"no dataset {dataset!r}: no store found at {self.address}; run `tokenloom build` on its YAML first"
        names = self.datasets()
        known, hint = ", ".join(names) or "none", did_you_mean(dataset, names)
        return f"no dataset {dataset!r} in the store {self.address} (datasets: {known}){hint}"


def inspected(dataset: str) -> str:
    """Return the name under which `tokenloom inspect` publishes what it finds out about a dataset."""
    return f"{dataset}@inspect"
