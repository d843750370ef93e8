"""Build targets: one dataset or a mixture, built and opened through the same methods; and what a folder declares."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import STAGES
from tokenloom.assets.building.report import Progress, StageReport
from tokenloom.assets.stage.names import TOKENIZERS
from tokenloom.config import MixtureConfig, MixtureSource, PipelineConfig
from tokenloom.config.dataset import Config, load_config
from tokenloom.config.yaml_file import is_yaml
from tokenloom.errors import ConfigError, DataValidationError, Fault, did_you_mean
from tokenloom.resources.engines.engine import ComputeEngine, open_engine
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import MIXTURE
from tokenloom.resources.store.versions import ReadLock
from tokenloom.resources.tokenizers import TOKENIZER

if TYPE_CHECKING:
    from tokenloom.loaders import MixedDataset, TokenDataset


@dataclass(frozen=True)
class Member:
    """One dataset of a mixture: its entry in the mixture, and its YAML; None if it is only in the store."""

    source: MixtureSource
    config: PipelineConfig | None

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.source.dataset


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder, sorted, without hidden ones."""
    if not folder.is_dir():
        return []
    visible = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in visible if is_yaml(entry) and entry.is_file())


Read = Config | ConfigError
"""What reading a YAML gave."""


def read_config(path: Path) -> Read:
    """Return what a YAML declares, or what is wrong with it."""
    try:
        return load_config(path)
    except ConfigError as error:
        return error


def find_members(
    mixture: MixtureConfig,
    stored_names: Callable[[], Collection[str]] | None = None,
    read: Callable[[Path], Read] = read_config,
) -> list[Member]:
    """Return the datasets of a mixture, in its order. Reads YAML only.

    Args:
        stored_names: returns the names of the datasets in the store; None: assume that the store holds every dataset
            that no YAML declares.
        read: reads a YAML of the mixture's folder.

    Raises:
        ConfigError: a name is unknown, names a mixture, or is declared twice; a YAML is wrong; or datasets do not fit
            together.
    """
    declared: dict[str, list[Config]] = {}
    broken: dict[str, ConfigError] = {}
    for path in yaml_files(Path(mixture.folder or ".")):
        if str(path) != mixture.file:
            if isinstance(content := read(path), ConfigError):
                broken[path.stem] = content
            else:
                declared.setdefault(content.dataset_name, []).append(content)
    members: list[Member] = []
    faults: list[Fault] = []
    for number, source in enumerate(mixture.mixture):
        name, configs = source.dataset, declared.get(source.dataset, [])
        config, message = configs[0] if configs else None, ""
        if len(configs) > 1:
            files = f"{configs[0].file} and {configs[1].file}"
            message = f"{name!r} is declared by both {files}; give one of them another `name:`"
        elif isinstance(config, MixtureConfig):
            message = f"{name!r} is itself a mixture; list its datasets instead: {', '.join(config.names)}"
        elif config is None and name in broken:
            faults += broken[name].faults
        elif config is None and stored_names is not None and name not in (stored := stored_names()):
            hint = did_you_mean(name, [*declared, *(other for other in stored if "@" not in other)])
            message = f"no YAML in this folder declares {name!r}, and the store does not hold it{hint}"
        if message:
            faults += mixture.fault(f"mixture.{number}.dataset", message).faults
        members.append(Member(source, config if isinstance(config, PipelineConfig) else None))
    if not faults and (misfit := next(_misfits(members), None)) is not None:
        faults += mixture.fault("mixture", misfit).faults
    if faults:
        raise ConfigError(faults)
    return members


def _misfits(members: Sequence[Member]) -> Iterator[str]:
    """Yield why datasets cannot share a batch, as far as their YAMLs show. Each is compared with the first."""
    known = [(member.name, member.config) for member in members if member.config is not None]
    for name, config in known:
        (first, other), tokenizer = known[0], config.tokenizer
        packing, other_packing = config.length.packing != "none", other.length.packing != "none"
        if config.dataset.streaming:
            yield f"{name} has dataset.streaming: true, but only built datasets can be mixed"
        if packing != other_packing:
            packed, unpacked = (name, first) if packing else (first, name)
            yield f"{packed} is packed, but {unpacked} is not; set length.packing in both or in neither"
        if packing and tokenizer.max_length != other.tokenizer.max_length:
            yield f"{first} is packed to {other.tokenizer.max_length} tokens and {name} to {tokenizer.max_length}"
        for setting in ("padding", "padding_side"):
            if (value := getattr(tokenizer, setting)) != (other_value := getattr(other.tokenizer, setting)):
                yield f"tokenizer.{setting} is {other_value} in {first} and {value} in {name}; set the same in both"
        if tokenizer.train and other.tokenizer.train and name != first:
            message = f"{first} and {name} each train their own tokenizer, but a mixture needs a single one"
            yield f"{message}; build {first}, then set tokenizer.name_or_path of {name} to its tokenizer"


