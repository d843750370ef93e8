"""Python's front door: from a YAML file to batches, building what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.assets.building.build import Build, StageReport
from tokenloom.assets.building.mixture import MixtureBuild
from tokenloom.assets.building.mixture_members import find_members
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.load import Config, check_config, load_config
from tokenloom.errors import ConfigError, DatasetNotFoundError, Result, TokenloomError, attempt
from tokenloom.resources.store import ArtifactStore, Version
from tokenloom.resources.store.manifest import MIXTURE

if TYPE_CHECKING:
    import pyarrow as pa
    from torch.utils.data import DataLoader

    from tokenloom.assets.building.prompt_engine import PromptEngine
    from tokenloom.loaders import MixedDataset, TokenDataset


class DataPipeline:
    """One dataset: its config, and the store that holds what was built of it."""

    def __init__(self, config: PipelineConfig, store: str | os.PathLike[str] | None = None):
        self.config, self.store = config, ArtifactStore(store)

    @classmethod
    def from_config(
        cls,
        config: str | os.PathLike[str] | Mapping[str, Any] | Config,
        store: str | os.PathLike[str] | None = None,
    ) -> Result[DataPipeline, TokenloomError]:
        """A pipeline from a YAML file, a mapping of the same settings, or a `PipelineConfig`.

        Where they mix datasets, it is a `MixturePipeline`.

        Args:
            store: the store's folder, or s3://bucket/prefix; default `$TOKENLOOM_STORE`, else `.tokenloom`.
        """

        def opened() -> DataPipeline:
            given: Any = config
            if isinstance(given, Mapping):
                given = check_config(given)
            elif not isinstance(given, PipelineConfig | MixtureConfig):
                given = load_config(given)
            kind: Any = MixturePipeline if isinstance(given, MixtureConfig) else DataPipeline
            return kind(given, store)

        return attempt(opened)

    def build(self, limit: int | None = None) -> Result[list[StageReport], TokenloomError]:
        """Run every stage, computing only what no earlier build did."""
        return attempt(lambda: list(Build(self.config, self.store, limit=limit).run_all()))

    def versions(self) -> list[Version]:
        """Every state in which the dataset was published, the oldest first."""
        return self.store.versions.of(self.config.dataset_name)

    def get_dataset(
        self, split: str = "train", version: str | None = None, verify: bool = True
    ) -> Result[TokenDataset, TokenloomError]:
        """The sequences of a split, building what is missing.

        Args:
            version: an older state, as `open_dataset` takes it; nothing is built then.
            verify: check the dataset's bytes when they are first read, as `open_dataset` does.
        """

        def opened() -> TokenDataset:
            from tokenloom.loaders import open_dataset

            if version is None:
                self.build().unwrap()
            return open_dataset(self.config.dataset_name, split, self.store.address, version, verify)

        return attempt(opened)

    def get_dataloader(
        self,
        split: str = "train",
        shuffle: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        version: str | None = None,
        verify: bool = True,
    ) -> Result[DataLoader[Any], TokenloomError]:
        """A DataLoader over a split, building what is missing; with `streaming: true`, straight from the source.

        Args:
            shuffle: default: what the YAML says for splits named `train…`, and no shuffling for others.
            rank, world_size: default: those of `torch.distributed` where it is initialized, else 0 of 1.
            version, verify: as in `get_dataset`.
        """
        settings = self.config.dataloader
        wanted = shuffle if shuffle is not None else split.startswith("train") and settings.shuffle != "none"

        def loader() -> DataLoader[Any]:
            if self._streams:
                return self._streaming(split, wanted, rank, world_size)
            from tokenloom.loaders import TokenLoader

            dataset: Any = self.get_dataset(split, version, verify).unwrap()
            return TokenLoader(
                dataset,
                batch_size=settings.batch_size,
                shuffle="none" if not wanted else "full" if settings.shuffle == "none" else settings.shuffle,
                token_budget=settings.token_budget,
                seed=settings.seed,
                drop_last=settings.drop_last,
                padding=self._padding[0],
                padding_side=self._padding[1],
                rank=rank,
                world_size=world_size,
                num_workers=settings.num_workers,
                pin_memory=settings.pin_memory,
                prefetch_factor=settings.prefetch_factor,
                persistent_workers=settings.persistent_workers,
            )

        return attempt(loader)

    @property
    def _streams(self) -> bool:
        return self.config.dataset.streaming

    @property
    def _padding(self) -> tuple[Any, Any]:
        """What is padded to, and on which side."""
        return self.config.tokenizer.padding, self.config.tokenizer.padding_side

    def get_tokenizer(self) -> Result[Any, TokenloomError]:
        """The tokenizer in force, as `transformers` loads it, building what is missing."""

        def loaded() -> Any:
            from transformers import AutoTokenizer

            self.build().unwrap()
            facts = self.store.manifest(self.config.dataset_name, "tokenizer").facts
            return AutoTokenizer.from_pretrained(str(self.store.tokenizer_folder(facts["digest"])))

        return attempt(loaded)

    def get_prompt_engine(self) -> Result[PromptEngine, TokenloomError]:
        """What encodes rows on the fly, and prompts for inference, with the columns of the dataset's source.

        Builds what is missing where the YAML trains the tokenizer.
        """

        def opened() -> PromptEngine:
            from tokenloom.assets.building.prompt_engine import PromptEngine, with_tokenizer

            config = self.config
            if config.tokenizer.train is not None:
                self.build().unwrap()
                facts = self.store.manifest(config.dataset_name, "tokenizer").facts
                config = with_tokenizer(config, str(self.store.tokenizer_folder(facts["digest"])))
            return PromptEngine(config, _heads(self.config))

        return attempt(opened)

    def _streaming(self, split: str, shuffle: bool, rank: int | None, world_size: int | None) -> DataLoader[Any]:
        from tokenloom.assets.building.prompt_engine import PromptEngine
        from tokenloom.loaders import PaddingPolicy, StreamingDataset, StreamingLoader

        settings, tokenizer = self.config.dataloader, self.config.tokenizer
        if settings.token_budget is not None:
            message = "dataloader.token_budget: a stream's lengths are not known before; set dataset.streaming to false"
            raise self.config.fault("dataloader.token_budget", message)
        heads = _heads(self.config, split)
        if not heads:
            raise DatasetNotFoundError(f"{self.config.dataset.name} has no split {split!r}")
        engine, tables = PromptEngine(self.config, heads), partial(_raw_tables, self.config, split)
        policy = PaddingPolicy(
            engine.pad_token_id, tokenizer.padding, tokenizer.padding_side, tokenizer.max_length, engine.packed
        )
        dataset = StreamingDataset(
            tables,
            engine,
            policy,
            settings.batch_size,
            shuffle,
            settings.seed,
            settings.drop_last,
            rank,
            world_size,
            whole_chunks=engine.whole_chunks,
        )
        return StreamingLoader(dataset, num_workers=settings.num_workers)


class MixturePipeline(DataPipeline):
    """A mixture: its config, and the store that holds what was built of its datasets.

    All is as in `DataPipeline`, but that datasets are `MixedDataset`s, and that versions and prompt engines are those
    of each dataset: they are refused here.
    """

    config: MixtureConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # what mixes has no `dataset`

    def __init__(self, config: MixtureConfig, store: str | os.PathLike[str] | None = None):
        self.config, self.store = config, ArtifactStore(store)

    def build(self, limit: int | None = None) -> Result[list[StageReport], TokenloomError]:
        """Run every stage of every dataset, computing only what no earlier build did, and publish the mixture.

        Reports are named `<dataset>/<stage>`.
        """

        def built() -> list[StageReport]:
            from tokenloom.loaders.datasets.stored_mixture import mixed_dataset

            build = MixtureBuild(self.config, self.store, limit=limit)
            reports = list(build.run_all())
            build.publish(mixed_dataset)
            return reports

        return attempt(built)

    def versions(self) -> list[Version]:
        """
        Raises:
            ConfigError: each dataset has its own.
        """
        raise self._each_has_its_own("versions")

    def get_dataset(  # pyright: ignore[reportIncompatibleMethodOverride]  # what it opens is no `TokenDataset`
        self, split: str = "train", version: str | None = None, verify: bool = True
    ) -> Result[MixedDataset, TokenloomError]:
        """The sequences of a split of all datasets, mixed, building what is missing.

        Args:
            version: None; each dataset has its own versions.
            verify: check the datasets' bytes when they are first read, as `open_dataset` does.
        """

        def opened() -> MixedDataset:
            from tokenloom.loaders import open_mixture

            if version is not None:
                raise self._each_has_its_own("versions")
            self.build().unwrap()
            try:
                return open_mixture(self.config.dataset_name, split, self.store.address, verify)
            except ValueError as error:
                raise self.config.fault("mixture", f"mixture: {error}") from None

        return attempt(opened)

    def get_tokenizer(self) -> Result[Any, TokenloomError]:
        """The tokenizer of the first dataset, as `transformers` loads it, building what is missing."""

        def loaded() -> Any:
            from transformers import AutoTokenizer

            self.build().unwrap()
            pinned = self.store.manifest(self.config.dataset_name, MIXTURE).pinned[self.config.names[0]]
            facts = self.store.manifest_at(pinned).facts
            return AutoTokenizer.from_pretrained(str(self.store.tokenizer_folder(facts["tokenizer"])))

        return attempt(loaded)

    def get_prompt_engine(self) -> Result[PromptEngine, TokenloomError]:
        """An error: each dataset has its own."""

        def refused() -> PromptEngine:
            raise self._each_has_its_own("prompt engine")

        return attempt(refused)

    @property
    def _streams(self) -> bool:
        return False

    @property
    def _padding(self) -> tuple[Any, Any]:
        """As the YAMLs of the datasets say; of those that only the store holds nothing is known."""
        for member in find_members(self.config, self.store.datasets):
            if member.config is not None:
                return member.config.tokenizer.padding, member.config.tokenizer.padding_side
        return "max_length", "right"

    def _each_has_its_own(self, what: str) -> ConfigError:
        told = f"{self.config.dataset_name} is a mixture; each of its datasets has its own {what}"
        return self.config.fault("mixture", f"mixture: {told}: {', '.join(self.config.names)}")


def _raw_tables(config: PipelineConfig, split: str) -> Iterator[pa.Table]:
    """The raw chunks of a split, read one after the other."""
    from tokenloom.assets.raw.chunks import source_chunks

    for chunk in source_chunks(config):
        if chunk.split == split:
            yield chunk.load().table


def _heads(config: PipelineConfig, split: str | None = None) -> list[pa.Table]:
    """The first chunk of each of a split's files, or of all: together they show the columns."""
    from tokenloom.assets.raw.chunks import source_chunks

    return [chunk.load().table for chunk in source_chunks(config, heads=True) if split in (None, chunk.split)]
