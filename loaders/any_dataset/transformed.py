"""Augmentation: applies a function to samples or batches as they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from tokenloom.loaders.map_style.fetch import fetch, with_note
from tokenloom.loaders.map_style.random_state import seeded
from tokenloom.loaders.token_loader import TokenLoader


class TransformedDataset(Dataset[Any]):
    """A map-style dataset with `transform` applied to each sample."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]):
        self.dataset, self.transform = dataset, transform
        self.digest = getattr(dataset, "digest", "")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[Any]:
        samples = fetch(self.dataset, rows)
        for index, row in enumerate(rows):
            try:
                samples[index] = self.transform(samples[index])
            except Exception as error:
                raised = with_note(error, f"in the transform of row {row} of the dataset")
                break
        else:
            return samples
        raise raised


class TransformedStream(IterableDataset[Any]):
    """An iterable dataset with `transform` applied to each sample."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]):
        self.dataset, self.transform = dataset, transform

    def __iter__(self) -> Iterator[Any]:
        return map(self.transform, self.dataset)


class TransformedTokenLoader(TokenLoader):
    """A `TokenLoader` with `transform` applied to each batch, in the training process.

    Random numbers that `transform` draws depend only on the seed, the rank and the batch's position, so a resumed
    loader draws the same ones.

    Args:
        dataset: a `TokenDataset` or `MixedDataset`.
        transform: takes and returns a batch, a dict of tensors.
        options: further arguments of `TokenLoader`.
    """

    def __init__(self, dataset: Any, transform: Callable[[dict[str, Any]], dict[str, Any]], **options: Any):
        super().__init__(dataset, **options)
        self._transform, self._seed = transform, options.get("seed", 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in super().__iter__():
            place = self.place
            with seeded("transform", self._seed, place.epoch, place.position, place.batch, self.rank):
                changed = self._transform(batch)
            yield changed