@dataclass(frozen=True)
class DeclaredFolder:
    """What some YAMLs declare, by file: each has a config or faults; and the datasets of each mixture."""

    configs: dict[Path, Config] = field(default_factory=dict)
    faults: dict[Path, ConfigError] = field(default_factory=dict)
    members: dict[Path, list[Member]] = field(default_factory=dict)


def read_folder(folder: Path) -> DeclaredFolder:
    """Read all YAMLs of a folder, as `read_files` does."""
    return read_files(yaml_files(folder))


def read_files(paths: Iterable[Path]) -> DeclaredFolder:
    """Read YAMLs, each once. The second of two with the same name, also by Dagster's rules, is faulty; so are datasets
    that each come before the other in `dedup.against`, and a mixture whose datasets do not fit together."""
    read, made, taken = cache(read_config), DeclaredFolder(), dict[str, tuple[Path, str]]()
    for path in paths:
        try:
            if isinstance(config := read(path), ConfigError):
                raise config
            _claim_name(config, path, taken)
            made.configs[path] = config
        except ConfigError as error:
            made.faults[path] = error
    before = {config.dataset_name: _against(config) for config in made.configs.values()}
    for path, config in [*made.configs.items()]:
        if circle := _circle(config.dataset_name, before):
            listed = " and ".join(circle)
            message = f"each of {listed} would come before the others; remove it from the YAML of one of them"
            made.faults[path] = config.fault("dedup.against", message)
            del made.configs[path]
    for path, config in [*made.configs.items()]:
        if isinstance(config, MixtureConfig):
            try:
                made.members[path] = find_members(config, read=read)
            except ConfigError as error:
                made.faults[path] = error
                del made.configs[path]
    return made


