"""Batches as NumPy or JAX arrays, or as a `tf.data.Dataset`: a `TokenLoader` for who trains without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders.collation.batch import Padding
from tokenloom.loaders.collation.unpadded import unpadded
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.frameworks.array_source import open_source
from tokenloom.loaders.order.plan import FixedBatches, Place
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.raw_text.encoding import TextEncoder
from tokenloom.loaders.token_loader import TokenLoader

if TYPE_CHECKING:
    import tensorflow as tf  # pyright: ignore[reportMissingImports]

Arrays = dict[str, Any]
Framework = Literal["numpy", "jax"]

DEFAULTS: Mapping[str, Any] = {
    "batch_size": 32,
    "shuffle": True,
    "seed": 0,
    "drop_last": False,
    "padding": "max_length",
    "padding_side": "right",
    "max_length": 2048,
    "prefetch_factor": 2,
}


class ArrayDataLoader(TokenLoader):
    """A `TokenLoader` whose batches are dicts of arrays: `input_ids`, `attention_mask` and `labels` [rows, length], and
    the other columns that the data have. NumPy arrays are int64; JAX arrays int32, as JAX has no int64 unless
    `jax_enable_x64` is set, and then int64.

    Order, ranks, `len`, `state_dict`, `load_state_dict`, `set_epoch`, `skip` and `trace` are those of `TokenLoader`.

    Args:
        config: what is not given here: a `DataLoaderConfig`, or any object or mapping with some of `batch_size`,
            `token_budget`, `shuffle`, `seed`, `drop_last`, `padding`, `padding_side`, `rank` and `world_size`,
            `prefetch_factor`, `collate_fn`, `max_length`, `dataset_name` and `cache_dir` (the store; default
            `$TOKENLOOM_STORE`, else `.tokenloom`); or a `DataPipeline`, whose YAML says them, and whose dataset is
            built where it is missing. None: the defaults.
        tokenizer: what raw text is tokenized with: `encode(text)` returns ids, a dict with `input_ids`, or an Encoding.
            Built datasets need none; one that is given is held against theirs.
        dataset_name: a dataset or mixture that the store holds; else a file or folder of raw text, as `TextDataset`
            reads it, cut to `max_length`; or a dataset that is open.
        batch_size: rows a rank and batch; default 32. `set_batch_size` changes it between two batches.
        shuffle: `full` or True; `block`; `none` or False. Default: True for splits named `train…`, else False.
        framework: `numpy` or `jax`.
        split: of a built dataset.
        token_budget: instead of `batch_size`: tokens a rank and batch, padding counted; rows of like length go
            together, and their number changes from batch to batch.
        seed, drop_last, padding, padding_side: as in `TokenLoader`; `max_length`, the default, gives all batches one
            width.
        rank, world_size: as in `TokenLoader`, but for JAX those of `jax.distributed` where it is initialized.
        prefetch_factor: batches that a thread makes ahead; default 2. There are no worker processes.
        collate_fn: makes a batch, a dict of arrays or tensors, of examples, dicts of NumPy arrays without padding, of
            which a row of padding has empty ones.
        transform: called with each batch as NumPy arrays; returns the batch to use.

    Raises:
        ConfigError: an argument or a setting of `config` is none of these, or the tokenizer is not the dataset's.
        DatasetNotFoundError: neither the store nor a path has that name.
        SourceError: a file of raw text cannot be read.
        ModuleNotFoundError: JAX is not installed; says what installs it.
        ValueError: as in `TokenLoader`.
    """

    def __init__(
        self,
        config: Any = None,
        tokenizer: TextEncoder | None = None,
        dataset_name: str | os.PathLike[str] | TokenDataset | MixedDataset | None = None,
        batch_size: int | None = None,
        shuffle: Shuffle | bool | None = None,
        *,
        framework: Framework = "numpy",
        split: str = "train",
        token_budget: int | None = None,
        seed: int | None = None,
        drop_last: bool | None = None,
        padding: Padding | None = None,
        padding_side: Literal["left", "right"] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch_factor: int | None = None,
        collate_fn: Callable[[list[Arrays]], Mapping[str, Any]] | None = None,
        transform: Callable[[Arrays], Arrays] | None = None,
    ):
        if framework not in ("numpy", "jax"):
            raise ConfigError([Fault("framework", f"{framework!r} is not 'numpy' or 'jax'")])
        if batch_size is not None and token_budget is not None:
            raise ConfigError([Fault("token_budget", "a budget stands in place of batch_size; give one of them")])
        sources = _sources(config)

        def chosen(name: str, given: Any = None) -> Any:
            found = [given, *(getattr(source, name, None) for source in sources), DEFAULTS.get(name)]
            return next((value for value in found if value is not None), None)

        self._put = _to_jax() if framework == "jax" else _as_it_is
        if rank is None and world_size is None:
            rank, world_size = _joined(sources, framework)
        data = open_source(
            chosen("dataset_name", dataset_name), config, tokenizer, split, chosen("max_length"), chosen("cache_dir")
        )
        super().__init__(
            data,  # pyright: ignore[reportArgumentType]  # a `TextDataset` has what a loader reads
            batch_size=chosen("batch_size", batch_size),
            token_budget=token_budget if batch_size is not None else chosen("token_budget", token_budget),
            shuffle=chosen("shuffle", shuffle) if shuffle is not None or split.startswith("train") else False,
            seed=chosen("seed", seed),
            drop_last=chosen("drop_last", drop_last),
            padding=chosen("padding", padding),
            padding_side=chosen("padding_side", padding_side),
            rank=rank,
            world_size=world_size,
            prefetch_factor=chosen("prefetch_factor", prefetch_factor),
            pin_memory=False,
        )
        self._examples_to_batch, self._transform = chosen("collate_fn", collate_fn), transform
        self._resized = False

    def set_batch_size(self, batch_size: int) -> None:
        """Rows of the batches from the next one on, also within an epoch: the order of rows stays, and a state resumes
        with any batch size. All ranks must do it at the same step. `trace` counts steps of the present size.

        Raises:
            ValueError: it is below 1, or batches go by `token_budget`.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} must be at least 1")
        if not isinstance(self.plan, FixedBatches):
            raise ValueError("batches of a token_budget have no size; make a loader with batch_size")
        self.plan, self._resized = replace(self.plan, batch_size=batch_size), True
        self._made["batch_size"] = batch_size

    def __iter__(self) -> Iterator[Arrays]:  # pyright: ignore[reportIncompatibleMethodOverride]
        while True:
            self._resized = False
            with closing(super().__iter__()) as batches:  # pyright: ignore[reportArgumentType]  # it is a generator
                for batch in batches:
                    yield batch
                    if self._resized:
                        break
                else:
                    return
            self._rows.resumed = True

    def _batches(self) -> Iterator[tuple[Place, Arrays]]:
        return ((place, self._arrays(batch)) for place, batch in super()._batches())

    def _arrays(self, batch: Mapping[str, Any]) -> Arrays:
        arrays = _to_numpy(batch)
        if self._examples_to_batch is not None:
            arrays = _to_numpy(self._examples_to_batch([_to_numpy(row) for row in unpadded(arrays)]))
        if self._transform is not None:
            arrays = self._transform(arrays)
        return {name: self._put(value) if isinstance(value, np.ndarray) else value for name, value in arrays.items()}

    def to_tf_dataset(self) -> tf.data.Dataset:
        """The batches as a `tf.data.Dataset` of dicts of tensors, each pass over which is an epoch of this loader. The
        state follows what TensorFlow has taken: without `prefetch` that is what it has given.

        Raises:
            ModuleNotFoundError: TensorFlow is not installed; says what installs it.
        """
        try:
            import tensorflow as tf  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            told = "to_tf_dataset needs TensorFlow: pip install tensorflow brings it"
            raise ModuleNotFoundError(told, name="tensorflow") from None
        first = self._arrays(self._data.reader.batch(np.zeros(1, np.int64), self._policy))
        plain = self._examples_to_batch is None and self._transform is None
        width = self._policy.max_length if self._policy.padding == "max_length" and plain else None

        def spec(value: Any) -> tf.TensorSpec:
            array = np.asarray(value)
            shape = [None, width] if array.ndim == 2 else [None] * array.ndim
            return tf.TensorSpec(shape, array.dtype)

        def batches() -> Iterator[Arrays]:
            return ({name: np.asarray(value) for name, value in batch.items()} for batch in self)

        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # the state would run ahead
        signature = {name: spec(value) for name, value in first.items()}
        return tf.data.Dataset.from_generator(batches, output_signature=signature).with_options(options)


