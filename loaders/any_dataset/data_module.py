"""Loaders for training and validation over whatever a training script holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tokenloom.errors import ConfigError, Fault, LoaderStateError
from tokenloom.loaders.any_dataset.config import DataLoaderConfig
from tokenloom.loaders.any_dataset.factory import DataLoaderFactory
from tokenloom.loaders.any_dataset.map_style.chosen_rows import ChosenRows, split_rows
from tokenloom.loaders.collation.collators.registry import CollatorRegistry
from tokenloom.loaders.collation.task_spec import TaskSpec
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.raw_text.encoding import TextEncoder
from tokenloom.loaders.raw_text.tokenized_texts import TokenizedTexts

MOST_TOKENS = 2048
"""That texts are cut to unless told otherwise."""


@runtime_checkable
class DataModuleProtocol(Protocol):
    """What hands a training loop its data: any class that has these two methods."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches to train on."""
        ...

    def val_dataloader(self) -> DataLoader[Any] | None:
        """Batches to validate on; None: there are none."""
        ...


class TensorRows(Dataset[dict[str, torch.Tensor]]):
    """A list of tensors of token ids as rows: each is `input_ids`, and `labels` too."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tensors[row], "labels": self.tensors[row]}


class UniversalDataModule:
    """Loaders over a Hugging Face dataset, any torch dataset, a list of tensors or texts, or a `TokenDataset`.

    Rows with a raw `text` and no `input_ids` are tokenized as they are loaded; blank ones are left out. One-dimensional
    tensors of whole numbers are rows of `input_ids`, whose `labels` they are too. A `TokenDataset` makes its own
    batches; no collator is used.

    Both methods return the same loader each time, so that each iteration is a further epoch.

    Args:
        train_data: what to train on.
        val_data: what to validate on.
        val_split: without `val_data`: the share of `train_data`, chosen by the seed, to validate on; 0: none.
        task_spec: chooses the collator.
        tokenizer: for raw text, and handed to the collator of a text task.
        collator: makes batches, in place of the task's; without either: of the modality `text` where there is a
            tokenizer, else the default one.
        batch_size: rows a rank and batch.
        num_workers: worker processes; None: chosen for the hardware.
        seed: of the order, of the split and of random numbers drawn while loading.
        max_length: tokens that raw text is cut to; None: what the tokenizer says, at most 2048.
        drop_last: leave out the last training batch where it is not full.
        rank, world_size: default: those of `torch.distributed` where it is initialized, else 0 of 1.

    Attributes:
        seed: as given.
        collator: what makes batches; None for a `TokenDataset`.
        train_dataset, val_dataset: what the loaders read.

    Raises:
        ConfigError: data that cannot be read as they are; the message says what to give instead.
        ValueError: `val_split` is not in [0, 1), or there are too few rows to split.
    """

    def __init__(
        self,
        train_data: Any,
        val_data: Any = None,
        val_split: float = 0.1,
        task_spec: TaskSpec | None = None,
        tokenizer: TextEncoder | None = None,
        collator: Callable[[list[Any]], Any] | None = None,
        batch_size: int = 32,
        num_workers: int | None = None,
        seed: int = 42,
        max_length: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        if not 0 <= val_split < 1:
            raise ValueError(f"val_split {val_split} is no share from 0 to below 1")
        self.seed, self.batch_size, self.task_spec, self.tokenizer = seed, batch_size, task_spec, tokenizer
        if max_length is None:
            max_length = min(MOST_TOKENS, getattr(tokenizer, "model_max_length", None) or MOST_TOKENS)
        self._max_length = max_length
        train = self._prepared(train_data, "train_data")
        if val_data is not None:
            self.train_dataset, self.val_dataset = train, self._prepared(val_data, "val_data")
        else:
            self.train_dataset, self.val_dataset = _split(train, val_split, seed)
        own = isinstance(train, TokenDataset | MixedDataset)
        self.collator = collator if own or collator is not None else self._collator()
        self._config: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "seed": seed}
        self._config |= {"collate_fn": self.collator, "rank": rank, "world_size": world_size}
        self._drop_last = drop_last

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches to train on, shuffled."""
        return self._train_loader

    def val_dataloader(self) -> DataLoader[Any] | None:
        """Batches to validate on, in order; None where nothing is."""
        return self._val_loader

    @cached_property
    def _train_loader(self) -> DataLoader[Any]:
        shuffle = not isinstance(self.train_dataset, IterableDataset)
        config = DataLoaderConfig(shuffle=shuffle, drop_last=self._drop_last, **self._config)
        return DataLoaderFactory().create_dataloader(self.train_dataset, config)

    @cached_property
    def _val_loader(self) -> DataLoader[Any] | None:
        if self.val_dataset is None:
            return None
        return DataLoaderFactory().create_dataloader(self.val_dataset, DataLoaderConfig(shuffle=False, **self._config))

    def state_dict(self) -> dict[str, Any]:
        """The seed, and where the training loader stands behind the batch that was given last, as JSON below 1 KB.

        Raises:
            ConfigError: the training data are iterable, which has no position.
        """
        if not hasattr(self._train_loader, "state_dict"):
            raise _fault("train_data", "an iterable dataset has no position to resume at; take a map-style one")
        return {"seed": self.seed, "train": self._train_loader.state_dict()}  # pyright: ignore[reportAttributeAccessIssue]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: the training loader's next iteration makes the rest of its epoch.

        Raises:
            LoaderStateError: the state is of other data, another seed or another split; names what differs.
        """
        if "train" not in state_dict:
            raise LoaderStateError("this is no data module's state: it has no 'train'")
        self._train_loader.load_state_dict(state_dict["train"])  # pyright: ignore[reportAttributeAccessIssue]

    def _collator(self) -> Callable[[list[Any]], Any]:
        registry = CollatorRegistry.get_instance()
        name = None if self.task_spec else "default" if self.tokenizer is None else "text"
        return registry.get_collator(self.task_spec, name, tokenizer=self.tokenizer)

    def _prepared(self, data: Any, argument: str) -> Any:
        if isinstance(data, Mapping):
            raise _fault(argument, f"it holds several splits ({', '.join(map(str, data))}); give one of them")
        if isinstance(data, TokenDataset | MixedDataset | IterableDataset):
            return data
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise _fault(argument, f"a {type(data).__name__} is no dataset: it needs __len__ and __getitem__")
        if not _is_text(data):
            return TensorRows(data) if _is_ids(data) else data
        if self.tokenizer is None:
            raise _fault("tokenizer", f"{argument} holds raw text, which needs a tokenizer")
        texts = TokenizedTexts(data, self.tokenizer, self._max_length)
        return ChosenRows(texts, texts.written())


def _split(data: Any, share: float, seed: int) -> tuple[Any, Any]:
    """Data to train on, and to validate on or None."""
    if share == 0:
        return data, None
    if isinstance(data, TokenDataset | MixedDataset):
        raise _fault(
            "val_split", "a built dataset is split by `dataset.val_split` of its YAML; give val_data or val_split=0"
        )
    if isinstance(data, IterableDataset):
        raise _fault("val_split", "an iterable dataset cannot be split; give val_data or val_split=0")
    train, validation = split_rows(len(data), share, seed)
    return ChosenRows(data, train), ChosenRows(data, validation)


def _is_text(data: Any) -> bool:
    """Whether rows are texts, or have a column of texts and none of tokens."""
    columns = getattr(data, "column_names", None)
    if isinstance(columns, list):
        return "text" in columns and "input_ids" not in columns
    return isinstance(data, list | tuple) and len(data) > 0 and _is_raw(data[0])


def _is_raw(row: Any) -> bool:
    return isinstance(row, str) or (isinstance(row, Mapping) and "text" in row and "input_ids" not in row)


def _is_ids(data: Any) -> bool:
    """Whether rows are one-dimensional tensors of whole numbers."""
    first = data[0] if isinstance(data, list | tuple) and data else None
    return isinstance(first, torch.Tensor) and first.ndim == 1 and not first.is_floating_point()


def _fault(place: str, message: str) -> ConfigError:
    return ConfigError([Fault(place, message)])
