"""Several built datasets as one: rows interleaved by exact weights, each dataset in its own order; and the rows of
either kind as Arrow tables without padding, for libraries that build their own batches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import MixtureEndedError, StoreError
from tokenloom.loaders.datasets.token_dataset import TokenDataset, TracedRow, open_split, saved_version
from tokenloom.loaders.order.batch_plan import POSITIONS
from tokenloom.loaders.order.mixture import By, Mixture, MixtureOrder, Source
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.reading.batch import Batch, PaddingPolicy, flat_columns, kept_values, side_of
from tokenloom.loaders.reading.images import ImageSource
from tokenloom.loaders.reading.memory import FarChunks
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import MIXTURE
from tokenloom.resources.tables.ragged import SIDES, Ints, list_array, offsets_of
from tokenloom.resources.tables.sequence_schema import LABEL


@dataclass(frozen=True)
class Share:
    """One dataset's contribution to an epoch of a mixture.

    Args:
        dataset: the dataset's name in the mixture.
        rows, tokens: size of the dataset.
        taken: rows of the dataset in one epoch of the mixture.
        epochs: passes over the dataset in one epoch of the mixture.
        row_share: the dataset's fraction of the mixture's rows.
        token_share: its fraction of the mixture's tokens, estimated from its mean row length.
    """

    dataset: str
    rows: int
    tokens: int
    taken: int
    epochs: float
    row_share: float
    token_share: float


class MixedOrder:
    """The rows of a `MixedDataset` by position."""

    def __init__(self, order: MixtureOrder, first_row: Ints):
        self._order, self._first_row = order, first_row

    def span(self, begin: int, end: int) -> Ints:
        """Return the rows at positions [begin, end), int64, numbered across all datasets.

        Raises:
            MixtureEndedError: all datasets reach their `epochs` before `end`.
        """
        if (last := self._order.end) is not None and end > last:
            raise MixtureEndedError(
                f"the mixture ends after {last} rows, when all its datasets have reached their `epochs`; train one "
                "epoch, or remove `epochs` from a dataset"
            )
        places = self._order.span(begin, end)
        return self._first_row[places[:, 0]] + places[:, 1]


class MixedDataset:
    """Several built datasets that a `TokenLoader` reads as one, interleaved by weight.

    An epoch ends when the last dataset with `epochs` has reached them. If no dataset has `epochs`, an epoch has as many
    rows as all datasets together. `change` returns a dataset that continues with other weights from a position on.

    Args:
        datasets: the datasets, by the names that `weights` uses.
        weights: a weight above 0 for each name.
        by: the unit of weights: `tokens`, `rows`, or `size`: all rows of the dataset, so that with weights of 1, the
            default, an epoch has each row of all datasets once.
        epochs: for some names, the maximum number of passes over the dataset.
        mixture: replaces the last three; its sources must be these datasets.

    Attributes:
        mixture: chooses the dataset at each position.

    Raises:
        ValueError: two datasets do not fit into one batch, or the weights are not valid.
    """

    def __init__(
        self,
        datasets: Mapping[str, TokenDataset],
        weights: Mapping[str, float] | None = None,
        by: By = "tokens",
        epochs: Mapping[str, float] | None = None,
        mixture: Mixture | None = None,
    ):
        self.datasets = dict(datasets)
        shown = {name: each for name, each in self.datasets.items() if each.images}
        # neighbours are enough: to agree is transitive, for image processors among the datasets that have one
        for (first, one), (second, other) in (*pairwise(self.datasets.items()), *pairwise(shown.items())):
            if mismatch := _mismatch(first, one, second, other):
                raise ValueError(mismatch)
        if mixture is None:
            limits = epochs or {}
            sources = [_source(name, each, limits.get(name)) for name, each in self.datasets.items()]
            mixture = Mixture(sources, weights or (dict.fromkeys(self.datasets, 1.0) if by == "size" else {}), by)
        self.mixture = mixture
        self._all: Sequence[TokenDataset] = [self.datasets[source.name] for source in mixture.sources]
        first = self._all[0]  # all datasets agree in these
        self.pad_token_id, self.vocab_size = first.pad_token_id, first.vocab_size
        self.packed, self.trees = first.packed, first.trees

    def change(
        self,
        at: int,
        weights: Mapping[str, float],
        datasets: Mapping[str, TokenDataset] | None = None,
        epochs: Mapping[str, float] | None = None,
    ) -> MixedDataset:
        """Return the same dataset up to a position, continued with other weights or more datasets.

        Args:
            at: position of the change, in rows of all ranks since the start.
            weights: a weight above 0 for each dataset that continues; datasets without one are paused.
            datasets: datasets to add, by name.
            epochs: for some of the added names, the maximum number of passes over the dataset.

        Raises:
            ValueError: `at` is not after the previous change or is after the end, a dataset does not fit, or the
                weights are not valid.
        """
        limits, more = epochs or {}, datasets or {}
        sources = [_source(name, each, limits.get(name)) for name, each in more.items()]
        return MixedDataset({**self.datasets, **more}, mixture=self.mixture.change(at, weights, sources))

    @property
    def digest(self) -> str:
        """Hex BLAKE3 of the datasets' content and the mixture."""
        return self.order_digest(POSITIONS)

    def order_digest(self, position: int) -> str:
        """Return the digest that shuffles the batches of a token budget before a position: `digest` without later
        changes."""
        past, datasets = self._until(position)
        return digest_json([{"by": self.mixture.by, "changes": past}, [each.digest for each in datasets]])

    @property
    def versions(self) -> dict[str, str]:
        """Each dataset's version, by the dataset's name."""
        return {name: version for each in self._all for name, version in each.versions.items()}

    def digest_until(self, position: int) -> str:
        """Return the hex BLAKE3 of all that determines the rows before a position; later changes do not count."""
        past, datasets = self._until(position)
        return digest_json([self.mixture.by, past, [each.digest_until(0) for each in datasets]])

    def _until(self, position: int) -> tuple[list[Any], Sequence[TokenDataset]]:
        past = [change for change in self.mixture.to_json()["changes"] if change["at"] == 0 or change["at"] < position]
        return past, self._all[: sum(len(change["sources"]) for change in past)]

    def __len__(self) -> int:
        return len(self.mixture)

    def trace(self, row: int) -> TracedRow:
        """Return where a row comes from; rows are numbered across all datasets."""
        first_row = offsets_of(np.array([len(each) for each in self._all]))
        number = int(np.searchsorted(first_row, row, side="right")) - 1
        return self._all[number].trace(row - int(first_row[number]))

    def order(self, seed: int, shuffle: Shuffle) -> MixedOrder:
        """Return the rows by position, with positions counted across epochs."""
        orders = [each.order(seed, shuffle) for each in self._all]
        first_row = offsets_of(np.array([len(each) for each in self._all]))
        return MixedOrder(MixtureOrder(self.mixture, orders), first_row)

    def shares(self) -> list[Share]:
        """Return each dataset's contribution to the first epoch."""
        taken = self.mixture.given(len(self))
        tokens = [rows * each.tokens / len(each) for rows, each in zip(taken, self._all, strict=True)]
        return [
            Share(
                source.name, len(each), each.tokens, rows, rows / len(each), rows / len(self), part / (sum(tokens) or 1)
            )
            for source, each, rows, part in zip(self.mixture.sources, self._all, taken, tokens, strict=True)
        ]

    def lengths(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]; for pairs, of the longer side. Opens no chunk."""
        first_row = offsets_of(np.array([len(each) for each in self._all]))
        numbers = np.searchsorted(first_row, rows, side="right") - 1
        lengths = np.empty(len(rows), np.int64)
        for number in np.unique(numbers).tolist():
            of_dataset = numbers == number
            lengths[of_dataset] = self._all[number].lengths(rows[of_dataset] - first_row[number])
        return lengths

    @property
    def max_length(self) -> int:
        """The largest `max_length` of the datasets."""
        return max(each.max_length for each in self._all)

    @property
    def tokenizer_path(self) -> str:
        """Folder of a tokenizer, which `transformers.AutoTokenizer.from_pretrained` loads: that of the first dataset
        with images, else of the first one."""
        return next((each for each in self._all if each.images), self._all[0]).tokenizer_path

    @property
    def images(self) -> ImageSource | None:
        """The image processor, if rows of a dataset can have images."""
        return next((each.images for each in self._all if each.images), None)

    @cached_property
    def reader(self) -> SequenceReader:
        """Reads the chunks of all datasets."""
        return SequenceReader.joined([each.reader for each in self._all])

    @property
    def far(self) -> FarChunks | None:
        """The chunks of all datasets, if any of them are downloaded to a cache."""
        return self.reader.far if any(each.far for each in self._all) else None

    def bytes_at_once(self, shuffle: Shuffle) -> int:
        """Return about how many bytes an order reads at the same time from chunks that are downloaded; 0: few."""
        return sum(each.bytes_at_once(shuffle) for each in self._all)

    def padding(self, padding: Any = "max_length", side: Any = "right") -> PaddingPolicy:
        """Return how batches are padded: like those of the dataset with the largest `max_length`, to a multiple that
        the documents of all datasets have."""
        policies = [each.padding(padding, side) for each in self._all]
        largest = max(policies, key=lambda policy: policy.max_length)
        return replace(largest, multiple=gcd(*(policy.multiple for policy in policies)))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "reader"}


def _mismatch(first: str, one: TokenDataset, second: str, other: TokenDataset) -> str:
    """Return why the rows of two datasets cannot share a batch, or ""."""
    both = f"{first} and {second}"
    if one.tokenizer_digest != other.tokenizer_digest and one.vocabulary_digest != other.vocabulary_digest:
        return (
            f"{both} were built with different tokenizers; "
            f"for {second}, set tokenizer.name_or_path to the tokenizer of {first}, which is in {one.tokenizer_path}"
        )
    if one.images and other.images and one.images.digest != other.images.digest:
        return f"{both} were built with different image processors; set the same tokenizer.processor for both"
    if (one.pad_token_id, one.vocab_size) != (other.pad_token_id, other.vocab_size):
        return (
            f"{both} differ in pad token or vocabulary size: pad token {one.pad_token_id} of {one.vocab_size}, and "
            f"{other.pad_token_id} of {other.vocab_size}"
        )
    if one.packed != other.packed:
        return f"of {both}, only {first if one.packed else second} is packed; set the same length.packing for both"
    if one.trees != other.trees:
        return f"of {both}, only {first if one.trees else second} has trees; set the same length.packing for both"
    if one.packed and one.max_length != other.max_length:
        return (
            f"{both} are packed to {one.max_length} and {other.max_length} tokens; set the same tokenizer.max_length "
            "for both"
        )
    if bool(one.document_multiple) != bool(other.document_multiple):
        padded = first if one.document_multiple else second
        return f"of {both}, only {padded} has length.document_multiple; set the same for both"
    if one.kind != other.kind:
        return f"each row of {first} is a {one.kind}, but each row of {second} is a {other.kind}"
    return ""


def _source(name: str, dataset: TokenDataset, epochs: float | None) -> Source:
    return Source(name, len(dataset), dataset.tokens, epochs)


def open_mixture(
    name: str,
    split: str = "train",
    store: str | os.PathLike[str] | None = None,
    verify: bool = True,
    pin: str | None = None,
    state: Mapping[str, Any] | None = None,
) -> MixedDataset:
    """Open a built mixture by name. It keeps reading the same dataset versions until it is built again.

    Args:
        name: the mixture's name: the stem of its YAML file, or the YAML's `name`.
        split: a split that each of its datasets has.
        store, verify, pin: as in `open_dataset`.
        state: a loader's state: opens the versions of the datasets that it was saved with, mixed as the mixture now is.

    Raises:
        DatasetNotFoundError: the mixture does not exist, or a dataset lacks the split; the message lists what exists.
        LoaderStateError: the state names no version of a dataset.
        StoreError: the store is damaged.
        ValueError: two of its datasets do not fit into one batch.
    """
    opened = ArtifactStore(store)
    if pin is None and state is None:
        return _latest(opened, name, split, verify)
    if pin is None:
        manifest = opened.manifest(name, MIXTURE)
    else:
        manifest = opened.manifest_at(opened.pinned(name, pin, MIXTURE).stages[MIXTURE])
    if state is not None:
        saved = {each: saved_version(opened, state, each) for each in manifest.pinned}
        opens = {each: opened.manifest_digest(each, version=version) for each, version in saved.items()}
        manifest = replace(manifest, notes=manifest.notes | {"manifests": opens})
    return mixed_dataset(opened, manifest, split, verify)


def _latest(store: ArtifactStore, name: str, split: str, verify: bool) -> MixedDataset:
    """Open the latest state of a mixture, also if builds replace it and `gc` removes its datasets in the meantime."""
    while True:
        digest = store.manifest_digest(name, MIXTURE)
        try:
            return mixed_dataset(store, store.manifest_at(digest), split, verify)
        except StoreError:
            # else a build has replaced it meanwhile: the error is of the old state
            if store.manifest_digest(name, MIXTURE) == digest:
                raise


def mixed_dataset(store: ArtifactStore, manifest: Manifest, split: str = "train", verify: bool = True) -> MixedDataset:
    """Return the mixture that a manifest describes."""
    try:
        sources = {source["dataset"]: source for source in manifest.facts["datasets"]}
        digests = {name: manifest.pinned[name] for name in sources}
        weights = {name: float(source["weight"]) for name, source in sources.items()}
        epochs = {name: float(source["epochs"]) for name, source in sources.items() if source["epochs"] is not None}
        by = manifest.facts["by"]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the manifest of mixture {manifest.dataset!r} is damaged; build it again") from error
    datasets = {name: open_split(store, digest, split, verify) for name, digest in digests.items()}
    return MixedDataset(datasets, weights, by, epochs)


ROWS_AT_ONCE = 4096
ILLUSTRATED_AT_ONCE = 64
"""Rows per table with image files, which are larger."""

_FILES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
TOKENS_AT_ONCE = 1 << 20
"""Tokens per table, padding included."""

LENGTHS = "seq_lengths"
"""Column with the lengths of a packed row's documents; TRL reads it under this name."""