def _circle(name: str, before: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the datasets that a dataset comes after and before at the same time, with itself, sorted; or none."""
    # everything that comes before the dataset, directly or through others
    reached, left = set[str](), [*before.get(name, ())]
    while left:
        other = left.pop()
        if other not in reached:
            reached.add(other)
            left += before.get(other, ())
    return sorted(reached.intersection(before)) if name in reached else []


def plain_name(dataset: str) -> str:
    """Return a dataset's name with only letters, digits and `_`, as Dagster has it in names of steps and jobs."""
    return re.sub(r"[^A-Za-z0-9_]", "_", dataset)


def _claim_name(config: Config, path: Path, taken: dict[str, tuple[Path, str]]) -> None:
    """Add a dataset's file and name to `taken`, under its plain name; raise ConfigError if another file has it."""
    name = config.dataset_name
    # the first file keeps the name; Dagster needs plain names to be unique too
    first, other = taken.setdefault(plain_name(name), (path, name))
    if first != path:
        same = "is already declared" if other == name else f"has the same name in Dagster as {other!r}, declared"
        raise config.fault("name", f"dataset {name!r} {same} in {first}; rename one of them with `name:`")


def _after_what_they_repeat(members: Sequence[Member]) -> list[Member]:
    """Return the datasets of a mixture so that each comes after those in its `dedup.against`; else in their order."""
    placed: list[Member] = []
    left = [*members]
    while left:
        names = {member.name for member in left}
        # a circle has no free member; `read_files` reports it, and here the order as written must do
        free = [member for member in left if not names.intersection(_against(member.config))] or left
        placed += free
        left = [member for member in left if member not in free]
    return placed


def _against(config: Config | None) -> tuple[str, ...]:
    return config.dedup.against if isinstance(config, PipelineConfig) and config.dedup else ()


TRAIN = "train"


def open_target(
    config: Config,
    store: ArtifactStore,
    engine: ComputeEngine | None = None,
    limit: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> BuildTarget:
    """Return what a config declares as a build target.

    Args:
        config: a dataset or a mixture.
        store: where the result goes.
        engine: computes chunks; default: what `compute` sets, for a mixture or else for each dataset.
        limit: build only the first `limit` rows of each split, published as `<name>@<limit>`.
        on_progress: called for every finished chunk.

    Raises:
        ConfigError: a mixture's datasets are unknown or do not fit together.
    """
    kind = MixtureTarget if isinstance(config, MixtureConfig) else DatasetTarget
    return kind(config, store, engine, limit, on_progress)  # pyright: ignore[reportArgumentType]  # kind follows config


class BuildTarget(ABC):
    """One dataset, or several and how they are mixed.

    Attributes:
        name: the name that the result is published under.
        builds: the datasets that are built, by name.
        stored: names of the datasets that are used as stored, because no YAML declares them.
        is_mixture: whether several datasets are mixed.
    """

    name: str
    store: ArtifactStore
    builds: dict[str, Build]
    stored: tuple[str, ...] = ()
    is_mixture: ClassVar[bool]

    def run_all(self, last: str = STAGES[-1]) -> Iterator[StageReport]:
        """Run every stage of every dataset up to `last`, yielding reports named by `label`."""
        for dataset, reports in self.run_each(last):
            for report in reports:
                yield replace(report, name=self.label(dataset, report.name))

    @abstractmethod
    def run_each(self, last: str = STAGES[-1]) -> Iterator[tuple[str, Iterator[StageReport]]]:
        """Yield each dataset with its stages' reports. Stages run as the reports are consumed, up to `last`.

        Raises:
            ConfigError: the tokenizer is wrong, or datasets of a mixture have different ones.
            DataValidationError: as in `Build.run`.
        """

    @abstractmethod
    def label(self, dataset: str, stage: str) -> str:
        """Return the name of a dataset's stage in reports of this target."""

    @abstractmethod
    def publish(self) -> tuple[Manifest, MixedDataset] | None:
        """Publish the built datasets as a mixture; a single dataset is published by its last stage.

        Returns:
            The mixture's manifest and its `train` split, or else the first split that all datasets have; None for a
            single dataset.

        Raises:
            ConfigError: the datasets do not fit together, or have no split in common.
            DatasetNotFoundError: one of them is not built.
        """

    @abstractmethod
    def splits(self) -> list[str]:
        """Return the splits of the result: of this target's build, else of the latest in the store."""

    @abstractmethod
    def open_split(self, split: str, verify: bool = True) -> TokenDataset | MixedDataset:
        """Open a split of the result that `splits` describes, as `open_dataset` or `open_mixture` does."""

    @abstractmethod
    def tokenizer_digest(self) -> str:
        """Return the digest of the tokenizer that the result was built with."""


class DatasetTarget(BuildTarget):
    """One dataset. See `open_target` for the arguments."""

    is_mixture = False

    def __init__(
        self,
        config: PipelineConfig,
        store: ArtifactStore,
        engine: ComputeEngine | None = None,
        limit: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ):
        self._build = Build(config, store, engine, limit, on_progress=on_progress)
        self.config, self.store, self.name = config, store, self._build.name
        self.builds = {config.dataset_name: self._build}

    def run_each(self, last: str = STAGES[-1]) -> Iterator[tuple[str, Iterator[StageReport]]]:
        for name, build in self.builds.items():
            yield name, build.run_all(last)

    def label(self, dataset: str, stage: str) -> str:
        return stage

    def publish(self) -> None:
        return None

    def splits(self) -> list[str]:
        return self.store.manifest_at(self._build.hold_sequences()).splits

    def open_split(self, split: str, verify: bool = True) -> TokenDataset:
        from tokenloom.loaders.datasets.token_dataset import open_split

        return open_split(self.store, self._build.hold_sequences(), split, verify)

    def tokenizer_digest(self) -> str:
        return self._build.manifest(TOKENIZERS).facts["digest"]


class MixtureTarget(BuildTarget):
    """A mixture. Does not build datasets that are only in the store. See `open_target` for the arguments.

    It mixes exactly what it built, and the other datasets in the versions that are the latest when it starts, whatever
    other processes publish in the meantime.

    Raises:
        ConfigError: as in `find_members`.
    """

    is_mixture = True

    def __init__(
        self,
        config: MixtureConfig,
        store: ArtifactStore,
        engine: ComputeEngine | None = None,
        limit: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ):
        self.config, self.store = config, store
        self.name = config.dataset_name if limit is None else f"{config.dataset_name}@{limit}"
        self._members = find_members(config, store.datasets)
        if engine is None and "compute" in config.model_fields_set:
            engine = open_engine(config.compute)
        self.builds = {}
        for member in _after_what_they_repeat(self._members):
            if member.config is not None:
                labelled = on_progress and _labelled(member.name, on_progress)
                self.builds[member.name] = Build(member.config, store, engine, limit, on_progress=labelled)
        self.stored = tuple(member.name for member in self._members if member.config is None)
        self._held: dict[str, tuple[str, ReadLock | None]] = {}
        self._published: Manifest | None = None

    def run_each(self, last: str = STAGES[-1]) -> Iterator[tuple[str, Iterator[StageReport]]]:
        # different tokenizers are refused before any work, as far as their files show
        builds: Sequence[Build] = [build for build in self.builds.values() if build.tokenizer.files]
        for build in builds[1:]:
            if build.tokenizer.files[TOKENIZER] != builds[0].tokenizer.files[TOKENIZER]:
                first, other = builds[0].config, build.config
                message = f"{first.dataset_name} has the tokenizer {first.tokenizer.name_or_path} and "
                message += f"{other.dataset_name} has {other.tokenizer.name_or_path}, but a mixture needs a single one"
                raise self.config.fault("mixture", message)
        if last == STAGES[-1]:
            for name in self.stored:
                self._hold_sequences(name)
        for name, build in self.builds.items():
            yield name, _with_dataset_in_errors(name, build.run_all(last))

    def label(self, dataset: str, stage: str) -> str:
        return f"{dataset}/{stage}"

    def publish(self) -> tuple[Manifest, MixedDataset]:
        from tokenloom.loaders.datasets.mixed_dataset import mixed_dataset

        datasets: list[dict[str, Any]] = []
        pinned = {}
        for member in self._members:
            name = self._published_name(member.name)
            pinned[name] = self._hold_sequences(member.name)
            content = self.store.manifest_at(pinned[name]).digest
            source = {"weight": member.source.number, "epochs": member.source.epochs}
            datasets.append({"dataset": name, "digest": content, **source})
        facts = {"by": self.config.by, "datasets": datasets}
        manifest = Manifest(self.name, MIXTURE, (), facts, notes={"manifests": pinned})
        common = self._common_splits(manifest)
        if not common:
            of_each = {name: self.store.manifest_at(digest).splits for name, digest in manifest.pinned.items()}
            listed = "; ".join(f"{name} has {', '.join(splits)}" for name, splits in of_each.items())
            raise self.config.fault("mixture", f"the datasets have no split in common: {listed}")
        try:
            mixed = mixed_dataset(self.store, manifest, TRAIN if TRAIN in common else common[0])
        except ValueError as error:
            raise self.config.fault("mixture", f"mixture: {error}") from None
        with self.store.building():
            self.store.put_manifest(manifest)
        self._published = manifest
        return manifest, mixed

    def splits(self) -> list[str]:
        return self._common_splits(self._latest())

    def open_split(self, split: str, verify: bool = True) -> MixedDataset:
        from tokenloom.loaders.datasets.mixed_dataset import mixed_dataset

        try:
            return mixed_dataset(self.store, self._latest(), split, verify)
        except ValueError as error:
            raise self.config.fault("mixture", f"mixture: {error}") from None

    def tokenizer_digest(self) -> str:
        pinned = self._latest().pinned
        return self.store.manifest_at(pinned[self._published_name(self.config.names[0])]).facts["tokenizer"]

    def _latest(self) -> Manifest:
        return self._published or self.store.manifest(self.name, MIXTURE)

    def _hold_sequences(self, dataset: str) -> str:
        if dataset in self.builds:
            return self.builds[dataset].hold_sequences()
        if dataset not in self._held:
            self._held[dataset] = self.store.hold_latest(dataset)
        return self._held[dataset][0]

    def _published_name(self, dataset: str) -> str:
        return self.builds[dataset].name if dataset in self.builds else dataset

    def _common_splits(self, manifest: Manifest) -> list[str]:
        first, *others = (self.store.manifest_at(digest).splits for digest in manifest.pinned.values())
        return [split for split in first if all(split in other for other in others)]


def _with_dataset_in_errors(name: str, reports: Iterator[StageReport]) -> Iterator[StageReport]:
    try:
        yield from reports
    except DataValidationError as error:
        raise DataValidationError(f"{name}/{error}") from None


def _labelled(dataset: str, on_progress: Callable[[Progress], None]) -> Callable[[Progress], None]:
    return lambda progress: on_progress(replace(progress, stage=f"{dataset}/{progress.stage}"))
