"""Opens a built dataset: a map-style view of one split, memory-mapped from the store, and the origin of its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import index
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
from torch.utils.data import Dataset

from tokenloom.errors import DatasetNotFoundError, LoaderStateError, StoreError, StoreUnavailableError, did_you_mean
from tokenloom.loaders.datasets.hub import PROTOCOL, hub_store
from tokenloom.loaders.order.resume_state import versions_in
from tokenloom.loaders.order.row_order import RowOrder, Shuffle
from tokenloom.loaders.reading.batch import LengthsFile, PaddingPolicy, RowLengths, unpadded
from tokenloom.loaders.reading.images import ImageCache, ImageSource, SequenceImages
from tokenloom.loaders.reading.memory import FarChunks, MappedObject
from tokenloom.loaders.reading.reader import DEFERRED, SequenceReader
from tokenloom.resources.digest import LENGTHS_BLOCK, block_digests, digest_bytes, digest_json
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import LENGTHS, TRAINED, WEIGHTED
from tokenloom.resources.store.manifest_chunks import ManifestChunks
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.store.versions import LOADED, ReadLock
from tokenloom.resources.tables.ragged import Ints, offsets_of
from tokenloom.resources.tables.sequence_schema import (
    LENGTH,
    MEDIA,
    PER_TOKEN,
    PROMPT,
    ROWS,
    SequenceFacts,
    check_lengths,
    check_lengths_type,
    check_sequences,
    check_sidecar,
    length_type,
)


@dataclass(frozen=True)
class TracedRow:
    """The origin of one row of a batch.

    Args:
        dataset, split: the dataset and split that the row was read from.
        row: the row's number in the split.
        places: the raw row of each of its documents, such as `train.jsonl:17`.
        object: digest of the stored object that contains the row.
        images: digest of the bytes of each of its images.
    """

    dataset: str
    split: str
    row: int
    places: tuple[str, ...]
    object: str
    images: tuple[str, ...] = ()


def traced(load: Callable[[int], pa.Table], chunks: ManifestChunks, dataset: str, row: int) -> TracedRow:
    """Return the origin of one row of a split. Opens only the chunk that contains it, with `load`.

    Raises:
        IndexError: `row` is out of range.
        StoreError: the chunk is missing or damaged.
    """
    first = offsets_of(chunks.numbers("table_rows"))
    if not 0 <= row < first[-1]:
        raise IndexError(f"row {row} is out of range: the split has {first[-1]} rows")
    # "right" skips chunks without rows, which begin where the next one does
    number = int(np.searchsorted(first, row, side="right")) - 1
    chunk = chunks[number]
    table = load(number).slice(row - int(first[number]), 1)
    documents = table[ROWS][0].as_py()
    images = [image[MEDIA] for image in table[MEDIA][0].as_py()] if MEDIA in table.column_names else []
    return TracedRow(dataset, chunk.split, row, tuple(map(chunk.place, documents)), chunk.output, tuple(images))


_SMALL_FILE = 1 << 12
"""More bytes than an object of lengths has besides the lengths."""


class TokenDataset(Dataset[dict[str, Any]]):
    """The sequences of one split of a built dataset, as a map-style dataset. `open_dataset` opens one by name.

    `dataset[i]` is row i without padding: int64 [length] `input_ids`, `attention_mask` and `labels` (-100 where not
    trained). Packed rows also have int64 `position_ids`, and rows of datasets whose weights differ from 1 have float32
    `loss_weights`. Pairs have these columns twice, prefixed with `chosen_` and `rejected_`. Labelled rows have a bool
    `label`; prompts have no `labels`. The values of `keep_columns` come under their own names; for packed rows, as a
    list with one value per document. For batches, use `TokenLoader`.

    Args:
        store, manifest, split: where the rows are stored, and which.
        verify: whether to check the hash of each object before it is read.
        hold: keeps `gc` from removing the version while this object lives, or None.
        manifest_object: the hex digest of the object that holds the manifest: other processes are sent it instead of
            the manifest. None: they are sent the manifest.

    Attributes:
        name, split: name of the dataset and of the split.
        digest: hex BLAKE3 of the rows in order; equal digests mean equal rows.
        version: hex digest of the manifest of all splits; `open_dataset(…, version=…)` opens this version again.
        kind: of a row: `sequence`, `prompt`, `pair` (preference data) or `labelled sequence` (KTO data).
        tokenizer_digest: the digest of the tokenizer's files.
        pad_token_id, vocab_size: of the dataset's tokenizer.
        max_length: maximum number of tokens per row.
        packed: whether a row can hold several documents.
        trees: whether the documents of a row are nodes of trees, as `packing: tree` makes them.
        document_multiple: the multiple of tokens that documents are padded to; 0: they are not padded.
        keep_columns: names of the columns of `dataset.keep_columns`.
    """

    def __init__(
        self,
        store: ArtifactStore,
        manifest: Manifest,
        split: str,
        verify: bool = True,
        hold: ReadLock | None = None,
        manifest_object: str | None = None,
    ):
        self._hold, self._manifest_object = hold, manifest_object  # the lock keeps gc away while this object lives
        self.name, self.split, self.version = manifest.dataset, split, manifest.digest
        self._store, self._verify, self._manifest = store, verify, manifest
        try:
            self._facts = facts = SequenceFacts.of(manifest.facts)
        except ValueError as error:
            raise StoreError(f"dataset {self.name!r}: its manifest {error}; build it again") from error
        self.pad_token_id, self.vocab_size, self.max_length = facts.pad_token_id, facts.vocab_size, facts.max_length
        self.tokenizer_digest, self.kind = facts.tokenizer, facts.kind
        self.packed, self.trees, self.document_multiple = facts.packed, facts.trees, facts.document_multiple
        self._weighted = manifest.counters.get(WEIGHTED, 1) > 0
        self._all_trained = manifest.counters.get(TRAINED) == manifest.total("tokens")
        self.digest, self._rows = self.chunks.outputs_digest, self.chunks.total("table_rows")
        sidecars = store.manifest_at(manifest.sidecars) if manifest.sidecars else None
        self._sidecars = sidecars.of_split(split) if sidecars else ()
        names = sidecars.facts.get("columns") if sidecars else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise StoreError(f"dataset {self.name!r}: the manifest of its sidecars is damaged; build it again")
        self.keep_columns = tuple(names)
        if sidecars and len(self._sidecars) != len(self.chunks):
            raise StoreError(f"dataset {self.name!r}: its sidecars are those of other chunks; build it again")

    @cached_property
    def _manifest(self) -> Manifest:
        """The manifest. Other processes are sent the digest of its object, and map it again; a StoreError if it is
        removed."""
        assert self._manifest_object is not None
        try:
            return self._store.manifest_at(self._manifest_object)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            raise StoreError(f"dataset {self.name!r}: version {self.version[:16]} cannot be opened: {error}") from None

    @cached_property
    def chunks(self) -> ManifestChunks:
        """The chunks of the split, in order."""
        return self._manifest.of_split(self.split)

    @cached_property
    def _sidecars(self) -> ManifestChunks | tuple[()]:
        named = self._manifest.sidecars
        return self._store.manifest_at(named).of_split(self.split) if named else ()

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, row: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, row: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, row: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(row, slice):
            return self.__getitems__(range(*row.indices(len(self))))
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows, read at once, as a `DataLoader` over the dataset or over a part of it asks for them.

        Raises:
            IndexError: a row is out of range.
            TypeError: a row is not an integer.
        """
        numbers = [_row_number(row, len(self)) for row in rows]
        size = 1 if self.images else max(len(numbers), 1)  # images belong to a batch as a whole
        parts = [np.array(numbers[begin : begin + size]) for begin in range(0, len(numbers), size)]
        return [row for part in parts for row in unpadded(self.reader.batch(part, self.padding("longest")))]

    @cached_property
    def reader(self) -> SequenceReader:
        """Reads the chunks, each of which is opened, and downloaded from a bucket, when it is first read."""
        objects, name, verify = self._store.objects, self.name, self._verify
        chunks, sidecars, columns = self.chunks, self._sidecars, self.keep_columns

        def sidecar(chunk: int) -> pa.Table:
            return MappedObject(
                objects, sidecars[chunk], name, lambda table: check_sidecar(table, columns), (), verify
            ).table

        rows, has_labels = chunks.numbers("table_rows"), self.kind != PROMPT
        kept = (self.keep_columns, sidecar) if self.keep_columns else None
        images = None
        if self.images is not None:
            media = self._store.media
            images = SequenceImages(self.images, lambda _, digest: media.read(digest), ImageCache.from_environment())
        # the reader must not refer to the dataset as a whole: `_opened` is a bound method
        opened, weighted, trained = self._opened, self._weighted, self._all_trained
        of_tokens = self._facts.token_columns
        return SequenceReader(rows, opened, weighted, trained, has_labels, kept, self.far, images, of_tokens)

    @cached_property
    def images(self) -> ImageSource | None:
        """The image processor, if rows can have images."""
        return ImageSource(self._store.tokenizer_folder(self._facts.tokenizer)) if self._facts.images else None

    @cached_property
    def far(self) -> FarChunks | None:
        """The chunks that are downloaded to a cache; None for a local store."""
        if (cache := self._store.blobs.cache) is None:
            return None
        columns = [self.chunks, self._sidecars] if self._sidecars else [self.chunks]
        sizes = np.sum([column.numbers("bytes") for column in columns], axis=0)

        def download(chunks: Ints, objects: ObjectStore = self._store.objects) -> None:
            objects.fetch(column[chunk].output for chunk in chunks.tolist() for column in columns)

        return FarChunks(sizes, cache.limit, download)

    def bytes_at_once(self, shuffle: Shuffle) -> int:
        """Return about how many bytes an order reads at the same time from chunks that are downloaded; 0: few."""
        if self.far is None or shuffle == "none":
            return 0
        return int(self.far.sizes.sum()) // self.order(0, shuffle).windows

    def _opened(self, chunk: int) -> MappedObject:
        objects, facts = self._store.objects, self._facts
        deferred = (*DEFERRED, *(f"{PER_TOKEN}{name}" for name in facts.token_columns))
        return MappedObject(
            objects, self.chunks[chunk], self.name, lambda table: check_sequences(table, facts), deferred, self._verify
        )

    def chunk_table(self, chunk: int) -> pa.Table:
        """Return a chunk as it is stored.

        Raises:
            StoreError: its bytes are missing or damaged.
        """
        return self._store.objects.get_intact(self.chunks[chunk].output)

    def lengths(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]; for pairs, of the longer side. Opens no chunk.

        Raises:
            StoreError: the lengths of a chunk are missing or damaged.
        """
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"a row is outside of the {len(self)} rows")
        lengths, first_row, shift = self._lengths
        return lengths.of(rows + shift[first_row.searchsorted(rows, "right") - 1])

    @cached_property
    def _lengths(self) -> tuple[RowLengths, Ints, Ints]:
        """The lengths of the rows of all splits. For each chunk: its first row, and what to add to it to get its number
        among the rows of all splits; int64 [chunks] each."""
        chunks, of_all = self.chunks, self._manifest.chunks
        every = offsets_of(of_all.numbers("table_rows"))
        first_row = offsets_of(chunks.numbers("table_rows"))[:-1]
        joined = self._manifest.named.get(LENGTHS)
        groups = self._store.manifest_at(joined).chunks if joined else of_all
        rows = groups.numbers("table_rows")
        if rows.sum() != every[-1]:
            raise StoreError(f"dataset {self.name!r}: its lengths are those of other chunks; build it again")
        load = partial(self._lengths_file, groups, joined is not None)
        sizes = groups.numbers("bytes") if joined else 4 * rows + _SMALL_FILE
        return RowLengths(rows, sizes, load, self.max_length), first_row, every[chunks.rows] - first_row

    def _lengths_file(self, chunks: ManifestChunks, joined: bool, number: int) -> LengthsFile:
        """Open the lengths of a group of chunks or, in a version of the dataset without groups, of a chunk."""
        objects, chunk = self._store.objects, chunks[number]
        check = partial(check_lengths_type, kind=length_type(self.max_length))
        if not joined:
            digest = chunk.lengths or ""
            check = partial(check_lengths, rows=chunk.table_rows, longest=self.max_length)
            objects.get_intact(digest)
            # older versions have no block digests of lengths: the file is checked whole, then cut into blocks
            data = memoryview(objects.mapped(digest))
            blocks = block_digests(data, LENGTHS_BLOCK).hex()
            chunk = replace(chunk, output=digest, bytes=len(data), blocks=blocks)
        opened = MappedObject(objects, chunk, self.name, check, (LENGTH,), self._verify)
        digests = bytes.fromhex(chunk.blocks) if self._verify else b""

        def damaged(problem: str) -> StoreError:
            remedy = f"run `tokenloom verify {self.name}`, then build it again"
            return StoreError(f"dataset {self.name!r}: object {chunk.output} {problem}; {remedy}")

        return LengthsFile(partial(objects.path, chunk.output), *opened.values_of(LENGTH), digests, damaged)

    def digest_until(self, position: int) -> str:
        """Return a digest that determines the rows before any position, with the pixels of their images."""
        return digest_json([self.digest, self.images.digest]) if self.images else self.digest

    def order_digest(self, position: int) -> str:
        """Return the digest that shuffles the batches of a token budget before any position."""
        return self.digest

    @property
    def versions(self) -> dict[str, str]:
        """The version, by the dataset's name."""
        return {self.name: self.version}

    @property
    def tokens(self) -> int:
        """Number of tokens in all rows."""
        return self.chunks.total("tokens")

    @property
    def vocabulary_digest(self) -> str:
        """Hex BLAKE3 of the tokenizer's tokenizer.json alone, without chat template and special-token files."""
        return digest_bytes((Path(self.tokenizer_path) / "tokenizer.json").read_bytes())

    @property
    def tokenizer_path(self) -> str:
        """Folder of the tokenizer, which `transformers.AutoTokenizer.from_pretrained` loads."""
        return str(self._store.tokenizer_folder(self._facts.tokenizer))

    def trace(self, row: int) -> TracedRow:
        """Return where a row comes from: the files and raw rows of its documents."""
        return traced(lambda chunk: self._opened(chunk).table, self.chunks, self.name, row)

    def order(self, seed: int, shuffle: Shuffle) -> RowOrder:
        """Return the rows by position, with positions counted across epochs."""
        chunks = self.chunks.numbers("table_rows")
        rows = int(chunks.sum())
        return RowOrder(max(rows, 1), self.digest, seed, shuffle, chunks if rows else None)

    def padding(self, padding: Any = "max_length", side: Any = "right") -> PaddingPolicy:
        """Return how batches of this dataset are padded."""
        multiple = self.document_multiple or 1
        return PaddingPolicy(self.pad_token_id, padding, side, self.max_length, self.packed, multiple)

    def __getstate__(self) -> dict[str, Any]:
        # memory maps and locks belong to a process: another one opens its own
        dropped = {"reader", "far", "_lengths"}
        if self._manifest_object is not None:
            dropped |= {"_manifest", "chunks", "_sidecars"}
        return {name: value for name, value in self.__dict__.items() if name not in dropped}


