"""Builds the datasets of a mixture, one after the other, and describes the mixture for the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from tokenloom.assets.building.build import STAGES, Build, Progress, StageReport
from tokenloom.assets.building.mixture_members import find_members
from tokenloom.config import MixtureConfig
from tokenloom.errors import DataValidationError
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import MIXTURE
from tokenloom.resources.tokenizers import TOKENIZER

T = TypeVar("T")

TRAIN = "train"


class MixtureBuild:
    """A mixture being built. What only the store holds is taken as it is.

    Args:
        config: what to mix.
        store: where the datasets go.
        engine: what computes chunks; default: as `compute` says, of the mixture or else of each dataset.
        limit: only the first `limit` rows of each split; published as `<name>@<limit>`.
        on_progress: told of every finished chunk.

    Raises:
        ConfigError: as `find_members` says.
    """

    def __init__(
        self,
        config: MixtureConfig,
        store: ArtifactStore,
        engine: ComputeEngine | None = None,
        limit: int | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ):
        self.config, self.store = config, store
        self.name = config.dataset_name if limit is None else f"{config.dataset_name}@{limit}"
        self.members = find_members(config, store.datasets)
        if engine is None and "compute" in config.model_fields_set:
            engine = ComputeEngine(config.compute.workers)
        self.builds: dict[str, Build] = {}
        for member in self.members:
            if member.config is not None:
                told = _telling(member.name, on_progress)
                self.builds[member.name] = Build(member.config, store, engine, limit, on_progress=told)

    def run_all(self, last: str = STAGES[-1]) -> Iterator[StageReport]:
        """Run every stage of every dataset up to `last`; reports are named `<dataset>/<stage>`."""
        for name, reports in self.run_each(last):
            for report in reports:
                yield replace(report, name=f"{name}/{report.name}")

    def run_each(self, last: str = STAGES[-1]) -> Iterator[tuple[str, Iterator[StageReport]]]:
        """The datasets, each with the reports of its stages up to `last`, which run as they are asked for.

        Raises:
            ConfigError: a wrong tokenizer, or two.
            DataValidationError: as in `Build.run`, of the dataset that it names.
        """
        self._check_tokenizers()
        for name, build in self.builds.items():
            yield name, _of_dataset(name, build.run_all(last))

    def publish(self, open_split: Callable[[ArtifactStore, Manifest, str], T]) -> tuple[Manifest, T]:
        """Make what the store holds of the datasets now the latest state of the mixture.

        Args:
            open_split: opens a split of the manifest of a mixture, and refuses datasets that do not fit together.

        Returns:
            The manifest; and its split `train`, or else the first that all datasets have.

        Raises:
            ConfigError: the datasets do not fit together, or share no split.
            DatasetNotFoundError: one of them is not built.
        """
        manifest = self._manifest()
        splits = {name: self.store.manifest_at(digest).splits for name, digest in manifest.pinned.items()}
        first, *others = splits.values()
        common = [split for split in first if all(split in other for other in others)]
        if not common:
            told = "; ".join(f"{name} has {', '.join(own)}" for name, own in splits.items())
            raise self.config.fault("mixture", f"mixture: the datasets have no split in common: {told}")
        try:
            opened = open_split(self.store, manifest, TRAIN if TRAIN in common else common[0])
        except ValueError as error:
            raise self.config.fault("mixture", f"mixture: {error}") from None
        self.store.prepare()
        self.store.put_manifest(manifest)
        return manifest, opened

    def _manifest(self) -> Manifest:
        """The mixture; the content of each dataset is part of its digest."""
        told, pinned = [], {}
        for member in self.members:
            name = self.builds[member.name].name if member.name in self.builds else member.name
            pinned[name] = self.store.manifest_digest(name)
            content = self.store.manifest_at(pinned[name]).digest
            source = {"weight": member.source.weight, "epochs": member.source.epochs}
            told.append({"dataset": name, "digest": content, **source})
        facts = {"by": self.config.by, "datasets": told}
        return Manifest(self.name, MIXTURE, (), facts, notes={"manifests": pinned})

    def _check_tokenizers(self) -> None:
        """Refuse tokenizers that differ before any work, as far as files tell."""
        named = [build for build in self.builds.values() if build.tokenizer.files]
        for build in named[1:]:
            if build.tokenizer.files[TOKENIZER] != named[0].tokenizer.files[TOKENIZER]:
                first, other = (one.config for one in (named[0], build))
                told = f"{first.dataset_name} has the tokenizer {first.tokenizer.name_or_path} and "
                told += f"{other.dataset_name} has {other.tokenizer.name_or_path}, and a mixture has one"
                raise self.config.fault("mixture", f"mixture: {told}")


def _of_dataset(name: str, reports: Iterator[StageReport]) -> Iterator[StageReport]:
    try:
        yield from reports
    except DataValidationError as error:
        raise DataValidationError(f"{name}/{error}") from None


def _telling(name: str, told: Callable[[Progress], None]) -> Callable[[Progress], None]:
    return lambda progress: told(replace(progress, stage=f"{name}/{progress.stage}"))