TYPES: dict[str, type[np.generic]] = {
    "input_ids": np.int32,
    "attention_mask": np.int8,
    "labels": np.int32,
    "position_ids": np.int32,
    "attention_ends": np.int32,
    "loss_weights": np.float32,
}


def row_tables(dataset: TokenDataset | MixedDataset, first: int = 0) -> Iterator[pa.Table]:
    """Yield all rows in order, up to 4096 per table; for a mixture, the rows of its first epoch.

    Args:
        first: the row to begin with, at which a table of the whole dataset begins.

    Row n is the row that a `TokenLoader` with `shuffle="none"` reads at position n, without its padding.

    Columns are lists: int32 `input_ids`, int8 `attention_mask`, int32 `labels` (-100 where not trained). Packed rows
    also have int32 `position_ids` and `seq_lengths`, the number of tokens in each document; those of trees have int32
    `attention_ends` instead of the latter. If weights differ from 1, there are float32 `loss_weights`; the columns of
    `token_columns` are float32 too. Pairs have these columns twice, prefixed with `chosen_` and `rejected_`. KTO rows
    have a bool `label`. The columns of `keep_columns` keep their type if it is the same in all chunks; otherwise they
    are JSON text. For packed rows they are lists with one value per document. Datasets with images have a column
    `images` with the list of each row's image files, as the feature `Image` of datasets holds them.

    Raises:
        StoreError: bytes of a row are missing or damaged.
    """
    kept, images = dataset.reader.kept.types() if dataset.reader.kept else {}, dataset.images is not None
    order, policy = dataset.order(0, "none"), dataset.padding("longest")
    step = ILLUSTRATED_AT_ONCE if images else ROWS_AT_ONCE
    # tables are those of a read from row 0, so that a later `first` gives the same files
    for begin in range(first - first % step, len(dataset), step):
        rows, skipped = order.span(begin, min(begin + step, len(dataset))), max(first - begin, 0)
        for block in row_blocks(rows, dataset.lengths(rows)):
            rest, skipped = block[skipped:], max(skipped - len(block), 0)
            if not len(rest):
                continue
            table = row_table(dataset.reader.batch(rest, policy, images=False), kept)
            if images:
                files = dataset.reader.image_files(rest)
                structs = [[{"bytes": content, "path": None} for content in row] for row in files]
                table = table.append_column("images", pa.array(structs, _FILES))
            yield table


