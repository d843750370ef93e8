"""The artifact store: blobs in a folder or a bucket.

FORMAT                              the version of this layout
objects/<ab>/<digest>.arrow         immutable Arrow IPC files, named by the BLAKE3 of their bytes
actions/<ab>/<key>.json             what a stage made of one chunk
certificates/<key>/<digest>.json    where two tokenizer engines agree
datasets/<name>/<stage>.json        the digest of the latest manifest, itself an object; of mixtures, `mixture.json`
probes/<stage>-<digest>.json        what a stage makes of fixed rows, as a digest
versions/<name>/<time>-<…>.json     the manifests of every state that was published
tokenizers/<digest>/<file>          tokenizer files, as `from_pretrained` reads them
files/<…>.json                      the chunks of source files as they stood when they were read
scratch/                            files being written
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tokenloom.errors import DatasetNotFoundError, StoreAddressError, StoreError
from tokenloom.resources.digest import block_digests, canonical_json
from tokenloom.resources.store.actions import Action, ActionStore
from tokenloom.resources.store.blobs.blobs import Blobs, renew
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.store.blobs.read_only import ReadOnly
from tokenloom.resources.store.certificates import CertificateStore
from tokenloom.resources.store.hold import Hold
from tokenloom.resources.store.manifest import MIXTURE, Manifest
from tokenloom.resources.store.objects import ObjectStore, encode_table
from tokenloom.resources.store.probes import ProbeStore
from tokenloom.resources.store.versions import VersionStore

FORMAT = "tokenloom store 2\n"
DEFAULT_STORE = ".tokenloom"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//|/(?=[^/]))")
Missed = Literal["new", "lost", "void"]
"""Why an action does not count: there is none, its objects are missing, or the certificate it relies on is void."""


def default_store() -> str:
    """`$TOKENLOOM_STORE`, else `.tokenloom` in the working directory."""
    return os.environ.get("TOKENLOOM_STORE") or DEFAULT_STORE


def open_blobs(address: str | os.PathLike[str] | None = None) -> Blobs:
    """The place that an address names: a folder, or a bucket's prefix as `s3://bucket/prefix`.

    Raises:
        StoreAddressError: it is a URL of another kind, or none that a bucket has.
    """
    named = os.fspath(address or default_store())
    if kind := _URL.match(named):
        if kind[1] != "s3" or kind[2] != "//":  # `Path` makes one slash of two
            known = "name a folder, or as text s3://bucket/prefix"
            raise StoreAddressError(f"{kind[1]}:{kind[2]} is no address of a store; {known}")
        from tokenloom.resources.store.blobs.bucket import Bucket

        return Bucket(named)
    return Folder(Path(named).expanduser().resolve())


class ArtifactStore:
    """One store. Reading never writes; the place is made a store by the first write.

    Args:
        address: a folder; default: `default_store()`.
        read_only: what would write to it does nothing.

    Raises:
        StoreError: it is a store of another format.
        StoreAddressError: its address cannot be opened.
    """

    def __init__(self, address: str | os.PathLike[str] | None = None, read_only: bool = False):
        opened = open_blobs(address)
        self.blobs: Blobs = ReadOnly(opened) if read_only else opened
        self.objects = ObjectStore(self.blobs)
        self.actions = ActionStore(self.blobs)
        self.certificates = CertificateStore(self.blobs)
        self.probes = ProbeStore(self.blobs)
        self.versions = VersionStore(self.blobs)
        self._check_format()

    @property
    def address(self) -> str:
        """What opens the same store again."""
        return self.blobs.address

    def _check_format(self) -> None:
        try:
            found = self.blobs.read("FORMAT").decode(errors="replace")
        except FileNotFoundError:
            return
        if found != FORMAT:
            raise StoreError(
                f"{self.address} is a {found.strip()[:60]!r}; this version reads {FORMAT.strip()!r}: "
                "name another place, and build there"
            )

    def prepare(self) -> None:
        """Make the place a store, and sweep what killed processes left half-written."""
        if self.blobs.size("FORMAT") is None:
            self.blobs.write("FORMAT", FORMAT.encode())
        self.blobs.sweep()

    def find_action(self, key: str, dropped: bool = False) -> Action | None:
        """The action under `key` if all its objects are there and whole, and its engine still trusted; None means:
        compute it. What is found `gc` leaves for a day.

        Args:
            dropped: the action counts without its output as well.
        """
        action = self.actions.get(key)
        if action is None or self.voids([action]):
            return None
        size = self.objects.size(action.output) if dropped else self.objects.renew(action.output)
        lost = action.rejects is not None and not self.objects.renew(action.rejects)
        if lost or not (size == action.bytes or (dropped and size is None)):
            return None
        return action if renew(self.blobs, self.actions.blob(key)) else None

    def why_missed(self, key: str) -> Missed:
        """Why there is no action under `key` that counts."""
        action = self.actions.get(key)
        if action is None:
            return "new"
        return "void" if self.voids([action]) else "lost"

    def voids(self, actions: Iterable[Action]) -> bool:
        """Whether a certificate that one of the actions relied on was withdrawn."""
        return any(map(self.certificates.is_void, {action.engine for action in actions if action.engine}))

    def put_action(
        self,
        key: str,
        table: pa.Table,
        rejects: pa.Table,
        counts: dict[str, int],
        counters: dict[str, int],
        compressed: bool,
        blocks: bool = False,
        engine: str = "",
    ) -> Action:
        """Store a result: objects first, then the action that names them.

        Args:
            counts: rows_in, rows_out, rejected, filtered and tokens.
            compressed: whether `table` is stored compressed.
            blocks: whether loaders read `table`, and check its blocks.
            engine: key of the certificate that the result relies on, or "".
        """
        data = encode_table(table, compressed)
        rejected = self.objects.put(encode_table(rejects, compressed=True)) if rejects.num_rows else None
        action = Action(
            output=self.objects.put(data),
            bytes=data.size,
            rejects=rejected,
            **counts,
            table_rows=table.num_rows,
            blocks=block_digests(memoryview(data)).hex() if blocks else "",
            counters=counters,
            engine=engine,
        )
        self.actions.put(key, action)
        return action

    def put_manifest(self, manifest: Manifest) -> str:
        """Store a manifest and make it the dataset's latest for its stage; returns the manifest object's digest."""
        digest = self.objects.put(encode_table(manifest.to_table(), compressed=False))
        if self.latest(manifest.dataset, manifest.stage) != digest:
            self.blobs.write(self._pointer(manifest.dataset, manifest.stage), canonical_json({"manifest": digest}))
        return digest

    def latest(self, dataset: str, stage: str) -> str | None:
        """The object digest of a stage's latest manifest, or None where there is none, or none that can be read."""
        return self._pointed(self._pointer(dataset, stage), strict=False)

    def manifest(self, dataset: str, stage: str = "sequences", version: str | None = None) -> Manifest:
        """A manifest of a dataset's stage: the latest, or that of a version (see `VersionStore.find`).

        Raises:
            DatasetNotFoundError: there is none; the message lists what there is.
            StoreError: it is damaged.
        """
        return self.manifest_at(self.manifest_digest(dataset, stage, version))

    def manifest_at(self, digest: str) -> Manifest:
        """The manifest whose object has that digest.

        Raises:
            StoreError: it is missing or damaged.
        """
        return Manifest.from_table(self.objects.get_intact(digest))

    def manifest_digest(self, dataset: str, stage: str = "sequences", version: str | None = None) -> str:
        """The object digest of a manifest.

        Raises:
            DatasetNotFoundError: there is none; the message lists what there is.
        """
        pointer = self._pointer(dataset, stage)
        if version is not None and dataset in self.datasets():
            found = self.versions.find(dataset, version)
            if stage not in found.stages:
                raise DatasetNotFoundError(f"version {found} of dataset {dataset!r} has no {stage}")
            return found.stages[stage]
        digest = self._pointed(pointer)
        if digest is None:
            raise DatasetNotFoundError(self._not_found(dataset, stage))
        return digest

    def datasets(self) -> list[str]:
        """Names of the datasets that the store holds, sorted."""
        return sorted({blob.name.split("/")[1] for blob in self.blobs.below("datasets")})

    def stages(self, dataset: str) -> list[str]:
        """Names of the stages that have a latest manifest, or should."""
        names = (blob.name.rpartition("/")[2] for blob in self.blobs.below(f"datasets/{dataset}"))
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def hold(self, digest: str) -> Hold | None:
        """What keeps `gc` from a manifest, and from all that it names, as long as it lives; only folders have holds.

        Raises:
            StoreError: the manifest is gone.
        """
        return Hold(self.objects.path(digest)) if isinstance(self.blobs, Folder) else None

    def publish_tokenizer(self, digest: str, files: dict[str, bytes]) -> None:
        """Lay a tokenizer's files side by side, for `from_pretrained`."""
        for name, content in files.items():
            blob = f"tokenizers/{digest}/{name}"
            try:
                held = self.blobs.read(blob) == content and renew(self.blobs, blob) is not None
            except FileNotFoundError:
                held = False
            if not held:
                self.blobs.write(blob, content)

    def tokenizer_folder(self, digest: str) -> Path:
        """A local folder with a tokenizer's files.

        Raises:
            StoreError: they are missing.
        """
        files = [self.blobs.local(blob.name) for blob in self.blobs.below(f"tokenizers/{digest}")]
        if not files:
            raise StoreError(f"tokenizer {digest} is missing; build the dataset again")
        return files[0].parent

    @staticmethod
    def _pointer(dataset: str, stage: str) -> str:
        if dataset in ("", ".", "..") or "/" in dataset or "\\" in dataset:
            raise DatasetNotFoundError(f"{dataset!r} is not a dataset's name")
        return f"datasets/{dataset}/{stage}.json"

    def _pointed(self, pointer: str, strict: bool = True) -> str | None:
        """The digest that a pointer holds, or None where there is none (or, unless `strict`, a damaged one)."""
        try:
            digest = json.loads(self.blobs.read(pointer))["manifest"]
            if isinstance(digest, str):
                return digest
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            pass
        if strict:
            raise StoreError(f"{pointer.removeprefix('datasets/')} is damaged; build the dataset again")
        return None

    def _not_found(self, dataset: str, stage: str) -> str:
        names = self.datasets()
        if dataset in names and stage != MIXTURE and self.latest(dataset, MIXTURE):
            mixed = ", ".join(self.manifest(dataset, MIXTURE).pinned)
            return f"{dataset!r} is a mixture, which `open_mixture` opens; its datasets are {mixed}"
        if dataset in names and stage == MIXTURE:
            return f"{dataset!r} is one dataset, which `open_dataset` opens, and no mixture"
        if dataset in names:
            return f"dataset {dataset!r} has no {stage} yet: run `tokenloom build` on its YAML"
        close = difflib.get_close_matches(dataset, names, n=1)
        hint = f"did you mean {close[0]!r}? It holds" if close else "it holds"
        return f"no dataset {dataset!r} in the store {self.address}; {hint}: {', '.join(names) or 'nothing yet'}"