def _row_number(row: Any, rows: int) -> int:
    try:
        number = index(row)
    except TypeError:
        message = f"rows are chosen by an integer or a slice, got a {type(row).__name__}; for some rows, use"
        raise TypeError(f"{message} torch.utils.data.Subset(dataset, rows)") from None
    if not -rows <= number < rows:
        raise IndexError(f"row {number} of {rows}")
    return number % rows


def open_dataset(
    name: str,
    split: str = "train",
    store: str | os.PathLike[str] | None = None,
    version: str | None = None,
    verify: bool = True,
    pin: str | None = None,
    state: Mapping[str, Any] | None = None,
) -> TokenDataset:
    """Open a built dataset by name. Reads only the store. `gc` keeps the files of open datasets in a local store.

    Args:
        name: the dataset's name: the stem of its YAML file, or the YAML's `name`. `hf://org/name@revision` opens a
            dataset that `tokenloom push` sent to the Hugging Face Hub, through the caches of the hub and of tokenloom;
            it has the same digests, order and states as where it was built.
        split: name of the split.
        store: the store's folder, or s3://bucket/prefix; default: `$TOKENLOOM_STORE`, else the nearest
            `.tokenloom` in or above the working directory.
        version: an older version: at least the first 4 characters of its digest, or a date for the last version
            published by then (`2026-03-01` or `2026-03-01T12:00+02:00`; UTC without a time zone).
        verify: check the bytes of the dataset against the digests of the build when they are first read; damaged rows
            raise a StoreError instead of being returned.
        pin: name of a training run. Its first call pins the version in the store, so that `gc` keeps it; later calls
            open the pinned version. `tokenloom unpin` removes the pin.
        state: a loader's state: opens the version that it was saved with.

    Raises:
        DatasetNotFoundError: the dataset, split or version does not exist, or the run pins another version; the message
            lists what exists.
        LoaderStateError: the state names no version of this dataset.
        StoreError: the store is damaged.
        ValueError: `pin` is not a valid name, or both `version` and `state` are given.
    """
    if name.startswith(PROTOCOL):
        opened, name, pushed = hub_store(name, version)
        version = pushed if state is None else version
    else:
        opened = ArtifactStore(store)
    if state is not None:
        if version is not None:
            raise ValueError("give version or state, not both")
        version = saved_version(opened, state, name)
    if pin is not None:
        pinned = opened.pinned(name, pin) if version is None else opened.pin(name, pin, version)
        return open_split(opened, pinned.stages[LOADED], split, verify)
    if version is not None:
        return open_split(opened, opened.manifest_digest(name, version=version), split, verify)
    digest, hold = opened.hold_latest(name)
    return open_split(opened, digest, split, verify, hold)


