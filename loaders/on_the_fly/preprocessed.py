"""A map-style dataset of raw rows that are encoded on first access, and the cache of their sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from torch.utils.data import Dataset

from tokenloom.errors import DataValidationError
from tokenloom.loaders.on_the_fly.row_encoder import HEAD_ROWS, Encoder, RowEncoder, SkippedRow, in_columns, rows_at
from tokenloom.loaders.on_the_fly.row_stream import StreamingPreprocessedDataset
from tokenloom.loaders.reading.batch import Batch, Row, unpadded
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.tables.ragged import Ints, list_parts
from tokenloom.resources.tables.sequence_schema import ROWS

LARGEST = 1 << 30
"""Size in bytes above which tables are not merged."""


class SequenceCache:
    """Sequences by the number of their raw row.

    Sequences are kept as Arrow tables, at about 3 bytes per token. A new table is merged with the previous one if that
    one has no more rows, so there are few tables and each row is copied few times.

    Args:
        raw: the raw rows, by number; see `tokenloom.loaders.on_the_fly.row_encoder`.
        encoder: encodes the rows.
        enabled: keep the sequences; False: keep only the reasons of rows without one.
    """

    def __init__(self, raw: Any, encoder: RowEncoder, enabled: bool):
        self._raw, self._encoder, self._enabled = raw, encoder, enabled
        self.skipped: dict[int, SkippedRow] = {}
        self._tables: list[pa.Table] = []
        self._places = np.zeros(len(raw) if enabled else 0, np.int64)  # 1 + the place among all sequences, or 0
        self._reader = encoder.reader([])
        self._lock = Lock()

    def batch(self, rows: Ints) -> Batch:
        """Return a batch of rows, padded to the longest.

        Raises:
            DataValidationError: a row has no sequence; the message names the row and the reason.
        """
        with self._lock:  # threads can share a dataset
            reader, places = self._encoded(rows)
        if not places.all():
            skipped = self.skipped[int(rows[np.flatnonzero(places == 0)[0]])]
            raise DataValidationError(
                f"{skipped}; to drop such rows, call usable() or pass skip_errors=True to create_preprocessed_dataset"
            )
        return self._encoder.batch(reader, places - 1)

    def are_usable(self, rows: Ints) -> np.ndarray:
        """Return whether each row is exactly one sequence, bool [rows]."""
        with self._lock:
            return self._encoded(rows)[1] > 0

    def _encoded(self, rows: Ints) -> tuple[SequenceReader, Ints]:
        """Return a reader and, for each row, 1 + the place of its sequence in it, or 0 if it has none."""
        unknown = np.unique(rows if not self._enabled else rows[self._places[rows] == 0])
        if self.skipped:
            unknown = unknown[~np.isin(unknown, np.fromiter(self.skipped, np.int64))]
        tables: list[pa.Table] = []
        if len(unknown):
            tables, skipped = self._encoder.encode(rows_at(self._raw, unknown), unknown)
            self.skipped |= {row.row: row for row in skipped}
            tables = [self._one_to_one(table) for table in tables]
        if not self._enabled:
            numbers = np.concatenate([np.zeros(0, np.int64), *(_row_numbers(table) for table in tables)])
            order = np.argsort(numbers)
            index = np.searchsorted(numbers[order], rows)
            index[index == len(numbers)] = 0
            encoded = numbers[order][index] == rows if len(numbers) else np.zeros(len(rows), bool)
            return self._encoder.reader(tables), np.where(encoded, np.append(order, 0)[index] + 1, 0)
        for table in tables:
            self._keep(table)
        if tables:
            self._reader = self._encoder.reader(self._tables)
        return self._reader, self._places[rows]

    def _one_to_one(self, table: pa.Table) -> pa.Table:
        """Keep only sequences that are one whole row; the other rows are skipped."""
        offsets, rows = list_parts(table[ROWS])
        numbers, which, counts = np.unique(rows.to_numpy(), return_inverse=True, return_counts=True)
        several = np.bincount(which, np.repeat(np.diff(offsets), np.diff(offsets)) > 1, len(numbers)) > 0
        # a row in two sequences, or, above, in one with other rows
        several |= counts > 1
        if not several.any():
            return table
        message = (
            "the engine did not build exactly one sequence from it (because of length.strategy: split, or packing): "
            "use StreamingPreprocessedDataset, or build the dataset"
        )
        self.skipped |= {row: SkippedRow(row, "several_sequences", message) for row in numbers[several].tolist()}
        first = which[np.minimum(offsets[:-1], max(len(which) - 1, 0))]
        return table.filter(pa.array(~several[first]))

    def _keep(self, table: pa.Table) -> None:
        before = sum(kept.num_rows for kept in self._tables)
        self._places[_row_numbers(table)] = before + 1 + np.arange(table.num_rows)
        self._tables.append(table.drop_columns([ROWS]).combine_chunks())
        # like a binary counter: each row is copied about log2(rows) times
        while len(self._tables) > 1 and self._tables[-2].num_rows <= self._tables[-1].num_rows:
            if sum(table.nbytes for table in self._tables[-2:]) > LARGEST:
                break
            self._tables[-2:] = [pa.concat_tables(self._tables[-2:]).combine_chunks()]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_reader")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())
        self._reader = self._encoder.reader(self._tables)


def _row_numbers(table: pa.Table) -> Ints:
    return list_parts(table[ROWS])[1].to_numpy()


BLOCK_ROWS = 1024
"""Rows encoded at once by `usable`."""


class PreprocessedDataset(Dataset[Row]):
    """The rows of a raw dataset as sequences, each encoded on first access and then read from a cache.

    Row i is row i of `hf_dataset` without padding: int64 [length] `input_ids`, `attention_mask` and `labels` (-100
    where not trained, not shifted), and float32 [length] `loss_weights` if there are weights. Pairs have these columns
    twice, prefixed with `chosen_` and `rejected_`; labelled rows have a bool `label`. A `DataLoader` encodes whole
    batches at once.

    A row that is rejected, or that becomes several sequences, keeps its number: reading it raises an error with the
    row and the reason. `usable` drops such rows. The first rows are encoded on construction, so that the engine learns
    the columns from them.

    Args:
        hf_dataset: a Hugging Face `Dataset`, a `pyarrow.Table`, or any map-style dataset whose rows are mappings.
        prompt_engine: a `PromptEngine`, or any object with its `encode`.
        cache_enabled: keep sequences in memory, at about 3 bytes per token.
        loss_weights: whether rows have `loss_weights`; None: only if the first rows need them.

    Raises:
        ValueError: `hf_dataset` is not a map-style dataset, or the engine builds sequences from several rows (packing,
            few-shot examples from the same rows).
        ConfigError: the engine's settings do not fit the columns.
    """

    def __init__(
        self, hf_dataset: Any, prompt_engine: Encoder, cache_enabled: bool = True, loss_weights: bool | None = None
    ):
        raw = in_columns(hf_dataset)
        if not (hasattr(raw, "__len__") and hasattr(raw, "__getitem__")):
            raise ValueError(f"a {type(raw).__name__} has no numbered rows: use StreamingPreprocessedDataset")
        head = np.arange(min(len(raw), HEAD_ROWS))
        encoder = RowEncoder(prompt_engine, rows_at(raw, head), loss_weights)
        if encoder.whole_chunks:
            raise ValueError(
                "the engine builds sequences from several rows (length.packing, or few-shot examples from the same "
                "rows): use StreamingPreprocessedDataset, or build the dataset"
            )
        self._cache = SequenceCache(raw, encoder, cache_enabled)
        self._rows: Ints | range = range(len(raw))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Row:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """Return several rows; those not yet encoded are encoded in one call.

        Raises:
            IndexError: a row is out of range.
            DataValidationError: a row has no sequence; the message names the row and the reason.
        """
        return unpadded(self._cache.batch(self._raw_numbers(rows))) if len(rows) else []

    def select(self, rows: Iterable[int]) -> PreprocessedDataset:
        """Return the dataset of some rows, in the given order. It shares this dataset's cache."""
        chosen = self._raw_numbers(list(rows))
        selected = PreprocessedDataset.__new__(PreprocessedDataset)
        selected._cache, selected._rows = self._cache, chosen
        return selected

    def usable(self) -> PreprocessedDataset:
        """Return the dataset of the rows that have a sequence. Encodes all rows."""
        numbers = np.asarray(self._rows, np.int64)
        blocks = [numbers[begin : begin + BLOCK_ROWS] for begin in range(0, len(numbers), BLOCK_ROWS)]
        flags = [self._cache.are_usable(block) for block in blocks]
        return self.select(np.flatnonzero(np.concatenate(flags)) if flags else [])

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The rows of `hf_dataset` that have no sequence, as far as this process has encoded them, with the reasons."""
        skipped = self._cache.skipped
        return tuple(skipped[row] for row in sorted(skipped))

    def _raw_numbers(self, rows: Iterable[int]) -> Ints:
        numbers = np.array([index(row) for row in rows], np.int64)
        count = len(self._rows)
        wrong = numbers[(numbers < -count) | (numbers >= count)]
        if len(wrong):
            raise IndexError(f"row {wrong[0]} is out of range: the dataset has {count} rows")
        numbers = np.where(numbers < 0, numbers + count, numbers)
        return numbers if isinstance(self._rows, range) else self._rows[numbers]


def create_preprocessed_dataset(
    hf_dataset: Any,
    prompt_engine: Encoder,
    streaming: bool = False,
    cache_enabled: bool = True,
    buffer_size: int = 1000,
    skip_errors: bool = False,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    loss_weights: bool | None = None,
) -> PreprocessedDataset | StreamingPreprocessedDataset:
    """Create a `PreprocessedDataset`, or a `StreamingPreprocessedDataset` for streams.

    Args:
        hf_dataset: the raw rows. Without numbered rows, the dataset is always a stream.
        prompt_engine: a `PromptEngine`, or any object with its `encode`.
        streaming: stream the rows even if they are numbered.
        cache_enabled: keep sequences in memory; map-style only.
        buffer_size, seed, rank, world_size: streaming only; map-style datasets are shuffled and sharded by samplers.
        skip_errors: drop rows that cannot be used. For a map-style dataset, this encodes all rows first.
        loss_weights: whether rows have `loss_weights`; None: only if the first rows need them.

    Raises:
        ValueError, ConfigError: as the class does.
    """
    if streaming or not (hasattr(hf_dataset, "__len__") and hasattr(hf_dataset, "__getitem__")):
        return StreamingPreprocessedDataset(
            hf_dataset, prompt_engine, buffer_size, skip_errors, seed, rank, world_size, loss_weights
        )
    dataset = PreprocessedDataset(hf_dataset, prompt_engine, cache_enabled, loss_weights)
    return dataset.usable() if skip_errors else dataset
