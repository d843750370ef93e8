"""The YAML of a mixture of datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tokenloom.config.dataset import PipelineConfig
from tokenloom.config.declaration import Declaration
from tokenloom.config.faults import setting_fault
from tokenloom.config.schema import ComputeConfig, DagsterConfig, DataLoaderConfig, MixtureSource, Schedule
from tokenloom.config.training import TrainingConfig
from tokenloom.config.yaml_file import Origin
from tokenloom.errors import ConfigError


class MixtureConfig(Declaration):
    """Several datasets mixed by weight, as a YAML declares them."""

    mixture: Annotated[tuple[MixtureSource, ...], Field(strict=False)]
    """The datasets to mix."""
    dataloader: DataLoaderConfig = DataLoaderConfig()
    """How training code gets its batches."""
    compute: ComputeConfig = ComputeConfig()
    """How the stages of the datasets run. Default: what each dataset's own YAML sets."""
    schedule: Schedule | None = None
    """Cron line on which Dagster rebuilds the datasets and the mixture, e.g. `0 3 * * *`."""
    dagster: DagsterConfig = DagsterConfig()
    """Owners, tags, group and freshness of the assets in Dagster, and what they depend on."""
    training: TrainingConfig | None = None
    """How a model is trained on the mixture, by `tokenloom train`."""

    misplaced: ClassVar[Mapping[str, str]] = dict.fromkeys(
        PipelineConfig.model_fields, "not a setting of a mixture; set it in the YAMLs of the datasets that it mixes"
    )

    @classmethod
    def refuse_other_kind(cls, settings: Mapping[str, Any], origin: Origin | None) -> None:
        if settings.get("mixture") is None:
            raise ConfigError([setting_fault(origin, "mixture", "missing; it is required")])

    @property
    def by(self) -> Literal["rows", "tokens"]:
        """The unit of all weights."""
        declared: list[Literal["rows", "tokens"]] = [
            source.by for source in self.mixture if "by" in source.model_fields_set
        ]
        return declared[0] if declared else "tokens"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the datasets, in order."""
        return tuple(source.dataset for source in self.mixture)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if not self.mixture:
            yield "mixture", "the list is empty; write [{dataset: a, weight: 0.7}, {dataset: b, weight: 0.3}]"
        if self.dagster.deps:
            yield "dagster.deps", "a mixture depends on its datasets alone; set it in the YAMLs of the datasets"
        for number, source in enumerate(self.mixture):
            at = f"mixture.{number}"
            if source.dataset in self.names[:number]:
                yield f"{at}.dataset", f"{source.dataset!r} is listed twice; list it once, with the sum of the weights"
            if source.dataset == self.dataset_name:
                yield f"{at}.dataset", f"{source.dataset!r} is the mixture itself"
            if "by" in source.model_fields_set and source.by != self.by:
                yield f"{at}.by", f"{source.by!r} differs from {self.by!r} in another entry; all weights use one unit"
        if self.training is not None:
            yield from self.training.contradictions()
