"""Batches straight from a source: nothing is materialized, chunk after chunk is encoded as it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, IterableDataset

from tokenloom.loaders.collation.batch import PaddingPolicy
from tokenloom.loaders.on_the_fly.lockstep import in_lockstep
from tokenloom.loaders.on_the_fly.raw_rows import to_table
from tokenloom.loaders.on_the_fly.row_encoder import Encoder
from tokenloom.loaders.on_the_fly.shares import Share
from tokenloom.loaders.order.plan import FILLER
from tokenloom.loaders.order.ranks import place_among_ranks
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.loaders.token_loader import to_tensors
from tokenloom.resources.tables.ragged import Ints


class StreamingDataset(IterableDataset[dict[str, Any]]):
    """Whole batches, for a `StreamingLoader`.

    Each rank and worker process encodes its own share of the rows of every chunk, or, where rows are packed within
    their chunk or take examples from it, its own share of the chunks. Rows are shuffled within their chunk. Which rows
    are rejected is known only when they are met: ranks of `torch.distributed` tell each other how many batches they
    have, and those with fewer are given batches of padding without loss. Ranks that are only named, by `rank` and
    `world_size`, may make different numbers of steps.

    Args:
        tables: called once an epoch; yields the source's raw chunks.
        encoder: usually a `PromptEngine`.
        policy: how batches are padded.
        batch_size: rows a batch.
        shuffle: shuffle rows within their chunk.
        drop_last: leave out a last batch that is not full; else rows of padding fill it where there are several ranks.
        rank, world_size: default: those of `torch.distributed` where it is initialized, else 0 of 1.
        whole_chunks: rows need the others of their chunk, as packed ones always do.
    """

    def __init__(
        self,
        tables: Callable[[], Iterator[pa.Table]],
        encoder: Encoder,
        policy: PaddingPolicy,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        whole_chunks: bool = False,
    ):
        self._whole_chunks = whole_chunks or policy.packed
        self._tables, self._encoder, self._policy, self._batch_size = tables, encoder, policy, batch_size
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._rank, self._world_size = place_among_ranks(rank, world_size)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order within chunks."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        share, held = Share.of(self._rank, self._world_size), _Held()
        for number, (rows, _) in enumerate(share.deal(self._tables(), self._whole_chunks)):
            chunk = self._encoder.encode(to_table(rows))
            held.add(chunk, share.order(chunk.num_rows, number, self._seed, self.epoch) if self._shuffle else None)
            yield from self._batches(held, self._batch_size)
        if not self._drop_last:
            yield from self._batches(held, 1)

    @property
    def _lockstep(self) -> bool:
        """Whether ranks can tell each other how many batches they have."""
        joined = torch.distributed.is_available() and torch.distributed.is_initialized()
        return joined and torch.distributed.get_world_size() == self._world_size > 1

    def _blank(self) -> dict[str, Any]:
        """A batch of padding alone."""
        columns = self._encoder.encode(next(self._tables()).slice(0, 0)).schema
        row = {field.name: [] if pa.types.is_list(field.type) else False for field in columns}
        reader = SequenceReader.of_tables([pa.Table.from_pylist([row], columns)])
        return to_tensors(reader.batch(np.full(self._batch_size, FILLER), self._policy))

    def _batches(self, held: _Held, at_least: int) -> Iterator[dict[str, Any]]:
        reader = SequenceReader.of_tables(held.chunks)
        while len(held.rows) >= at_least:
            rows, held.rows = held.rows[: self._batch_size], held.rows[self._batch_size :]
            if len(rows) < self._batch_size and self._world_size > 1:
                rows = np.concatenate([rows, np.full(self._batch_size - len(rows), FILLER)])
            yield to_tensors(reader.batch(rows, self._policy))
        held.forget_finished()


class StreamingLoader(DataLoader[Any]):
    """A DataLoader over a `StreamingDataset`; a finished epoch moves on to the next, as `TokenLoader`'s does."""

    def __init__(self, dataset: StreamingDataset, num_workers: int = 0):
        super().__init__(dataset, batch_size=None, num_workers=num_workers)
        self._stream = dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        batches = super().__iter__()
        yield from in_lockstep(batches, self._stream._blank) if self._stream._lockstep else batches
        self._stream.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes."""
        self._stream.set_epoch(epoch)


class _Held:
    """Rows that are encoded but not yet part of a batch."""

    def __init__(self) -> None:
        self.chunks: list[pa.Table] = []
        self.rows = np.zeros(0, np.int64)

    def add(self, chunk: pa.Table, order: Ints | None) -> None:
        before = sum(held.num_rows for held in self.chunks)
        order = np.arange(chunk.num_rows) if order is None else order
        self.chunks.append(chunk)
        self.rows = np.concatenate([self.rows, order + before])

    def forget_finished(self) -> None:
        """Let go of chunks before the first that a row is left of."""
        first = int(self.rows.min(initial=sum(held.num_rows for held in self.chunks)))
        while self.chunks and self.chunks[0].num_rows <= first:
            self.rows, first = self.rows - self.chunks[0].num_rows, first - self.chunks[0].num_rows
            del self.chunks[0]
