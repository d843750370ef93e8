"""Training and validation loaders over any kind of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders.any_dataset.builder import DataLoaderConfig, DataLoaderFactory
from tokenloom.loaders.collation.registry import CollatorRegistry
from tokenloom.loaders.collation.text import TaskSpec
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.map_style import ChosenRows, split_rows
from tokenloom.loaders.raw_text import TextEncoder, TokenizedTexts

_fault = ConfigError.at

DEFAULT_MAX_LENGTH = 2048
"""Maximum tokens per text by default."""


@runtime_checkable
class DataModuleProtocol(Protocol):
    """The data of a training loop: any class with these two methods."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training loader."""
        ...

    def val_dataloader(self) -> DataLoader[Any] | None:
        """Return the validation loader, or None without validation data."""


class TensorRows(Dataset[dict[str, torch.Tensor]]):
    """A list of token-id tensors as rows: each tensor is both `input_ids` and `labels`."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tensors[row], "labels": self.tensors[row]}


class UniversalDataModule:
    """Training and validation loaders over a Hugging Face or torch dataset, tensors, texts, or a `TokenDataset`.

    Rows with a raw `text` and no `input_ids` are tokenized when they are loaded, and blank ones are dropped.
    One-dimensional integer tensors are rows of `input_ids`, and also their `labels`. A `TokenDataset` or `MixedDataset`
    builds its own batches, without a collator unless one is passed.

    `train_dataloader` and `val_dataloader` return the same loader each time, so each iteration is the next epoch.

    Args:
        train_data: the training data.
        val_data: the validation data.
        val_split: without `val_data`: the fraction of `train_data` for validation, chosen by the seed; 0: none.
        task_spec: chooses the collator.
        tokenizer: tokenizes raw text, and is passed to the collator of a text task.
        collator: builds batches, instead of the task's collator. Default without a task: the text collator if there is
            a tokenizer, else the default collator.
        batch_size: rows per rank and batch.
        num_workers: worker processes; None: 0 without a CUDA device, else half of the CPUs, at most 4.
        seed: seed of the order, of the split and of random numbers drawn while loading.
        max_length: maximum tokens per raw text; None: the tokenizer's `model_max_length`, at most 2048.
        drop_last: drop the last training batch if it is not full.
        rank, world_size: default: those of `torch.distributed` if it is initialized, else 0 and 1.

    Attributes:
        seed: the seed.
        collator: builds the batches; None if a `TokenDataset` or `MixedDataset` does.
        train_dataset, val_dataset: the datasets that the loaders read.

    Raises:
        ConfigError: data cannot be read as given; the message names what to pass instead.
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
            raise ValueError(f"val_split must be a fraction of at least 0 and below 1, got {val_split}")
        self.seed, self.batch_size, self.task_spec, self.tokenizer = seed, batch_size, task_spec, tokenizer
        if max_length is None:
            limit = getattr(tokenizer, "model_max_length", None) or DEFAULT_MAX_LENGTH
            max_length = min(DEFAULT_MAX_LENGTH, limit)
        self._max_length = max_length
        train = self._prepared(train_data, "train_data")
        if val_data is not None:
            self.train_dataset, self.val_dataset = train, self._prepared(val_data, "val_data")
        else:
            self.train_dataset, self.val_dataset = _split(train, val_split, seed)
        self.collator = collator
        if collator is None and not isinstance(train, TokenDataset | MixedDataset):
            name = None if task_spec else "default" if tokenizer is None else "text"
            self.collator = CollatorRegistry.get_instance().get_collator(task_spec, name, tokenizer=tokenizer)
        self._config: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "seed": seed}
        self._config |= {"collate_fn": self.collator, "rank": rank, "world_size": world_size}
        self._drop_last = drop_last

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training loader, which shuffles unless the data are iterable."""
        return self._train_loader

    def val_dataloader(self) -> DataLoader[Any] | None:
        """Return the validation loader, which keeps the order, or None without validation data."""
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
        """Return the seed and the training loader's position after the last yielded batch, as less than 1 KB of JSON.

        Raises:
            ConfigError: the training data are iterable, which has no position.
        """
        if not hasattr(self._train_loader, "state_dict"):
            raise _fault("train_data", "an iterable dataset has no position to resume at; use a map-style dataset")
        return {"seed": self.seed, "train": self._train_loader.state_dict()}  # pyright: ignore[reportAttributeAccessIssue]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the training loader's next iteration yields the rest of its epoch.

        Raises:
            LoaderStateError: the state belongs to other data, another seed or another split; the message names what
                differs.
        """
        if not isinstance(state_dict, Mapping) or "train" not in state_dict:
            raise LoaderStateError("not a data module's state: it lacks 'train'")
        self._train_loader.load_state_dict(state_dict["train"])  # pyright: ignore[reportAttributeAccessIssue]

    def _prepared(self, data: Any, argument: str) -> Any:
        if isinstance(data, Mapping):
            raise _fault(argument, f"has several splits ({', '.join(map(str, data))}); pass one of them")
        if isinstance(data, TokenDataset | MixedDataset | IterableDataset):
            return data
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise _fault(argument, f"a dataset needs __len__ and __getitem__; a {type(data).__name__} lacks them")
        # of a list, the first row says what the rows are
        first = data[0] if isinstance(data, list | tuple) and data else None
        columns = getattr(data, "column_names", None)
        if not isinstance(columns, list):
            columns = ["text"] if isinstance(first, str) else first if isinstance(first, Mapping) else []
        if "text" not in columns or "input_ids" in columns:
            is_ids = isinstance(first, torch.Tensor) and first.ndim == 1 and not first.is_floating_point()
            return TensorRows(data) if is_ids else data
        if self.tokenizer is None:
            raise _fault("tokenizer", f"{argument} contains raw text; pass a tokenizer")
        texts = TokenizedTexts(data, self.tokenizer, self._max_length)
        return ChosenRows(texts, texts.nonblank_rows())


def _split(data: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    if fraction == 0:
        return data, None
    if isinstance(data, TokenDataset | MixedDataset):
        raise _fault(
            "val_split", "a built dataset is split by `dataset.val_split` in its YAML; pass val_data or val_split=0"
        )
    if isinstance(data, IterableDataset):
        raise _fault("val_split", "an iterable dataset cannot be split; pass val_data or val_split=0")
    train, validation = split_rows(len(data), fraction, seed)
    return ChosenRows(data, train), ChosenRows(data, validation)
