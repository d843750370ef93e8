"""A map-style dataset of raw rows that are preprocessed on first access."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from tokenloom.loaders.collation.unpadded import Row, unpadded
from tokenloom.loaders.on_the_fly.raw_rows import in_columns, rows_at
from tokenloom.loaders.on_the_fly.row_encoder import HEAD_ROWS, Encoder, RowEncoder, SkippedRow
from tokenloom.loaders.on_the_fly.sequence_cache import SequenceCache
from tokenloom.resources.tables.ragged import Ints

if TYPE_CHECKING:
    from tokenloom.loaders.on_the_fly.streaming_preprocessed import StreamingPreprocessedDataset

BLOCK_ROWS = 1024
"""Rows encoded at once where all are."""


class PreprocessedDataset(Dataset[Row]):
    """The rows of a raw dataset as sequences, encoded when they are first asked for, then in O(1).

    Row i is row i of `hf_dataset`, unpadded: int64 [length] `input_ids`, `attention_mask` and `labels` (-100 where not
    trained; not shifted), float32 `loss_weights` where there are weights; pairs have them under `chosen_` and
    `rejected_`; labelled rows a bool `label`. A `DataLoader` has whole batches encoded at once.

    A row that cannot be used, or that becomes several sequences, has its number all the same: asking for it raises an
    error that names it and the reason; `usable` leaves such rows out. The first rows are encoded at once: from them the
    engine learns the columns.

    Args:
        hf_dataset: a Hugging Face `Dataset`, a `pyarrow.Table`, or anything with a length and rows that are mappings.
        prompt_engine: a `PromptEngine`, or any object with its `encode`.
        cache_enabled: keep sequences in memory, about 3 bytes a token.
        loss_weights: whether rows have `loss_weights`; None: where the first rows need them.

    Raises:
        ValueError: rows become sequences only together with others (packing, few-shot examples from the same rows), or
            this is no map-style dataset.
        ConfigError: the engine's settings do not suit the columns.
    """

    def __init__(
        self,
        hf_dataset: Any,
        prompt_engine: Encoder,
        cache_enabled: bool = True,
        loss_weights: bool | None = None,
    ):
        raw = in_columns(hf_dataset)
        if not (hasattr(raw, "__len__") and hasattr(raw, "__getitem__")):
            raise ValueError(f"a {type(raw).__name__} has no rows by number: use StreamingPreprocessedDataset")
        head = np.arange(min(len(raw), HEAD_ROWS))
        encoder = RowEncoder(prompt_engine, rows_at(raw, head), loss_weights)
        if encoder.whole_chunks:
            raise ValueError(
                "the engine makes sequences of several rows together (length.packing, or few-shot examples from the "
                "same rows): use StreamingPreprocessedDataset, or build the dataset"
            )
        self._cache = SequenceCache(raw, encoder, cache_enabled)
        self._rows: Ints | range = range(len(raw))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Row:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """Several rows; those that are new are encoded at once.

        Raises:
            IndexError: there is no such row.
            DataValidationError: a row has no sequence; names it and why.
        """
        return unpadded(self._cache.batch(self._raw_numbers(rows))) if len(rows) else []

    def select(self, rows: Iterable[int]) -> PreprocessedDataset:
        """The dataset of some rows, in this order; it shares what is cached."""
        chosen = self._raw_numbers(list(rows))
        selected = PreprocessedDataset.__new__(PreprocessedDataset)
        selected._cache, selected._rows = self._cache, chosen
        return selected

    def usable(self) -> PreprocessedDataset:
        """The dataset of the rows that have a sequence. All are encoded for that."""
        numbers = np.asarray(self._rows, np.int64)
        blocks = [numbers[begin : begin + BLOCK_ROWS] for begin in range(0, len(numbers), BLOCK_ROWS)]
        found = [self._cache.are_usable(block) for block in blocks]
        return self.select(np.flatnonzero(np.concatenate(found)) if found else [])

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The rows of `hf_dataset` that this process has so far found to have no sequence, and why."""
        found = self._cache.skipped
        return tuple(found[row] for row in sorted(found))

    def _raw_numbers(self, rows: Iterable[int]) -> Ints:
        """The numbers in the raw dataset of rows of this one."""
        asked = np.array([index(row) for row in rows], np.int64)
        count = len(self._rows)
        wrong = asked[(asked < -count) | (asked >= count)]
        if len(wrong):
            raise IndexError(f"row {wrong[0]} of {count}")
        asked = np.where(asked < 0, asked + count, asked)
        return asked if isinstance(self._rows, range) else self._rows[asked]


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
    """A `StreamingPreprocessedDataset` where `streaming` says so or the dataset has no rows by number, else a
    `PreprocessedDataset`.

    Args:
        cache_enabled: map-style only.
        buffer_size, seed, rank, world_size: streaming only; map-style datasets leave that to samplers.
        skip_errors: leave out rows that cannot be used; map-style datasets are encoded as a whole for that.

    Raises:
        ValueError, ConfigError: as the class does.
    """
    from tokenloom.loaders.on_the_fly.streaming_preprocessed import StreamingPreprocessedDataset

    if streaming or not (hasattr(hf_dataset, "__len__") and hasattr(hf_dataset, "__getitem__")):
        return StreamingPreprocessedDataset(
            hf_dataset, prompt_engine, buffer_size, skip_errors, seed, rank, world_size, loss_weights
        )
    dataset = PreprocessedDataset(hf_dataset, prompt_engine, cache_enabled, loss_weights)
    return dataset.usable() if skip_errors else dataset