def _sources(config: Any) -> list[Any]:
    """What settings are looked up in, the first before the others."""
    if isinstance(config, str | os.PathLike):
        told = f"{os.fspath(config)!r} is a path; give DataPipeline.from_config(…).unwrap() for a YAML"
        raise ConfigError([Fault("config", told)])
    if isinstance(config, Mapping):
        return [SimpleNamespace(**config)]
    declared = config.config if hasattr(config, "get_dataset") else config
    if not hasattr(declared, "dataloader"):
        return [config]
    sections = [declared.dataloader, getattr(declared, "tokenizer", None)]
    return sections if declared is not config else [*sections, config]


def _to_numpy(batch: Mapping[str, Any]) -> Arrays:
    """Tensors as arrays of the same memory."""
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _as_it_is(array: np.ndarray) -> np.ndarray:
    return array


def _to_jax() -> Callable[[np.ndarray], Any]:
    """What makes a JAX array of a NumPy array."""
    try:
        import jax
    except ModuleNotFoundError:
        told = "framework='jax' needs JAX: pip install 'tokenloom[jax]' brings it"
        raise ModuleNotFoundError(told, name="jax") from None

    def put(array: np.ndarray) -> jax.Array:
        narrow = array.dtype == np.int64 and not jax.config.read("jax_enable_x64")
        return jax.numpy.asarray(array.astype(np.int32) if narrow else array)

    return put


def _joined(sources: list[Any], framework: Framework) -> tuple[int | None, int | None]:
    """This process's rank and how many there are, as the config says, or else JAX, where it knows."""
    for source in sources:
        if getattr(source, "rank", None) is not None and getattr(source, "world_size", None) is not None:
            return source.rank, source.world_size
    if framework == "jax":
        import jax

        if jax.distributed.is_initialized():
            return jax.process_index(), jax.process_count()
    return None, None
