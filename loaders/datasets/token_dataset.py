"""Opens built datasets: a map-style view of one split's sequences, straight from the store's memory maps."""

from __future__ import annotations

import difflib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from tokenloom.errors import DatasetNotFoundError
from tokenloom.loaders.collation.batch import PaddingPolicy
from tokenloom.loaders.collation.unpadded import unpadded
from tokenloom.loaders.datasets.trace import TracedRow, traced
from tokenloom.loaders.order.row_order import RowOrder, Shuffle
from tokenloom.loaders.reading.checksum import MappedObject
from tokenloom.loaders.reading.chunk import DEFERRED
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import TRAINED, WEIGHTED
from tokenloom.resources.store.read_lock import ReadLock


class TokenDataset(Dataset[dict[str, torch.Tensor]]):
    """The sequences of one split.

    `dataset[i]` is row i, unpadded: int64 [length] `input_ids`, `attention_mask` and `labels` (and `position_ids`
    where rows are packed, float32 `loss_weights` where weights differ from 1); pairs have them under `chosen_` and
    `rejected_`, and labelled rows a bool `label`. `TokenLoader` makes batches.

    Attributes:
        name, split: what was opened.
        digest: hex BLAKE3 of the content, in order; equal digests mean equal rows.
        version: hex digest of the content of all splits; `open_dataset(…, version=…)` opens the same again.
        pad_token_id, vocab_size, max_length: of the tokenizer in force.
        packed: whether rows hold several documents.
    """

    def __init__(
        self, store: ArtifactStore, manifest: Manifest, split: str, verify: bool = True, hold: ReadLock | None = None
    ):
        self._hold = hold  # as long as this lives
        self.name, self.split, self.version = manifest.dataset, split, manifest.digest
        self._store, self._chunks, self._verify = store, tuple(manifest.of_split(split)), verify
        self._facts, self._weighted = manifest.facts, manifest.counters.get(WEIGHTED, 1) > 0
        self._all_trained = manifest.counters.get(TRAINED) == manifest.total("tokens")
        self.digest = digest_json([chunk.output for chunk in self._chunks])

    def __len__(self) -> int:
        return sum(chunk.table_rows for chunk in self._chunks)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        batch = self.reader.batch(np.array([row % len(self)]), self.padding("longest"))
        return unpadded(batch)[0]

    @cached_property
    def reader(self) -> SequenceReader:
        """The chunks, each opened when first used."""
        objects, chunks, name, verify = self._store.objects, self._chunks, self.name, self._verify

        objects.fetch(chunk.output for chunk in chunks)

        def opened(chunk: int) -> MappedObject:
            return MappedObject(objects, chunks[chunk], name, DEFERRED, verify)

        return SequenceReader([chunk.table_rows for chunk in chunks], opened, self._weighted, self._all_trained)

    @property
    def pad_token_id(self) -> int:
        return self._facts["pad_token_id"]

    @property
    def vocab_size(self) -> int:
        return self._facts["vocab_size"]

    @property
    def max_length(self) -> int:
        return self._facts["max_length"]

    @property
    def packed(self) -> bool:
        return self._facts["packed"]

    def digest_until(self, position: int) -> str:
        """The digest, which tells the rows before any position."""
        return self.digest

    @property
    def tokens(self) -> int:
        """How many tokens the rows hold together."""
        return sum(chunk.tokens for chunk in self._chunks)

    @property
    def tokenizer_digest(self) -> str:
        """The digest of the tokenizer's files."""
        return self._facts["tokenizer"]

    @property
    def vocabulary_digest(self) -> str:
        """Hex BLAKE3 of the tokenizer's tokenizer.json, whatever chat template and names of tokens stand beside it."""
        return digest_bytes((Path(self.tokenizer_path) / "tokenizer.json").read_bytes())

    @property
    def kind(self) -> str:
        """What a row is: `sequence`, or in preference data `pair`, or in kto data `labelled sequence`."""
        columns = self._store.objects.get(self._chunks[0].output).column_names if self._chunks else []
        return "labelled sequence" if "label" in columns else "pair" if "chosen_input_ids" in columns else "sequence"

    @property
    def tokenizer_path(self) -> str:
        """A folder that `transformers.AutoTokenizer.from_pretrained` loads."""
        return str(self._store.tokenizer_folder(self._facts["tokenizer"]))

    def trace(self, row: int) -> TracedRow:
        """Where a row comes from."""
        return traced(self._store.objects, self._chunks, self.name, row)

    def order(self, seed: int, shuffle: Shuffle) -> RowOrder:
        """Which row stands at which running position."""
        return RowOrder(max(len(self), 1), self.digest, seed, shuffle)

    def padding(self, padding: Any = "max_length", side: Any = "right") -> PaddingPolicy:
        """How batches of this dataset are padded."""
        return PaddingPolicy(self.pad_token_id, padding, side, self.max_length, self.packed)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "reader"}


def open_dataset(
    name: str,
    split: str = "train",
    store: str | os.PathLike[str] | None = None,
    version: str | None = None,
    verify: bool = True,
) -> TokenDataset:
    """Open a built dataset by name. Reads the store, nothing else; what is open in a folder `gc` leaves.

    Args:
        name: the dataset's name: its YAML's stem, or the YAML's `name`.
        store: the store's folder, or s3://bucket/prefix; default `$TOKENLOOM_STORE`, else `.tokenloom`.
        version: an older state of the dataset: the first characters of its digest, at least 4, or a date, which names
            the last state published by then (`2026-03-01`, `2026-03-01T12:00+02:00`; UTC where no zone is named).
        verify: hold the bytes of the dataset, when they are first read, against digests that the build took; rows
            that are damaged raise a StoreError instead of being returned.

    Raises:
        DatasetNotFoundError: no such dataset, split or version; the message lists those there are.
        StoreError: the store is damaged.
    """
    opened = ArtifactStore(store)
    return open_split(opened, opened.manifest_digest(name, version=version), split, verify)


def open_split(store: ArtifactStore, digest: str, split: str, verify: bool = True) -> TokenDataset:
    """A split of the sequences whose manifest object has that digest.

    Raises:
        DatasetNotFoundError: there is no such split; the message lists those there are.
        StoreError: the store is damaged.
    """
    hold = store.read_lock(digest)
    manifest = store.manifest_at(digest)
    if split not in manifest.splits:
        close = difflib.get_close_matches(split, manifest.splits, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DatasetNotFoundError(
            f"dataset {manifest.dataset!r} has no split {split!r}; {hint}it has {', '.join(manifest.splits)}"
        )
    return TokenDataset(store, manifest, split, verify, hold)
