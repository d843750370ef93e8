"""Several built datasets as one: their rows take turns by weights, exactly, each dataset in its own order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tokenloom.errors import MixtureEndedError
from tokenloom.loaders.collation.batch import PaddingPolicy
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.datasets.trace import TracedRow
from tokenloom.loaders.order.mixture import By, Mixture, Source
from tokenloom.loaders.order.mixture_order import MixtureOrder
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.ragged import Ints, offsets_of


@dataclass(frozen=True)
class Share:
    """What a dataset gives to an epoch of a mixture.

    Args:
        dataset: its name in the mixture.
        rows, tokens: how many it has.
        taken: how many rows an epoch of the mixture takes of it.
        epochs: how often the dataset is gone through in that.
        row_share, token_share: its part of all rows, and of all tokens by its rows' mean.
    """

    dataset: str
    rows: int
    tokens: int
    taken: int
    epochs: float
    row_share: float
    token_share: float


class MixedOrder:
    """Rows of a `MixedDataset` at running positions."""

    def __init__(self, order: MixtureOrder, first_row: Ints):
        self._order, self._first_row = order, first_row

    def span(self, begin: int, end: int) -> Ints:
        """int64 [end - begin]: rows, counted through all datasets.

        Raises:
            MixtureEndedError: all datasets have given their `epochs` before.
        """
        if (last := self._order.end) is not None and end > last:
            told = f"the mixture ends after {last} rows: all its datasets have given their `epochs`"
            raise MixtureEndedError(f"{told}; train one epoch, or leave `epochs` out of a dataset")
        found = self._order.span(begin, end)
        return self._first_row[found[:, 0]] + found[:, 1]


class MixedDataset:
    """What a `TokenLoader` reads a mixture from, in place of one dataset.

    An epoch is as long as the mixture: until the last dataset that has `epochs` is used up, or, where none has, as many
    rows as all have together. `change` gives one that goes on otherwise from some position.

    Args:
        datasets: by the name that weights call them.
        weights: above 0, for each name.
        by: what weights count: `tokens` or `rows`.
        epochs: for some names, how often the dataset is gone through at most.
        mixture: in place of the last three; its sources are these datasets.

    Attributes:
        mixture: whose turn it is at a position.

    Raises:
        ValueError: two datasets do not fit into one batch, or the weights are wrong.
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
        for (first, one), (second, other) in pairwise(self.datasets.items()):
            if misfit := _misfit(first, one, second, other):
                raise ValueError(misfit)
        if mixture is None:
            limits = epochs or {}
            sources = [_source(name, each, limits.get(name)) for name, each in self.datasets.items()]
            mixture = Mixture(sources, weights or {}, by)
        self.mixture = mixture
        self._all: Sequence[TokenDataset] = [self.datasets[source.name] for source in mixture.sources]

    def change(
        self,
        at: int,
        weights: Mapping[str, float],
        datasets: Mapping[str, TokenDataset] | None = None,
        epochs: Mapping[str, float] | None = None,
    ) -> MixedDataset:
        """The same up to position `at` (rows of all ranks), and with other weights, or more datasets, from there on."""
        limits, more = epochs or {}, datasets or {}
        sources = [_source(name, each, limits.get(name)) for name, each in more.items()]
        return MixedDataset({**self.datasets, **more}, mixture=self.mixture.change(at, weights, sources))

    @property
    def digest(self) -> str:
        """Hex BLAKE3 of the datasets' content and of the mixture."""
        return digest_json([self.mixture.to_json(), [each.digest for each in self._all]])

    def digest_until(self, position: int) -> str:
        """Hex BLAKE3 of all that tells which rows stand before a running position: changes from there on do not."""
        told = self.mixture.to_json()
        past = [change for change in told["changes"] if change["at"] == 0 or change["at"] < position]
        met = sum(len(change["sources"]) for change in past)
        return digest_json([told["by"], past, [each.digest for each in self._all[:met]]])

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.mixture)

    def trace(self, row: int) -> TracedRow:
        """Where a row, counted through all datasets, comes from."""
        first_row = offsets_of(np.array([len(each) for each in self._all]))
        number = int(np.searchsorted(first_row, row, side="right")) - 1
        return self._all[number].trace(row - int(first_row[number]))

    def order(self, seed: int, shuffle: Shuffle) -> MixedOrder:
        """Which row stands at which running position."""
        orders = [each.order(seed, shuffle) for each in self._all]
        first_row = offsets_of(np.array([len(each) for each in self._all]))
        return MixedOrder(MixtureOrder(self.mixture, orders), first_row)

    def shares(self) -> list[Share]:
        """What each dataset gives to the first epoch."""
        taken = self.mixture.given(len(self))
        tokens = [rows * each.tokens / len(each) for rows, each in zip(taken, self._all, strict=True)]
        return [
            Share(
                source.name, len(each), each.tokens, rows, rows / len(each), rows / len(self), part / (sum(tokens) or 1)
            )
            for source, each, rows, part in zip(self.mixture.sources, self._all, taken, tokens, strict=True)
        ]

    @property
    def pad_token_id(self) -> int:
        return self._all[0].pad_token_id

    @property
    def vocab_size(self) -> int:
        return self._all[0].vocab_size

    @property
    def max_length(self) -> int:
        """Of the dataset with the longest rows."""
        return max(each.max_length for each in self._all)

    @property
    def packed(self) -> bool:
        return self._all[0].packed

    @property
    def tokenizer_path(self) -> str:
        """A folder that `transformers.AutoTokenizer.from_pretrained` loads; of the first dataset."""
        return self._all[0].tokenizer_path

    @cached_property
    def reader(self) -> SequenceReader:
        """All chunks of all datasets."""
        return SequenceReader.joined([each.reader for each in self._all])

    def padding(self, padding: Any = "max_length", side: Any = "right") -> PaddingPolicy:
        """How batches are padded: as those of the dataset with the longest rows."""
        return max((each.padding(padding, side) for each in self._all), key=lambda policy: policy.max_length)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "reader"}


def _misfit(first: str, one: TokenDataset, second: str, other: TokenDataset) -> str:
    """What keeps the rows of two datasets from standing in one batch, in a sentence, or nothing."""
    both = f"{first} and {second}"
    if one.tokenizer_digest != other.tokenizer_digest and one.vocabulary_digest != other.vocabulary_digest:
        return (
            f"{both} were made with different tokenizers; "
            f"for {second} set tokenizer.name_or_path to that of {first}, which is in {one.tokenizer_path}"
        )
    if (one.pad_token_id, one.vocab_size) != (other.pad_token_id, other.vocab_size):
        return f"{both} are padded with different tokens, {one.pad_token_id} and {other.pad_token_id}"
    if one.packed != other.packed:
        return f"of {both} only {first if one.packed else second} is packed; set length.packing alike"
    if one.packed and one.max_length != other.max_length:
        return f"{both} are packed to {one.max_length} and to {other.max_length} tokens; set tokenizer.max_length alike"
    if one.kind != other.kind:
        return f"a row of {first} is a {one.kind}, and one of {second} is a {other.kind}"
    return ""


def _source(name: str, dataset: TokenDataset, epochs: float | None) -> Source:
    return Source(name, len(dataset), dataset.tokens, epochs)
