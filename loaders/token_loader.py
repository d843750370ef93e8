"""A DataLoader over a built dataset: shuffled, sharded over ranks, each batch one vectorized gather."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tokenloom.loaders.batch import Batch, Padding, PaddingPolicy
from tokenloom.loaders.dataset import TokenDataset
from tokenloom.loaders.order import BatchOrder, Shuffle
from tokenloom.loaders.ranks import place_among_ranks
from tokenloom.resources.ragged import Ints


class _Batches(Dataset[Batch]):
    """A dataset as `DataLoader` fetches from it: many rows at once come as one batch."""

    def __init__(self, dataset: TokenDataset, policy: PaddingPolicy):
        self.dataset, self.policy = dataset, policy

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Batch:
        return self.__getitems__(np.array([row]))

    def __getitems__(self, rows: Ints) -> Batch:
        return self.dataset.reader.batch(rows, self.policy)


class TokenLoader(DataLoader[Any]):
    """Batches of a `TokenDataset`: dicts of int64 `input_ids`, `attention_mask` and `labels`, [batch_size, length].

    `labels` are not shifted and are -100 where nothing is trained. Packed datasets add `position_ids`, int32
    `cu_seqlens` and `max_seqlen`; datasets with weights other than 0 and 1 add float32 `loss_weights`, of the same
    shape. Preference datasets have all keys twice, under `chosen_` and `rejected_`, each side padded on its own; kto
    datasets add `label`, bool [batch_size].

    Args:
        dataset: what to read.
        batch_size: rows a rank and batch.
        shuffle: `full` or True, `none` or False.
        seed: chooses the order, together with the dataset's digest and the epoch.
        drop_last: leave out a last global batch that is not full.
        padding: `max_length`, `longest`, or a multiple.
        padding_side: which side is filled.
        rank, world_size: default: those of `torch.distributed` where it is initialized, else 0 of 1.
        num_workers, pin_memory, prefetch_factor, persistent_workers: as in `torch.utils.data.DataLoader`; None is
            chosen for the hardware.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        batch_size: int = 8,
        shuffle: Shuffle = "full",
        seed: int = 0,
        drop_last: bool = False,
        padding: Padding = "max_length",
        padding_side: Literal["left", "right"] = "right",
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
    ):
        rank, world_size = place_among_ranks(rank, world_size)
        self.order = BatchOrder(len(dataset), dataset.digest, batch_size, shuffle, seed, drop_last, rank, world_size)
        super().__init__(
            _Batches(dataset, dataset.padding(padding, padding_side)),
            batch_sampler=self.order,  # pyright: ignore[reportArgumentType]
            collate_fn=to_tensors,  # pyright: ignore[reportArgumentType]
            num_workers=num_workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=num_workers > 0 and persistent_workers is not False,
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes; a finished one moves on by itself."""
        self.order.set_epoch(epoch)


def to_tensors(batch: Batch) -> dict[str, Any]:
    """The arrays of a batch as tensors of the same memory; numbers stay numbers."""
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
