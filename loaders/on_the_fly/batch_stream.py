"""A stream of batches from a source, encoded chunk by chunk as it is read. Nothing is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, IterableDataset

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.on_the_fly.row_encoder import Encoder, to_table
from tokenloom.loaders.on_the_fly.row_stream import StreamPart, in_lockstep
from tokenloom.loaders.order.batch_plan import FILLER, LARGEST_COUNT, epoch_number, integer, short
from tokenloom.loaders.order.progress import Progress
from tokenloom.loaders.order.ranks import Ranks
from tokenloom.loaders.order.resume_state import STATE_VERSION, check_same, count_in, epoch_in, fields_of
from tokenloom.loaders.reading.batch import PaddingPolicy, to_tensors
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.loaders.resumable import ResumableLoader, check_not_sharded_again, check_not_skipped
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import Ints


class StreamingDataset(IterableDataset[dict[str, Any]]):
    """An iterable dataset of whole batches, for a `StreamingLoader`.

    Each rank and worker process encodes its own part of the rows of every chunk or, if the result for a row depends on
    the rest of its chunk (packing, few-shot examples), its own part of the chunks.

    The number of batches is known only after encoding, because rows can be rejected. Ranks of `torch.distributed`
    exchange their counts, and ranks with fewer batches get batches of padding without loss. Ranks that are only given
    as `rank` and `world_size` can take different numbers of steps.

    Args:
        tables: called once per epoch; yields the source's raw chunks.
        encoder: usually a `PromptEngine`.
        policy: how batches are padded.
        batch_size: rows per batch.
        shuffle: shuffle the sequences of each chunk.
        seed: determines the order, together with the epoch.
        drop_last: drop the last batch if it is not full, that of each worker process. Otherwise, with several ranks,
            padding rows fill it.
        rank, world_size: default: those of `torch.distributed` when the first batch is asked for, else 0 and 1.
        whole_chunks: keep chunks whole, as is always done for packed rows.
        labels: whether batches have labels.
        keep_columns: names of columns whose values come with each batch as lists.
        keep: returns a sidecar with the values of these columns, given raw rows.
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
        labels: bool = True,
        keep_columns: Sequence[str] = (),
        keep: Callable[[pa.Table], pa.Table] | None = None,
    ):
        self._labels, self._keep_columns, self._keep = labels, tuple(keep_columns), keep
        self._whole_chunks = whole_chunks or policy.packed
        self._tables, self._encoder, self._policy = tables, encoder, policy
        self._batch_size = integer("batch_size", batch_size, 1, LARGEST_COUNT)
        self._shuffle, self._seed, self._drop_last = shuffle, integer("seed", seed), drop_last
        self.sharding, self.progress = Ranks(rank, world_size), Progress(StreamPlace)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, which determines the order within chunks."""
        return self.progress.start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. A state that was loaded and not yet resumed goes first.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        self.progress.set_epoch(epoch_number(epoch, 1))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rank, world_size = self.sharding.now()
        check_not_skipped()
        if world_size > 1:
            check_not_sharded_again("StreamingDataset")
        return self._of_epoch(self.epoch, StreamPart.of(rank, world_size))

    def __getstate__(self) -> dict[str, Any]:
        if (self.sharding.known() or (0, 1))[1] > 1:
            check_not_sharded_again("StreamingDataset")
        return self.__dict__

    def _of_epoch(self, epoch: int, share: StreamPart) -> Iterator[dict[str, Any]]:
        pending = _Pending()
        for number, (rows, _) in enumerate(share.deal(self._tables(), self._whole_chunks)):
            raw = to_table(rows)
            chunk, sidecar = self._encoder.encode(raw), self._keep(raw) if self._keep else None
            order = share.order(chunk.num_rows, number, self._seed, epoch) if self._shuffle else None
            pending.add(chunk, sidecar, order)
            yield from self._batches(pending, self._batch_size)
        if not self._drop_last:
            yield from self._batches(pending, 1)

    def _blank(self) -> dict[str, Any]:
        # without rows, so that nothing can be rejected
        columns = self._encoder.encode(next(self._tables()).slice(0, 0)).schema
        row = {field.name: [] if pa.types.is_list(field.type) else False for field in columns}
        reader = self._reader([pa.Table.from_pylist([row], columns)], [None])
        return to_tensors(reader.batch(np.full(self._batch_size, FILLER), self._policy))

    def _batches(self, pending: _Pending, minimum: int) -> Iterator[dict[str, Any]]:
        """Yield batches while at least `minimum` rows are pending."""
        reader = self._reader(pending.chunks, pending.sidecars)
        while len(pending.rows) >= minimum:
            rows, pending.rows = pending.rows[: self._batch_size], pending.rows[self._batch_size :]
            if len(rows) < self._batch_size and self.sharding.now()[1] > 1:
                rows = np.concatenate([rows, np.full(self._batch_size - len(rows), FILLER)])
            yield to_tensors(reader.batch(rows, self._policy))
        pending.release_finished()

    def _reader(self, chunks: Sequence[pa.Table], sidecars: Sequence[pa.Table | None]) -> SequenceReader:
        return SequenceReader.of_tables(chunks, self._labels, self._keep_columns, sidecars)


class StreamPlace(NamedTuple):
    """A place in a stream: the epoch, the batches given in it, and the digest of the last one, "" if not known."""

    epoch: int = 0
    position: int = 0
    last: str = ""


class StreamingLoader(ResumableLoader):
    """A DataLoader over a `StreamingDataset`. Each iteration is one epoch, after which it moves on to the next.

    It resumes exactly, if the source has not changed: it encodes the epoch's batches again up to the position of the
    state, and compares the last one of them.

    Args:
        dataset: the dataset, which builds the batches.
        num_workers: worker processes; 0: encode in this process.
    """

    def __init__(self, dataset: StreamingDataset, num_workers: int = 0):
        num_workers = integer("num_workers", num_workers, 0, LARGEST_COUNT)
        generator = torch.Generator().manual_seed(0)  # or torch would draw from the generator of the model's dropout
        super().__init__(dataset, batch_size=None, num_workers=num_workers, generator=generator)
        self._stream, self._progress, self.sharding = dataset, dataset.progress, dataset.sharding
        self._rows_per_epoch = 1  # not known; any epoch can be counted

    def _is_at_end(self, place: StreamPlace) -> bool:
        return False  # not known before the stream has ended

    def _following(self, place: StreamPlace) -> Iterator[tuple[StreamPlace, dict[str, Any]]]:
        number, batches = 0, DataLoader.__iter__(self)
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        # ranks that are only given as numbers cannot exchange theirs
        if grouped and torch.distributed.get_world_size() == self.world_size > 1:
            batches = in_lockstep(batches, self._stream._blank)
        for number, batch in enumerate(batches, 1):
            if number == place.position and place.last and place.last != _digest(batch):
                raise LoaderStateError(f"{_CHANGED}: batch {number} of epoch {place.epoch} is another one")
            if number > place.position:
                yield StreamPlace(place.epoch, number, _digest(batch)), batch
        if number < place.position:
            raise LoaderStateError(f"{_CHANGED}: it is at batch {place.position} of an epoch that now has {number}")

    def _state_at(self, place: StreamPlace) -> dict[str, Any]:
        last = f"{self.rank}:{place.last}"
        return {**self._settings(), "epoch": place.epoch, "batches": place.position, "last": last}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration encodes the batches before it again, without yielding them.

        The state of one rank resumes all of them; only that rank compares the last batch.

        Raises:
            LoaderStateError: the state is damaged, or is from another order, or number of ranks or workers. On
                iteration: the source or its encoding changed.
        """
        own = self._settings()
        fields_of(state_dict, (*own, "epoch", "batches", "last"), STATE_VERSION)
        check_same(state_dict, own)
        rank_and_digest = re.fullmatch(r"(\d+):([0-9a-f]*)", str(state_dict["last"]))
        if rank_and_digest is None:
            raise LoaderStateError(
                f"the state is damaged: last must be a rank and a digest, got {short(state_dict['last'])}"
            )
        last = rank_and_digest[2] if rank_and_digest[1] == str(self.rank) else ""
        self._progress.load(StreamPlace(epoch_in(state_dict, 1), count_in(state_dict, "batches"), last))

    def _settings(self) -> dict[str, Any]:
        stream = self._stream
        order = {"batch_size": stream._batch_size, "shuffle": stream._shuffle, "seed": stream._seed}
        order |= {"drop_last": stream._drop_last, "world_size": self.world_size}
        return {"version": STATE_VERSION, **order, "num_workers": self.num_workers}


_CHANGED = "the state does not fit, because the source or its encoding changed"


def _digest(batch: Mapping[str, Any]) -> str:
    return digest_json([digest_bytes(batch[name].numpy().tobytes()) for name in batch if name.endswith("input_ids")])


class _Pending:
    def __init__(self) -> None:
        self.chunks: list[pa.Table] = []
        self.sidecars: list[pa.Table | None] = []
        self.rows = np.zeros(0, np.int64)

    def add(self, chunk: pa.Table, sidecar: pa.Table | None, order: Ints | None) -> None:
        before = sum(earlier.num_rows for earlier in self.chunks)
        order = np.arange(chunk.num_rows) if order is None else order
        self.chunks.append(chunk)
        self.sidecars.append(sidecar)
        self.rows = np.concatenate([self.rows, order + before])

    def release_finished(self) -> None:
        # rows are numbered across the chunks: those after a released one move down by its rows
        first = int(self.rows.min(initial=sum(chunk.num_rows for chunk in self.chunks)))
        while self.chunks and self.chunks[0].num_rows <= first:
            self.rows, first = self.rows - self.chunks[0].num_rows, first - self.chunks[0].num_rows
            del self.chunks[0], self.sidecars[0]
