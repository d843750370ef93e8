"""The artifact store: a folder of objects, actions and dataset pointers.

FORMAT                              the version of this layout
objects/<ab>/<digest>.arrow         immutable Arrow IPC files, named by the BLAKE3 of their bytes
actions/<ab>/<key>.json             what a stage made of one chunk
certificates/<key>/                 where two tokenizer engines agree
datasets/<name>/<stage>.json        the digest of the latest manifest, itself an object
tokenizers/<digest>/                tokenizer files, as `from_pretrained` reads them
scratch/                            files being written
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path

import pyarrow as pa

from tokenloom.errors import DatasetNotFoundError, StoreAddressError, StoreError
from tokenloom.resources.digest import canonical_json
from tokenloom.resources.store.actions import Action, ActionStore
from tokenloom.resources.store.certificates import CertificateStore
from tokenloom.resources.store.manifest import Manifest
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.store.publication import publish, publish_folder, sweep

FORMAT = "tokenloom store 1\n"
DEFAULT_STORE = ".tokenloom"


def default_store() -> str:
    """`$TOKENLOOM_STORE`, else `.tokenloom` in the working directory."""
    return os.environ.get("TOKENLOOM_STORE") or DEFAULT_STORE


class ArtifactStore:
    """One store. Reading never writes; the folder is made by the first write.

    Raises:
        StoreError: the folder is a store of another format, or its address is a URL.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None):
        address = os.fspath(root or default_store())
        if "://" in address:
            raise StoreAddressError(
                f"{address.partition('://')[0]}:// stores are not available in this version; name a folder"
            )
        self.root = Path(address).expanduser().resolve()
        self._scratch = self.root / "scratch"
        self.objects = ObjectStore(self.root / "objects", self._scratch)
        self.actions = ActionStore(self.root / "actions", self._scratch)
        self.certificates = CertificateStore(self.root / "certificates", self._scratch)
        self._check_format()

    def _check_format(self) -> None:
        try:
            found = (self.root / "FORMAT").read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self.root} cannot be read as a store: {error.strerror}") from error
        if found != FORMAT:
            raise StoreError(f"{self.root} is a {found.strip()[:60]!r}; this version reads {FORMAT.strip()!r}")

    def prepare(self) -> None:
        """Make the folder a store, and sweep what killed processes left in scratch."""
        if not (self.root / "FORMAT").exists():
            publish(self.root / "FORMAT", FORMAT.encode(), self._scratch)
        sweep(self._scratch)

    def find_action(self, key: str) -> Action | None:
        """The action under `key` if all its objects are there and whole, and its engine still trusted; None means:
        compute it."""
        action = self.actions.get(key)
        if action is None or self.is_void(action) or self.objects.size(action.output) != action.bytes:
            return None
        return action if action.rejects is None or self.objects.size(action.rejects) else None

    def is_void(self, action: Action) -> bool:
        """Whether the certificate that an action relied on was withdrawn."""
        return bool(action.engine) and self.certificates.is_void(action.engine)

    def put_action(
        self,
        key: str,
        table: pa.Table,
        rejects: pa.Table,
        counts: dict[str, int],
        counters: dict[str, int],
        compressed: bool,
        engine: str = "",
    ) -> Action:
        """Store a result: objects first, then the action that names them.

        Args:
            counts: rows_in, rows_out, rejected, filtered and tokens.
            compressed: whether `table` is stored compressed.
            engine: key of the certificate that the result relies on, or "".
        """
        digest = self.objects.put(table, compressed)
        rejected = self.objects.put(rejects, compressed=True) if rejects.num_rows else None
        size = self.objects.size(digest) or 0
        action = Action(output=digest, bytes=size, rejects=rejected, **counts, counters=counters, engine=engine)
        self.actions.put(key, action)
        return action

    def put_manifest(self, manifest: Manifest) -> str:
        """Store a manifest and make it the dataset's latest for its stage; returns the manifest object's digest."""
        digest = self.objects.put(manifest.to_table(), compressed=False)
        pointer = self._pointer(manifest.dataset, manifest.stage)
        if self._pointed(pointer, strict=False) != digest:
            publish(pointer, canonical_json({"manifest": digest}), self._scratch)
        return digest

    def manifest(self, dataset: str, stage: str = "sequences") -> Manifest:
        """The latest manifest of a dataset's stage.

        Raises:
            DatasetNotFoundError: there is none; the message lists the datasets that the store holds.
        """
        digest = self._pointed(self._pointer(dataset, stage))
        if digest is None:
            raise DatasetNotFoundError(self._not_found(dataset, stage))
        return Manifest.from_table(self.objects.get(digest))

    def datasets(self) -> list[str]:
        """Names of the datasets that the store holds, sorted."""
        folder = self.root / "datasets"
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []

    def publish_tokenizer(self, digest: str, files: dict[str, bytes]) -> Path:
        """A folder holding a tokenizer's files, for `from_pretrained`."""
        folder = self.tokenizer_folder(digest)
        publish_folder(folder, files, self._scratch)
        return folder

    def tokenizer_folder(self, digest: str) -> Path:
        return self.root / "tokenizers" / digest

    def _pointer(self, dataset: str, stage: str) -> Path:
        if dataset in ("", ".", "..") or "/" in dataset or "\\" in dataset:
            raise DatasetNotFoundError(f"{dataset!r} is not a dataset's name")
        return self.root / "datasets" / dataset / f"{stage}.json"

    def _pointed(self, pointer: Path, strict: bool = True) -> str | None:
        """The digest that a pointer holds, or None where there is none (or, unless `strict`, a damaged one)."""
        try:
            digest = json.loads(pointer.read_bytes())["manifest"]
            if isinstance(digest, str):
                return digest
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if strict:
            raise StoreError(f"{pointer.relative_to(self.root)} is damaged; build the dataset again")
        return None

    def _not_found(self, dataset: str, stage: str) -> str:
        names = self.datasets()
        if dataset in names:
            return f"dataset {dataset!r} has no {stage} yet: run `tokenloom build` on its YAML"
        close = difflib.get_close_matches(dataset, names, n=1)
        hint = f"did you mean {close[0]!r}? It holds" if close else "it holds"
        return f"no dataset {dataset!r} in the store {self.root}; {hint}: {', '.join(names) or 'nothing yet'}"
