"""The Python interface: from a YAML file to batches, building what is missing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.assets.building.report import StageReport
from tokenloom.assets.building.target import BuildTarget, find_members, open_target
from tokenloom.assets.columns.unused import unused_notice
from tokenloom.assets.stage.names import COLUMNS, RAW
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.dataset import Config, check_config, load_config
from tokenloom.errors import ConfigError, DatasetNotFoundError, Result, TokenloomError, attempt, escaped
from tokenloom.resources.store import ArtifactStore, Version
from tokenloom.resources.store.versions import default_store

if TYPE_CHECKING:
    import pyarrow as pa
    from torch.utils.data import DataLoader

    from tokenloom.assets.building.on_the_fly import PromptEngine
    from tokenloom.exporters.export_folder import Exported
    from tokenloom.loaders import MixedDataset, TokenDataset
    from tokenloom.starter.source_facts import Inspection


_LOG = logging.getLogger(__name__)


class DataPipeline:
    """One dataset: its config and its store."""

    def __init__(self, config: PipelineConfig, store: str | os.PathLike[str] | None = None):
        self.config, self.store = config, ArtifactStore(store or default_store(config.folder))

    @classmethod
    def from_config(
        cls, config: str | os.PathLike[str] | Mapping[str, Any] | Config, store: str | os.PathLike[str] | None = None
    ) -> Result[DataPipeline, TokenloomError]:
        """Return a pipeline for a YAML file, a mapping of the same settings, or a config.

        For a mixture it is a `MixturePipeline`.

        Args:
            store: the store's folder, or s3://bucket/prefix; default: `$TOKENLOOM_STORE`, else the nearest `.tokenloom`
                in or above the YAML's folder or the working directory, else a new one at the root of the project.
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
        """Run every stage, computing only what is not in the store yet.

        Logs a warning that names columns with content that nothing uses.

        Args:
            limit: build only the first `limit` rows of each split, published as `<name>@<limit>`.
        """
        return attempt(lambda: self._build(limit)[1])

    def _build(self, limit: int | None = None) -> tuple[BuildTarget, list[StageReport]]:
        target = open_target(self.config, self.store, limit=limit)
        reports = list(target.run_all())
        target.publish()
        for report in reports:
            if report.name.rpartition("/")[2] == RAW:
                for notice in report.notices:
                    _LOG.warning("%s: %s", report.name, notice)
        for build in target.builds.values():
            if unused := build.manifest(COLUMNS).notes.get("unused_columns"):
                _LOG.warning("%s: %s", build.name, unused_notice(unused))
        return target, reports

    def _opened(self, build: bool) -> BuildTarget:
        return self._build()[0] if build else open_target(self.config, self.store)

    @staticmethod
    def inspect(
        source: str | os.PathLike[str],
        store: str | os.PathLike[str] | None = None,
        *,
        tokenizer: str | None = None,
        style: str | None = None,
        config: str | None = None,
        revision: str | None = None,
        split: str | None = None,
        root: str | None = None,
        limit: int | None = None,
    ) -> Result[Inspection, TokenloomError]:
        """Return what a source contains, and the text of a YAML to start from, as `tokenloom inspect` does.

        Runs the stages `raw` and `schema`, which are published as `<name>@inspect`. Writes no YAML.

        Args:
            source: a file, folder, glob, URL or hub id, or the YAML of a dataset.
            store: as in `from_config`.
            tokenizer: hub id or path of the tokenizer to set in the YAML; default: the YAML trains one.
            style: how the YAML renders prompts and answers: `alpaca`, `chat`, `lines`, `plain` or `qa`; default: as the
                tokenizer's chat template does, or what suits the rows.
            config, revision: of a hub dataset; `config` also of a folder with a README.md.
            split: use only this split.
            root: path to the rows of nested JSON, such as `data[].qas[]`.
            limit: use only the first `limit` rows of each split.
        """

        def inspected() -> Inspection:
            from tokenloom.config.yaml_file import is_yaml
            from tokenloom.starter.source_facts import inspect_source

            address = escaped(os.fspath(source))
            folder = Path(address).parent if is_yaml(address) else None
            opened = ArtifactStore(store or default_store(folder))
            return inspect_source(address, opened, tokenizer, style, config, revision, split, root, limit)

        return attempt(inspected)

    def export(
        self,
        folder: str | os.PathLike[str],
        to: str,
        split: str | None = None,
        overwrite: bool = False,
        shard_size: str | None = None,
        limit: int | None = None,
    ) -> Result[Exported, TokenloomError]:
        """Write the rows to files for another library, as `tokenloom export` does, building what is missing.

        Args:
            folder: local folder to write; it appears only when the export is complete.
            to: the layout: `hf`, `parquet`, `trl`, `axolotl`, `llamafactory`, `skyrl`, `megatron`, `megatron-sft`,
                `olmo`, `mds` or `jsonl`.
            split: only this split; default: all.
            overwrite: replace an earlier export in the folder.
            shard_size: Arrow data after which a file is closed, such as `200MB`; default: that of the layout.
            limit: as in `build`.
        """

        def exported() -> Exported:
            from tokenloom.exporters.export_folder import export

            return export(folder, to, lambda: self._build(limit)[0], split, overwrite, shard_size)

        return attempt(exported)

    def versions(self) -> list[Version]:
        """Return every published version of the dataset, oldest first."""
        return self.store.versions.of(self.config.dataset_name)

    def get_dataset(
        self,
        split: str = "train",
        version: str | None = None,
        verify: bool = True,
        pin: str | None = None,
        build: bool = True,
    ) -> Result[TokenDataset, TokenloomError]:
        """Return the sequences of a split, building what is missing.

        Args:
            version: an older version, as in `open_dataset`; nothing is built then.
            verify: check the dataset's bytes when they are first read, as `open_dataset` does.
            pin: name of a training run, as in `open_dataset`; nothing is built then.
            build: whether to build what is missing; if False, the latest version in the store is opened.
        """

        def opened() -> Any:
            if version is None and pin is None:
                return self._opened(build).open_split(split, verify)
            from tokenloom.loaders import open_dataset

            return open_dataset(self.config.dataset_name, split, self.store.address, version, verify, pin)

        return attempt(opened)

    def get_dataloader(
        self,
        split: str = "train",
        shuffle: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        version: str | None = None,
        verify: bool = True,
        pin: str | None = None,
        build: bool = True,
    ) -> Result[DataLoader[Any], TokenloomError]:
        """Return a DataLoader over a split, building what is missing.

        With `streaming: true` it reads the source directly.

        Args:
            shuffle: default: the YAML's setting for splits named `train…`, and no shuffling for others.
            rank, world_size: default: those of `torch.distributed` if it is initialized, else 0 and 1.
            version, verify, pin, build: as in `get_dataset`.
        """
        settings = self.config.dataloader
        shuffled = shuffle if shuffle is not None else split.startswith("train") and settings.shuffle != "none"

        def loader() -> DataLoader[Any]:
            if self._streams:
                return self._streaming(split, shuffled, rank, world_size)
            from tokenloom.loaders import TokenLoader

            dataset: Any = self.get_dataset(split, version, verify, pin, build).unwrap()
            return TokenLoader(
                dataset,
                batch_size=settings.batch_size,
                shuffle="none" if not shuffled else "full" if settings.shuffle == "none" else settings.shuffle,
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
        """The `padding` and `padding_side` settings."""
        return self.config.tokenizer.padding, self.config.tokenizer.padding_side

    def get_tokenizer(self) -> Result[Any, TokenloomError]:
        """Return the dataset's tokenizer, loaded by `transformers`, building what is missing.

        The datasets of a mixture share one tokenizer.
        """

        def loaded() -> Any:
            from transformers import AutoTokenizer

            digest = self._build()[0].tokenizer_digest()
            return AutoTokenizer.from_pretrained(str(self.store.tokenizer_folder(digest)))

        return attempt(loaded)

    def get_prompt_engine(self) -> Result[PromptEngine, TokenloomError]:
        """Return an engine that encodes rows on the fly, and prompts for inference, from the source's columns.

        If the YAML trains the tokenizer, builds what is missing first.
        """

        def opened() -> PromptEngine:
            from tokenloom.assets.building.on_the_fly import PromptEngine, with_tokenizer

            config = self.config
            if config.tokenizer.train is not None:
                digest = self._build()[0].tokenizer_digest()
                config = with_tokenizer(config, str(self.store.tokenizer_folder(digest)))
            return PromptEngine(config, _first_chunks(self.config))

        return attempt(opened)

    def _streaming(self, split: str, shuffle: bool, rank: int | None, world_size: int | None) -> DataLoader[Any]:
        from tokenloom.assets.building.on_the_fly import PromptEngine
        from tokenloom.loaders import PaddingPolicy, StreamingDataset, StreamingLoader

        settings, tokenizer = self.config.dataloader, self.config.tokenizer
        if settings.token_budget is not None:
            message = "needs row lengths, which streaming does not know in advance; set dataset.streaming to false"
            raise self.config.fault("dataloader.token_budget", message)
        first_chunks = _first_chunks(self.config, split)
        engine, tables = PromptEngine(self.config, first_chunks), partial(_raw_tables, self.config, split)
        policy = PaddingPolicy(
            engine.pad_token_id,
            tokenizer.padding,
            tokenizer.padding_side,
            tokenizer.max_length,
            engine.packed,
            self.config.length.document_multiple or 1,
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
            labels=self.config.prompt_template.format_type != "prompt_only",
            keep_columns=self.config.dataset.keep_columns,
            keep=engine.kept_columns if self.config.dataset.keep_columns else None,
        )
        return StreamingLoader(dataset, num_workers=settings.num_workers)


class MixturePipeline(DataPipeline):
    """A mixture: its config, and the store of its datasets.

    It differs from `DataPipeline` in that `build` reports are named `<dataset>/<stage>`, datasets are `MixedDataset`s,
    and versions and prompt engines are refused, because each dataset of the mixture has its own.
    """

    config: MixtureConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # a mixture has no `dataset` section

    def __init__(self, config: MixtureConfig, store: str | os.PathLike[str] | None = None):
        self.config, self.store = config, ArtifactStore(store or default_store(config.folder))

    def versions(self) -> list[Version]:
        """
        Raises:
            ConfigError: always; each dataset has its own versions.
        """
        raise self._each_has_its_own("versions")

    def get_dataset(  # pyright: ignore[reportIncompatibleMethodOverride]  # returns a `MixedDataset`
        self,
        split: str = "train",
        version: str | None = None,
        verify: bool = True,
        pin: str | None = None,
        build: bool = True,
    ) -> Result[MixedDataset, TokenloomError]:
        """Return the sequences of a split of all datasets, mixed, building what is missing.

        Args:
            version: must be None; each dataset has its own versions.
            verify: check the datasets' bytes when they are first read, as `open_dataset` does.
            pin: name of a training run, as in `open_mixture`; nothing is built then.
            build: as in `DataPipeline.get_dataset`.
        """

        def opened() -> Any:
            if version is not None:
                raise self._each_has_its_own("versions")
            if pin is None:
                return self._opened(build).open_split(split, verify)
            from tokenloom.loaders import open_mixture

            return open_mixture(self.config.dataset_name, split, self.store.address, verify, pin)

        return attempt(opened)

    def get_prompt_engine(self) -> Result[PromptEngine, TokenloomError]:
        """Return an error: each dataset has its own prompt engine."""

        def refused() -> PromptEngine:
            raise self._each_has_its_own("prompt engine")

        return attempt(refused)

    @property
    def _streams(self) -> bool:
        return False

    @property
    def _padding(self) -> tuple[Any, Any]:
        """The padding settings of the datasets' YAMLs; the defaults if only the store holds the datasets."""
        for member in find_members(self.config, self.store.datasets):
            if member.config is not None:
                return member.config.tokenizer.padding, member.config.tokenizer.padding_side
        return "max_length", "right"

    def _each_has_its_own(self, thing: str) -> ConfigError:
        message = f"{self.config.dataset_name} is a mixture; each of its datasets has its own {thing}"
        return self.config.fault("mixture", f"mixture: {message}: {', '.join(self.config.names)}")


def _raw_tables(config: PipelineConfig, split: str) -> Iterator[pa.Table]:
    from tokenloom.assets.raw.chunks import source_chunks

    for chunk in source_chunks(config):
        if chunk.split == split:
            yield chunk.load().table


def _first_chunks(config: PipelineConfig, split: str | None = None) -> list[pa.Table]:
    """Return the first chunk of each file of a split, or of all splits. Together they show the columns.

    Args:
        split: for a loader, which reads no other; what is noteworthy of the source is then logged.

    Raises:
        DatasetNotFoundError: the split does not exist.
    """
    from tokenloom.assets.raw.chunks import SourceNotes, source_chunks

    notes = SourceNotes()
    chunks = list(source_chunks(config, heads=True, notes=notes))
    splits = [*dict.fromkeys(chunk.split for chunk in chunks)]
    if split is not None and split not in splits:
        raise DatasetNotFoundError(f"{config.dataset.name} has no split {split!r}; it has {', '.join(splits)}")
    for notice in notes.notices if split is not None else ():
        _LOG.warning("%s: %s", config.dataset_name, notice)
    return [chunk.load().table for chunk in chunks if split in (None, chunk.split)]
