"""Builds the fitting DataLoader for a dataset, setting by setting."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tokenloom.errors import ConfigError
from tokenloom.loaders.collation.collate import OutputSchema, Side, column_names, create_collate_fn
from tokenloom.loaders.collation.text import DefaultCollator
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset, open_dataset
from tokenloom.loaders.map_style import MapLoader, fetch, seeded, with_note
from tokenloom.loaders.on_the_fly.batch_stream import StreamingDataset, StreamingLoader
from tokenloom.loaders.on_the_fly.row_stream import StreamingPreprocessedDataset
from tokenloom.loaders.order.batch_plan import Place
from tokenloom.loaders.order.ranks import place_in_mesh
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.reading.ahead import worker_options, workers_for_hardware
from tokenloom.loaders.reading.batch import Padding
from tokenloom.loaders.resumable import ResumableLoader, WorkerLoader
from tokenloom.loaders.token_loader import TokenLoader

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_fault = ConfigError.at


@dataclass(frozen=True)
class DataLoaderConfig:
    """Settings of a `DataLoaderFactory`.

    Args:
        batch_size: rows per rank and batch.
        shuffle: `full` or True: shuffle all rows; `block`: shuffle blocks of rows, then rows within windows of blocks;
            `none` or False: keep the order.
        num_workers: worker processes; None: 0 without a CUDA device, else half of the CPUs, at most 4.
        pin_memory: pin batches for faster copies to the GPU; None: if there is a CUDA device.
        prefetch_factor: batches prefetched by each worker; ignored without workers.
        persistent_workers: keep workers between epochs; None: if there are workers.
        drop_last: drop the last batch if it is not full.
        seed: seed of the order and of random numbers drawn while loading; None: a new one per loader, drawn from
            torch's generator.
        collate_fn: builds a batch from a list of samples; None: the loader's default.
        rank, world_size: None: those of `torch.distributed` if it is initialized, else 0 and 1.
        max_length: maximum tokens per row when an `ArrayDataLoader` tokenizes raw text.
        dataset_name: name of the built dataset to open when no dataset is passed.
        cache_dir: the store that contains it; None: `$TOKENLOOM_STORE`, else the nearest
            `.tokenloom` in or above the working directory.
        timeout, worker_init_fn, multiprocessing_context: as in `torch.utils.data.DataLoader`.
    """

    batch_size: int = 32
    shuffle: Shuffle | bool = True
    num_workers: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    drop_last: bool = False
    seed: int | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    rank: int | None = None
    world_size: int | None = None
    max_length: int = 2048
    dataset_name: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None


_COLUMNS = OutputSchema.default()


@dataclass(frozen=True)
class DefaultBatches:
    """Pads dicts with `input_ids` to the longest row of the batch, and stacks other samples as torch does.

    Of a dict's columns, those in `OutputSchema.default` that are as long as its `input_ids` are padded, and the others
    are stacked.

    Args:
        pad_token_id: fills `input_ids`; `attention_mask` is 0 and `labels` are -100 there.
        padding_side: the side on which rows are padded.

    Raises:
        DataValidationError: when called with samples that cannot be stacked.
    """

    pad_token_id: int = 0
    padding_side: Side = "right"

    def __call__(self, samples: Sequence[Any]) -> Any:
        first, stacked = samples[0], DefaultCollator()
        ids = first.get("input_ids") if isinstance(first, Mapping) else None
        if not hasattr(ids, "__len__") or isinstance(ids, str) or getattr(ids, "ndim", 1) != 1:
            return stacked(samples)
        names = column_names(samples)
        lengths = _lengths(samples, "input_ids")
        # by length, not by name alone: `labels` can be one per row
        padded = [name for name in names if name in _COLUMNS and _lengths(samples, name) == lengths]
        collate = create_collate_fn(self.pad_token_id, padding_side=self.padding_side)
        batch = collate([{name: row[name] for name in padded} for row in samples])
        others = [name for name in names if name not in padded]
        return batch | stacked([{name: row[name] for name in others} for row in samples]) if others else batch


def _lengths(rows: Sequence[Mapping[str, Any]], name: str) -> list[int] | None:
    """Return the length of each row's value, or None if the values are not lists."""
    try:
        return [len(row[name]) for row in rows]
    except TypeError:
        return None


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
                # raised outside of the handler, so that it has no second traceback of itself
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

    def _following(self, place: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
        for after, batch in super()._following(place):
            with seeded("transform", self._seed, after.epoch, after.position, after.batch, self.rank):
                changed = self._transform(batch)
            yield after, changed


class DataLoaderBuilder:
    """Collects settings, then builds the fitting loader for the dataset.

    A `TokenDataset` or `MixedDataset` gets a `TokenLoader`, any other map-style dataset a `MapLoader`, a
    `StreamingDataset` a `StreamingLoader`, and any other iterable dataset a `torch.utils.data.DataLoader`. Each method
    changes the builder and returns it. Rows of tokens, dicts with `input_ids`, are padded to the longest of the batch.

        loader = DataLoaderBuilder().with_dataset(dataset).with_batch_size(32).with_workers(8).build()
    """

    def __init__(self) -> None:
        self._dataset: Any = None
        self._options: dict[str, Any] = {}
        self._packed = False
        self._collate_fn: Callable[[list[Any]], Any] | None = None
        self._default = DefaultBatches()
        self._transform: Callable[[Any], Any] | None = None
        self._state: Mapping[str, Any] | None = None
        self._resumable = False

    def with_dataset(self, dataset: Any) -> DataLoaderBuilder:
        """Set the dataset: a `TokenDataset`, a `MixedDataset`, or any other map-style or iterable dataset.

        A `StreamingDataset` builds batches itself; of the other settings, only the number of workers applies to it.
        """
        self._dataset = dataset
        return self

    def with_batch_size(self, batch_size: int) -> DataLoaderBuilder:
        """Set the rows per rank and batch; default 8."""
        return self._with(batch_size=batch_size)

    def with_token_budget(self, tokens: int) -> DataLoaderBuilder:
        """Set the maximum tokens per rank and batch, padding included, instead of a batch size.

        For a `TokenDataset` or `MixedDataset` only.
        """
        return self._with(token_budget=tokens)

    def with_shuffle(self, shuffle: Shuffle | bool = True) -> DataLoaderBuilder:
        """Set how rows are shuffled: `full` or True (default), `block`, or `none` or False."""
        return self._with(shuffle=shuffle)

    def with_seed(self, seed: int) -> DataLoaderBuilder:
        """Set the seed of the order and of random numbers drawn while loading; default 0."""
        return self._with(seed=seed)

    def with_drop_last(self, drop_last: bool = True) -> DataLoaderBuilder:
        """Drop the last batch if it is not full."""
        return self._with(drop_last=drop_last)

    def with_padding(self, padding: Padding, side: Literal["left", "right"] = "right") -> DataLoaderBuilder:
        """Set how batches are padded: `max_length`, `longest`, or an integer to round up to a multiple of.

        For a `TokenDataset` or `MixedDataset` only.
        """
        return self._with(padding=padding, padding_side=side)

    def with_packing(self) -> DataLoaderBuilder:
        """Require that the rows are packed; the build packs them, with `length.packing` in the YAML."""
        self._packed = True
        return self

    def with_distributed(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        mesh_dim: str | tuple[str, ...] = "dp",
    ) -> DataLoaderBuilder:
        """Read only the rows of one rank; default: the rank in `mesh`, else in `torch.distributed` when the first batch
        is asked for.

        A `MapLoader` has a `RankSampler`, which is a `DistributedSampler`. `set_epoch` of the loader and of the sampler
        have the same effect.

        Args:
            rank, world_size: give both or neither.
            mesh: a DeviceMesh with named dimensions.
            mesh_dim: the data-parallel dimension, or several.

        Raises:
            ValueError: the mesh lacks the dimension or this process.
        """
        if mesh is not None and rank is None and world_size is None:
            rank, world_size = place_in_mesh(mesh, mesh_dim)
        return self._with(rank=rank, world_size=world_size)

    def with_workers(self, num: int, pin_memory: bool = True, persistent: bool | None = None) -> DataLoaderBuilder:
        """Build batches in `num` worker processes.

        Args:
            num: number of worker processes; 0: build batches in this process.
            pin_memory: pin batches if there is a CUDA device.
            persistent: keep workers between epochs; None: yes.
        """
        pinned = None if pin_memory else False
        return self._with(num_workers=num, pin_memory=pinned, persistent_workers=persistent)

    def with_prefetch(self, batches: int, device: torch.device | str | None = None) -> DataLoaderBuilder:
        """Prefetch batches with each worker or, for a `TokenDataset` without workers, with a background thread.

        Args:
            batches: number of batches to prefetch.
            device: a CUDA device to which batches are copied ahead of use; for a `TokenDataset` or `MixedDataset` only.
        """
        device_option = {} if device is None else {"prefetch_to_device": device}
        return self._with(prefetch_factor=batches, **device_option)

    def with_tokenizer(self, tokenizer: Any) -> DataLoaderBuilder:
        """Pad rows of tokens with the tokenizer's pad token, else its EOS token, and on its padding side.

        Default: with 0, on the right. A built dataset is padded as its YAML declares.

        Args:
            tokenizer: a tokenizer of transformers, or an object with `pad_token_id` or `eos_token_id`.

        Raises:
            ConfigError: the tokenizer has neither token.
        """
        tokens = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
        if (pad := next((token for token in tokens if token is not None), None)) is None:
            raise _fault("with_tokenizer", "the tokenizer has no pad or EOS token; set tokenizer.pad_token")
        self._default = DefaultBatches(pad, getattr(tokenizer, "padding_side", "right"))
        return self

    def with_collate(self, collate_fn: Callable[[list[Any]], Any]) -> DataLoaderBuilder:
        """Build batches from lists of samples with this function; a `TokenDataset` then gets a `MapLoader`.

        Default: dicts with `input_ids` are padded as by `create_collate_fn`, other samples are stacked as torch does.
        """
        self._collate_fn = collate_fn
        return self

    def with_transform(self, transform: Callable[[Any], Any]) -> DataLoaderBuilder:
        """Transform each sample, or, for a `TokenDataset` or `MixedDataset` without a collate function, each batch.

        Random numbers that it draws from `random`, `numpy.random` or `torch` depend only on the seed, the rank and the
        batch's position, except for iterable datasets: they are the same after resuming and for any number of workers.
        """
        self._transform = transform
        return self

    def with_state(self, state_dict: Mapping[str, Any] | None = None) -> DataLoaderBuilder:
        """Require a loader with `state_dict` and `load_state_dict`, and resume from a state if one is given."""
        self._resumable, self._state = True, state_dict
        return self

    def with_options(self, **options: Any) -> DataLoaderBuilder:
        """Set further arguments of the loader, by name."""
        return self._with(**options)

    def _with(self, **options: Any) -> DataLoaderBuilder:
        self._options |= options
        return self

    def build(self) -> DataLoader[Any]:
        """Return the loader.

        Raises:
            ConfigError: settings are missing, or contradict each other or the dataset.
            LoaderStateError: the state belongs to another loader.
            ValueError: a value is out of range.
        """
        if self._dataset is None:
            raise _fault("with_dataset", "no dataset to read; call with_dataset")
        if {"batch_size", "token_budget"} <= self._options.keys():
            raise _fault("with_token_budget", "a token budget replaces with_batch_size; call only one of them")
        tokens = isinstance(self._dataset, TokenDataset | MixedDataset)
        if self._packed:
            self._check_packed(tokens)
        if tokens and self._collate_fn is None and self._transform is not None:
            loader = TransformedTokenLoader(self._dataset, self._transform, **self._options)
        elif tokens and self._collate_fn is None:
            loader = TokenLoader(self._dataset, **self._options)
        else:
            self._check_no_token_options()
            iterable = isinstance(self._dataset, IterableDataset)
            loader = self._stream_loader() if iterable else self._map_loader()
        if self._state is not None:
            loader.load_state_dict(self._state)  # pyright: ignore[reportAttributeAccessIssue]
        return loader

    def _map_loader(self) -> MapLoader:
        if isinstance(self._dataset, MixedDataset):
            raise _fault("with_collate", "a MixedDataset has no samples; change its batches using with_transform")
        data = self._dataset if self._transform is None else TransformedDataset(self._dataset, self._transform)
        return MapLoader(data, collate_fn=self._collate_fn or self._default, **self._options)

    def _stream_loader(self) -> DataLoader[Any]:
        if self._resumable:
            raise _fault("with_state", "an iterable dataset has no position to resume at; use a map-style dataset")
        if "rank" in self._options:
            raise _fault(
                "with_distributed",
                "an iterable dataset shards itself; pass the rank to the dataset, or shard it with "
                "datasets.distributed.split_dataset_by_node",
            )
        options = {name: value for name, value in self._options.items() if name != "shuffle"}
        if isinstance(self._dataset, StreamingDataset):
            return StreamingLoader(self._dataset, options.get("num_workers", 0))
        chosen = (options.get(name) for name in ("pin_memory", "prefetch_factor", "persistent_workers"))
        options |= worker_options(options.get("num_workers", 0), *chosen)
        data = self._dataset if self._transform is None else TransformedStream(self._dataset, self._transform)
        generator = torch.Generator().manual_seed(options.pop("seed", 0) & (1 << 63) - 1)
        batch_size = options.pop("batch_size", 8)
        collate_fn = self._collate_fn or (None if batch_size is None else self._default)
        loader = WorkerLoader(data, batch_size, collate_fn=collate_fn, generator=generator, **options)
        if isinstance(self._dataset, StreamingPreprocessedDataset):
            loader._is_accelerate_prepared = True  # it divides its rows among ranks itself
        return loader

    def _check_packed(self, tokens: bool) -> None:
        name = type(self._dataset).__name__
        if not tokens:
            raise _fault(
                "with_packing", f"a {name} is never packed; build a dataset with `length: {{packing: concat}}`"
            )
        mixed = isinstance(self._dataset, MixedDataset)
        for each in self._dataset.datasets.values() if mixed else [self._dataset]:
            if not each.packed:
                raise _fault(
                    "with_packing",
                    f"dataset {each.name!r} is not packed; add `length: {{packing: concat}}` (or best_fit) to its YAML "
                    "and build it again",
                )

    def _check_no_token_options(self) -> None:
        for setting, option in (
            ("with_token_budget", "token_budget"),
            ("with_padding", "padding"),
            ("with_prefetch(device=…)", "prefetch_to_device"),
        ):
            if option in self._options:
                got = "with_collate was called" if self._collate_fn else f"got a {type(self._dataset).__name__}"
                raise _fault(setting, f"needs a TokenDataset or MixedDataset without with_collate, but {got}")


class DataLoaderFactory:
    """Creates DataLoaders. The same dataset, config and seed give the same batches."""

    def create_dataloader(self, dataset: Any = None, config: DataLoaderConfig | None = None) -> DataLoader[Any]:
        """Return the loader that `DataLoaderBuilder` builds from the config.

        Args:
            dataset: a map-style or iterable dataset; None: the built dataset named by `config.dataset_name`.
            config: default: `DataLoaderConfig()`.

        Raises:
            ConfigError: no dataset is given, or the settings do not fit it.
            DatasetNotFoundError: the store has no dataset of that name.
            ValueError: a value is out of range.
        """
        config = config or DataLoaderConfig()
        if dataset is None:
            if config.dataset_name is None:
                raise ConfigError.at("create_dataloader", "no dataset: pass one, or set config.dataset_name")
            dataset = open_dataset(config.dataset_name, store=config.cache_dir)
        builder = DataLoaderBuilder().with_dataset(dataset).with_batch_size(config.batch_size)
        seed = int(torch.randint(0, 1 << 62, ())) if config.seed is None else config.seed
        builder.with_seed(seed).with_drop_last(config.drop_last).with_shuffle(config.shuffle)
        if not isinstance(dataset, IterableDataset):
            builder.with_distributed(config.rank, config.world_size)
        if config.collate_fn is not None:
            builder.with_collate(config.collate_fn)
        workers = workers_for_hardware() if config.num_workers is None else config.num_workers
        builder.with_options(
            num_workers=workers,
            pin_memory=config.pin_memory,
            persistent_workers=config.persistent_workers,
            prefetch_factor=config.prefetch_factor if workers else None,
        )
        if not isinstance(dataset, TokenDataset | MixedDataset) or config.collate_fn is not None:
            builder.with_options(
                timeout=config.timeout,
                worker_init_fn=config.worker_init_fn,
                multiprocessing_context=config.multiprocessing_context,
            )
        loader = builder.build()
        if config.seed is None and isinstance(loader, ResumableLoader):
            message = "several ranks need the same order: set the same seed on all ranks"
            loader.sharding.refuse_several(ConfigError.at("seed", message))
        return loader
