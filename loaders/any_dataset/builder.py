"""Builds the right DataLoader for a dataset, setting by setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset

from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders.any_dataset.map_style.map_loader import MapLoader
from tokenloom.loaders.any_dataset.map_style.transformed import (
    TransformedDataset,
    TransformedStream,
    TransformedTokenLoader,
)
from tokenloom.loaders.collation.batch import Padding
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import TokenDataset
from tokenloom.loaders.on_the_fly.streaming import StreamingDataset, StreamingLoader
from tokenloom.loaders.order.ranks import place_among_ranks
from tokenloom.loaders.order.row_order import Shuffle
from tokenloom.loaders.token_loader import TokenLoader

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class DataLoaderBuilder:
    """Collects settings, and builds what reads the dataset best.

    A `TokenDataset` or `MixedDataset` is read by a `TokenLoader`, any other map-style dataset by a `MapLoader`, an
    iterable one by a `torch.utils.data.DataLoader`. Each method changes the builder and returns it.

        loader = DataLoaderBuilder().with_dataset(dataset).with_batch_size(32).with_workers(8).build()
    """

    def __init__(self) -> None:
        self._dataset: Any = None
        self._options: dict[str, Any] = {}
        self._packed = False
        self._collate_fn: Callable[[list[Any]], Any] | None = None
        self._transform: Callable[[Any], Any] | None = None
        self._state: Mapping[str, Any] | None = None
        self._resumable = False

    def with_dataset(self, dataset: Any) -> DataLoaderBuilder:
        """What to read: a `TokenDataset`, a `MixedDataset`, or any other map-style or iterable dataset.

        A `StreamingDataset` makes whole batches itself: of what is set here only workers count.
        """
        self._dataset = dataset
        return self

    def with_batch_size(self, batch_size: int) -> DataLoaderBuilder:
        """Rows a rank and batch; default 8."""
        return self._with(batch_size=batch_size)

    def with_token_budget(self, tokens: int) -> DataLoaderBuilder:
        """In place of a batch size: tokens a rank and batch, padding counted; of a TokenDataset or MixedDataset."""
        return self._with(token_budget=tokens)

    def with_shuffle(self, shuffle: Shuffle | bool = True) -> DataLoaderBuilder:
        """`full` or True, which is the default; `block`; `none` or False."""
        return self._with(shuffle=shuffle)

    def with_seed(self, seed: int) -> DataLoaderBuilder:
        """Chooses the order, and the random numbers that are drawn while loading; default 0."""
        return self._with(seed=seed)

    def with_drop_last(self, drop_last: bool = True) -> DataLoaderBuilder:
        """Leave out a last batch that is not full."""
        return self._with(drop_last=drop_last)

    def with_padding(self, padding: Padding, side: Literal["left", "right"] = "right") -> DataLoaderBuilder:
        """How rows of a TokenDataset come to one length: `max_length`, `longest` or a multiple."""
        return self._with(padding=padding, padding_side=side)

    def with_packing(self) -> DataLoaderBuilder:
        """Hold that rows are packed, which is done when a dataset is built: `length.packing` of its YAML."""
        self._packed = True
        return self

    def with_distributed(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        mesh_dim: str | tuple[str, ...] = "dp",
    ) -> DataLoaderBuilder:
        """Read the share of one of several ranks; default: that of `mesh`, else of `torch.distributed`.

        A `MapLoader` has a `RankSampler`, which is a `DistributedSampler`; `set_epoch` of the loader and of the sampler
        do the same.

        Raises:
            ValueError: there is no such rank, or no such dimension of the mesh.
        """
        rank, world_size = place_among_ranks(rank, world_size, mesh, mesh_dim)
        return self._with(rank=rank, world_size=world_size)

    def with_workers(self, num: int, pin_memory: bool = True, persistent: bool | None = None) -> DataLoaderBuilder:
        """Make batches in `num` worker processes.

        Args:
            pin_memory: pin batches, where there is a CUDA device.
            persistent: keep workers from epoch to epoch; None: yes.
        """
        pinned = None if pin_memory else False
        return self._with(num_workers=num, pin_memory=pinned, persistent_workers=persistent)

    def with_prefetch(self, batches: int, device: torch.device | str | None = None) -> DataLoaderBuilder:
        """Make batches ahead: so many a worker, or, of a TokenDataset without workers, in a thread.

        Args:
            device: a CUDA device that batches of a TokenDataset or MixedDataset are moved to meanwhile.
        """
        moved = {} if device is None else {"prefetch_to_device": device}
        return self._with(prefetch_factor=batches, **moved)

    def with_collate(self, collate_fn: Callable[[list[Any]], Any]) -> DataLoaderBuilder:
        """Make batches of lists of samples; a TokenDataset is then read row by row, by a `MapLoader`."""
        self._collate_fn = collate_fn
        return self

    def with_transform(self, transform: Callable[[Any], Any]) -> DataLoaderBuilder:
        """Change each sample, or, of a TokenDataset or MixedDataset without a collate_fn, each batch: augmentation.

        Random numbers that it draws from `random`, `numpy.random` or `torch` are a function of the seed and of the
        batch's place: the same after resuming, and with any number of workers.
        """
        self._transform = transform
        return self

    def with_state(self, state_dict: Mapping[str, Any] | None = None) -> DataLoaderBuilder:
        """Hold that the loader has `state_dict` and `load_state_dict`, and go on from a state where one is given."""
        self._resumable, self._state = True, state_dict
        return self

    def with_options(self, **options: Any) -> DataLoaderBuilder:
        """Further arguments of the loader that is built, by their names there."""
        return self._with(**options)

    def _with(self, **options: Any) -> DataLoaderBuilder:
        self._options |= options
        return self

    def build(self) -> DataLoader[Any]:
        """The loader.

        Raises:
            ConfigError: settings that are missing, or that do not go together or with the dataset.
            LoaderStateError: the state is not one of this loader.
            ValueError: a value is none that the loader takes.
        """
        if self._dataset is None:
            raise _fault("with_dataset", "there is nothing to read; name a dataset")
        if {"batch_size", "token_budget"} <= self._options.keys():
            raise _fault("with_token_budget", "a budget stands in place of with_batch_size; leave out one of them")
        tokens = isinstance(self._dataset, TokenDataset | MixedDataset)
        if self._packed:
            self._check_packed(tokens)
        if tokens and self._collate_fn is None:
            loader = self._of_tokens()
        else:
            self._check_foreign()
            iterable = isinstance(self._dataset, IterableDataset)
            loader = self._of_stream() if iterable else self._of_samples()
        if self._state is not None:
            loader.load_state_dict(self._state)  # pyright: ignore[reportAttributeAccessIssue]
        return loader

    def _of_tokens(self) -> TokenLoader:
        if self._transform is None:
            return TokenLoader(self._dataset, **self._options)
        return TransformedTokenLoader(self._dataset, self._transform, **self._options)

    def _of_samples(self) -> MapLoader:
        if isinstance(self._dataset, MixedDataset):
            raise _fault("with_collate", "a MixedDataset has no samples; change its batches: with_transform")
        data = self._dataset if self._transform is None else TransformedDataset(self._dataset, self._transform)
        return MapLoader(data, collate_fn=self._collate_fn, **self._options)

    def _of_stream(self) -> DataLoader[Any]:
        if self._resumable:
            raise _fault("with_state", "an iterable dataset has no position to resume at; take a map-style one")
        if "rank" in self._options:
            raise _fault(
                "with_distributed",
                "an iterable dataset shards itself; give the rank to it, or have `datasets` do it: "
                "datasets.distributed.split_dataset_by_node",
            )
        options = {name: value for name, value in self._options.items() if name != "shuffle"}
        if isinstance(self._dataset, StreamingDataset):
            return StreamingLoader(self._dataset, options.get("num_workers", 0))
        workers, seed = options.get("num_workers", 0), options.pop("seed", 0)
        options["persistent_workers"] = workers > 0 and options.get("persistent_workers") is not False
        options["prefetch_factor"] = options.get("prefetch_factor") if workers else None
        if options.get("pin_memory") is None:
            options["pin_memory"] = torch.cuda.is_available()
        data = self._dataset if self._transform is None else TransformedStream(self._dataset, self._transform)
        generator = torch.Generator().manual_seed(seed & (1 << 63) - 1)
        return DataLoader(
            data, options.pop("batch_size", 8), collate_fn=self._collate_fn, generator=generator, **options
        )

    def _check_packed(self, tokens: bool) -> None:
        name = type(self._dataset).__name__
        if not tokens:
            raise _fault("with_packing", f"a {name} cannot be packed; build it with `length: {{packing: concat}}`")
        mixed = isinstance(self._dataset, MixedDataset)
        for each in self._dataset.datasets.values() if mixed else [self._dataset]:
            if not each.packed:
                raise _fault(
                    "with_packing",
                    f"dataset {each.name!r} is not packed; put `length: {{packing: concat}}` (or best_fit) into its "
                    "YAML and build it again",
                )

    def _check_foreign(self) -> None:
        for setting, option in (
            ("with_token_budget", "token_budget"),
            ("with_padding", "padding"),
            ("with_prefetch(device=…)", "prefetch_to_device"),
        ):
            if option in self._options:
                what = "with_collate makes the batches" if self._collate_fn else f"a {type(self._dataset).__name__}"
                raise _fault(setting, f"it is for a TokenDataset or MixedDataset without with_collate; this is {what}")


def _fault(setting: str, message: str) -> ConfigError:
    return ConfigError([Fault(setting, message)])