def saved_version(store: ArtifactStore, state: Mapping[str, Any], name: str) -> str:
    """Return the version of a dataset that a loader's state was saved with.

    Raises:
        LoaderStateError: the state names none.
        DatasetNotFoundError: the store no longer has it.
    """
    version = versions_in(state).get(name)
    if version is None:
        raise LoaderStateError(f"the state names no version of the dataset {name!r}; open it with `version`")
    digests = [each.digest for each in store.versions.of(name)]
    if digests and not any(digest.startswith(version) for digest in digests):
        raise DatasetNotFoundError(
            f"the state was saved with version {version} of {name!r}, which gc has removed; build the same rows with "
            f"the same YAML to get it again, and keep the versions of runs: tokenloom pin {name}@VERSION --as RUN"
        )
    return version


def open_split(
    store: ArtifactStore, digest: str, split: str, verify: bool = True, hold: ReadLock | None = None
) -> TokenDataset:
    """Open a split of the sequences whose manifest has this digest; `hold` is its lock, if the caller has it.

    Raises:
        DatasetNotFoundError: the split does not exist; the message lists the splits.
        StoreError: the store is damaged.
    """
    # locked before it is read: `gc` could remove it in between
    hold = hold or store.read_lock(digest)
    manifest = store.manifest_at(digest)
    if split not in manifest.splits:
        raise DatasetNotFoundError(
            f"dataset {manifest.dataset!r} has no split {split!r}, only {', '.join(manifest.splits)}"
            f"{did_you_mean(split, manifest.splits)}"
        )
    return TokenDataset(store, manifest, split, verify, hold, digest)