def row_table(batch: Batch, kept: Mapping[str, pa.DataType | None] | None = None) -> pa.Table:
    """Return the rows of a batch as a table, without padding.

    Args:
        kept: type of each kept column; None: JSON text. Default: no kept columns.
    """
    columns: dict[str, Any] = {}
    for name, (values, lengths) in flat_columns(batch).items():
        side = side_of(name)
        kind = name.removeprefix(side)
        columns[name] = list_array(offsets_of(lengths), values.astype(TYPES.get(kind, np.float32), copy=False))
        if kind == "position_ids" and "attention_ends" not in batch:
            starts = np.flatnonzero(values == 0)  # a document begins at each position 0
            sizes = np.diff(starts, append=len(values)).astype(np.int32)
            columns[f"{side}{LENGTHS}"] = list_array(np.searchsorted(starts, offsets_of(lengths)), sizes)
    if LABEL in batch:
        columns[LABEL] = pa.array(np.asarray(batch[LABEL]))
    values, packed = kept_values(batch), any(f"{side}position_ids" in batch for side in ("", f"{SIDES[0]}_"))
    for name, kind in (kept or {}).items():
        column = values[name]
        if kind is None:
            column = [[*map(_json_text, value)] if packed else _json_text(value) for value in column]
        kind = kind or pa.string()
        columns[name] = pa.array(column, pa.list_(kind) if packed else kind)
    return pa.table(columns)


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, default=str)


def row_blocks(rows: Ints, lengths: Ints) -> Iterator[Ints]:
    """Split rows into blocks of at most `TOKENS_AT_ONCE` tokens, padding included, and at least one row."""
    begin = 0
    while begin < len(rows):
        # size of a batch of the rows so far: its longest row times their number
        padded = np.maximum.accumulate(lengths[begin:]) * np.arange(1, len(rows) - begin + 1)
        end = begin + max(int(np.searchsorted(padded, TOKENS_AT_ONCE, side="right")), 1)
        yield rows[begin:end]
        begin = end
