"""A `TokenLoader` for training without torch: batches as NumPy or JAX arrays, or as a `tf.data.Dataset`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tokenloom.errors import ConfigError, DatasetNotFoundError, did_you_mean, missing_package
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset, open_mixture
from tokenloom.loaders.datasets.token_dataset import TokenDataset, open_dataset
from tokenloom.loaders.order.batch_plan import LARGEST_COUNT, FixedBatches, Place, integer
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.raw_text import TRAIN, TextDataset, TextEncoder
from tokenloom.loaders.reading.batch import Padding, unpadded
from tokenloom.loaders.token_loader import TokenLoader
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.manifest import MIXTURE

if TYPE_CHECKING:
    import tensorflow as tf

_fault = ConfigError.at

Opened = TokenDataset | MixedDataset | TextDataset


def open_source(
    named: Any,
    pipeline: Any,
    tokenizer: TextEncoder | None,
    split: str,
    max_length: int,
    store: str | os.PathLike[str] | None = None,
) -> Opened:
    """Open a dataset by name, or build and open that of a `DataPipeline`.

    Args:
        named: the name of a dataset or mixture, a path, or an open dataset; None: the pipeline's dataset.
        pipeline: a `DataPipeline`; anything else is ignored.
        tokenizer: tokenizes raw text; for a built dataset, it is checked against the dataset's.
        split: name of the split.
        max_length: maximum tokens per row of raw text.
        store: the store's address, unless there is a pipeline.

    Raises:
        ConfigError: no dataset is given, raw text has no tokenizer, or the tokenizer is not the dataset's.
        DatasetNotFoundError: neither the store nor a path has that name, or the split does not exist.
        SourceError: a file of raw text cannot be read.
    """
    dataset: Any = named
    if hasattr(pipeline, "get_dataset"):
        store = pipeline.store.address
        dataset = pipeline.get_dataset(split).unwrap() if dataset is None else dataset
    if dataset is None:
        raise _fault("dataset_name", "no dataset to read; name a built dataset, or a file of texts")
    if isinstance(dataset, str | os.PathLike):
        dataset = _by_name(os.fspath(dataset), tokenizer, split, max_length, store)
    if tokenizer is not None and not isinstance(dataset, TextDataset):
        _check_tokenizer(tokenizer, dataset)
    return dataset


def _by_name(
    name: str, tokenizer: TextEncoder | None, split: str, max_length: int, store: str | os.PathLike[str] | None
) -> Opened:
    opened = ArtifactStore(store)
    built = opened.datasets()
    if name in built:
        kind = open_mixture if MIXTURE in opened.stages(name) else open_dataset
        return kind(name, split, opened.address)
    path = Path(name).expanduser()
    if not path.exists():
        raise DatasetNotFoundError(
            f"no dataset or file {name!r} found; the store {opened.address} has {', '.join(built) or 'no datasets'}: "
            f"build it with `tokenloom build`, or name a file of texts{did_you_mean(name, built)}"
        )
    if tokenizer is None:
        raise _fault("tokenizer", f"{name} is raw text; pass a tokenizer")
    if split != TRAIN:
        raise DatasetNotFoundError(f"{name} is raw text, which has no split {split!r}, only {TRAIN!r}")
    return TextDataset(path, tokenizer, max_length)


def _check_tokenizer(tokenizer: Any, dataset: TokenDataset | MixedDataset) -> None:
    """Raise a ConfigError unless a tokenizer has the dataset's ids for the tokens they share, at least one."""
    if not hasattr(tokenizer, "get_vocab"):
        return
    from tokenloom.resources.tokenizers.tokenizer_json import vocabulary

    own = vocabulary(json.loads((Path(dataset.tokenizer_path) / "tokenizer.json").read_bytes()))
    given = tokenizer.get_vocab()
    differing = [token for token, _ in given.items() - own.items() if token in own]
    if differing or not given.keys() & own.keys():
        token = min(differing, default="")
        ids = f"{token!r} has id {given[token]}, but {own[token]} in the dataset's" if differing else "no shared tokens"
        raise _fault(
            "tokenizer",
            f"the dataset was built with another tokenizer ({ids}); omit the tokenizer, or load the dataset's: "
            f"AutoTokenizer.from_pretrained({dataset.tokenizer_path!r})",
        )


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
    """A `TokenLoader` whose batches are dicts of NumPy or JAX arrays.

    Batches have int64 `input_ids`, `attention_mask` and `labels` [rows, length], and the further columns of the data.
    JAX arrays are int32 unless `jax_enable_x64` is set.

    Order, ranks, `len`, `state_dict`, `load_state_dict`, `set_epoch`, `skip` and `trace` are those of `TokenLoader`.

    Args:
        config: values for arguments that are not passed: a `DataLoaderConfig`, or any object or mapping with some of
            `batch_size`, `token_budget`, `shuffle`, `seed`, `drop_last`, `padding`, `padding_side`, `rank` and
            `world_size`, `prefetch_factor`, `collate_fn`, `max_length`, `dataset_name` and `cache_dir` (the store;
            default `$TOKENLOOM_STORE`, else the nearest `.tokenloom` in or above the working directory). Or a
            `DataPipeline`: its YAML has the values, and its dataset is built if it is missing. None: the defaults.
        tokenizer: tokenizes raw text: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding. A built
            dataset needs none; if one is passed, it is checked against the dataset's.
        dataset_name: name of a dataset or mixture in the store, else a file or folder of raw text, which `TextDataset`
            reads and truncates to `max_length`; or an open dataset.
        batch_size: rows per rank and batch; default 32. `set_batch_size` changes it between two batches.
        shuffle: `full` or True, `block`, or `none` or False, as in `TokenLoader`. Default: True for splits named
            `train…`, else False.
        framework: `numpy` or `jax`.
        split: split of a built dataset.
        token_budget: replaces `batch_size`: maximum tokens per rank and batch, padding included. Batches consist of
            rows of similar length, and differ in their number of rows.
        seed, drop_last, padding, padding_side: as in `TokenLoader`. The default padding, `max_length`, gives all
            batches the same width.
        rank, world_size: as in `TokenLoader`; for JAX, default to those of `jax.distributed` if it is initialized.
        prefetch_factor: batches prefetched by a background thread; default 2. No worker processes are used.
        collate_fn: builds a batch, a dict of arrays or tensors, from a list of rows, which are dicts of NumPy arrays
            without padding. The arrays of a padding row are empty.
        transform: called with each batch of NumPy arrays; returns the batch to use.

    Raises:
        ConfigError: an argument or a setting of `config` is not valid, or the tokenizer is not the dataset's.
        DatasetNotFoundError: neither the store nor a path has that name, or the split does not exist.
        SourceError: a file of raw text cannot be read.
        ModuleNotFoundError: JAX is not installed; the message has the command that installs it.
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
            raise ConfigError.at("framework", f"must be 'numpy' or 'jax', got {framework!r}")
        if batch_size is not None and token_budget is not None:
            raise ConfigError.at("token_budget", "a token budget replaces batch_size; pass only one of them")
        sources = _sources(config)

        def chosen(name: str, argument: Any = None) -> Any:
            values = [argument, *(getattr(source, name, None) for source in sources), DEFAULTS.get(name)]
            return next((value for value in values if value is not None), None)

        self._put: Callable[[np.ndarray], Any] | None = _to_jax() if framework == "jax" else None
        if rank is None and world_size is None:
            rank, world_size = _rank_and_world_size(sources, framework)
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
        self._rows_to_batch, self._transform = chosen("collate_fn", collate_fn), transform
        self._sizes = 0  # how often the batch size was changed

    def set_batch_size(self, batch_size: int) -> None:
        """Change the number of rows per batch, from the next batch on, also within an epoch.

        The order of rows does not change, and a state resumes with any batch size. All ranks must change it at the same
        step. `trace` counts steps of the current size.

        Raises:
            ValueError: it is below 1, or the loader has a `token_budget`.
        """
        batch_size = integer("batch_size", batch_size, 1, LARGEST_COUNT)
        if not isinstance(self.plan, FixedBatches):
            raise ValueError("a loader with a token_budget has no batch size; create the loader with batch_size")
        self.plan, self._sizes = replace(self.plan, batch_size=batch_size), self._sizes + 1
        self._settings["batch_size"] = batch_size

    def _following(self, place: Place) -> Iterator[tuple[Place, Arrays]]:
        while True:
            sizes = self._sizes
            with closing(super()._following(place)) as batches:  # pyright: ignore[reportArgumentType]  # it is a generator
                for place, batch in batches:
                    yield place, batch
                    # a plan of another size: read on from this place with that
                    if self._sizes != sizes:
                        break
                else:
                    return

    def _batches(self, place: Place) -> Iterator[tuple[Place, Arrays]]:
        return ((after, self._arrays(batch)) for after, batch in super()._batches(place))

    def _arrays(self, batch: Mapping[str, Any]) -> Arrays:
        arrays = _to_numpy(batch)
        if self._rows_to_batch is not None:
            arrays = _to_numpy(self._rows_to_batch([_to_numpy(row) for row in unpadded(arrays)]))
        if self._transform is not None:
            arrays = self._transform(arrays)
        put = self._put
        if put is None:
            return {**arrays}
        return {name: put(value) if isinstance(value, np.ndarray) else value for name, value in arrays.items()}

    def to_tf_dataset(self) -> tf.data.Dataset:
        """Return the batches as a `tf.data.Dataset` of dicts of tensors; each pass over it is an epoch of this loader.

        Columns of `keep_columns` are omitted, because TensorFlow cannot hold Python values.

        The loader's state is that of the last batch TensorFlow has taken. Without `prefetch`, that is the last batch
        it has yielded.

        Raises:
            ModuleNotFoundError: TensorFlow is not installed; the message has the command that installs it.
            ValueError: rows have images, so that batches do not all have the same keys.
        """
        if self.images:
            raise ValueError("to_tf_dataset does not support rows with images; iterate over the loader for arrays")
        try:
            import tensorflow as tf  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            raise missing_package("tensorflow", "to_tf_dataset") from None
        first = self._arrays(self._data.reader.batch(np.zeros(1, np.int64), self._policy))
        unchanged = self._rows_to_batch is None and self._transform is None
        width = self._policy.max_length if self._policy.padding == "max_length" and unchanged else None

        def spec(value: Any) -> tf.TensorSpec:
            array = np.asarray(value)
            shape = [None, width] if array.ndim == 2 else [None] * array.ndim
            return tf.TensorSpec(shape, array.dtype)

        def batches() -> Iterator[Arrays]:
            return ({name: np.asarray(batch[name]) for name in signature} for batch in self)

        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # the state would run ahead
        signature = {name: spec(value) for name, value in first.items() if not isinstance(value, list)}
        return tf.data.Dataset.from_generator(batches, output_signature=signature).with_options(options)


def _sources(config: Any) -> list[Any]:
    if isinstance(config, str | os.PathLike):
        message = f"got the path {os.fspath(config)!r}; for a YAML, pass DataPipeline.from_config(…).unwrap()"
        raise ConfigError.at("config", message)
    if isinstance(config, Mapping):
        return [SimpleNamespace(**config)]
    declared = config.config if hasattr(config, "get_dataset") else config
    if not hasattr(declared, "dataloader"):
        return [config]
    sections = [declared.dataloader, getattr(declared, "tokenizer", None)]
    return sections if declared is not config else [*sections, config]


def _to_numpy(batch: Mapping[str, Any]) -> Arrays:
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _to_jax() -> Callable[[np.ndarray], Any]:
    try:
        import jax
    except ModuleNotFoundError:
        raise missing_package("jax", "framework='jax'") from None

    def put(array: np.ndarray) -> jax.Array:
        narrow = array.dtype == np.int64 and not jax.config.read("jax_enable_x64")
        return jax.numpy.asarray(array.astype(np.int32) if narrow else array)

    return put


def _rank_and_world_size(sources: list[Any], framework: Framework) -> tuple[int | None, int | None]:
    """Return rank and world size from the config, else from JAX, else (None, None)."""
    for source in sources:
        if getattr(source, "rank", None) is not None and getattr(source, "world_size", None) is not None:
            return source.rank, source.world_size
    if framework == "jax":
        import jax

        if jax.distributed.is_initialized():
            return jax.process_index(), jax.process_count()
    return None, None
