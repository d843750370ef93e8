"""The schema of a YAML that mixes datasets, instead of declaring one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from tokenloom.config.cron import Cron
from tokenloom.config.dataset import DATASET_NAME, ComputeConfig, DataLoaderConfig, Declaration, Section


class MixtureSource(Section):
    """One dataset of a mixture."""

    dataset: Annotated[str, Field(pattern=f"^{DATASET_NAME}$")]
    """Its name: that of a YAML beside this one, or of a dataset that the store holds."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Share, relative to the other weights."""
    by: Literal["rows", "tokens"] = "tokens"
    """What weights count: the same for all, so that one entry may say it for the others."""
    epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """At most so many passes; null: no limit."""


class MixtureConfig(Declaration):
    """Several datasets that take turns, as a YAML mixes them."""

    mixture: Annotated[tuple[MixtureSource, ...], Field(strict=False)]
    """The datasets to mix."""
    dataloader: DataLoaderConfig = DataLoaderConfig()
    """How training code gets its batches."""
    compute: ComputeConfig = ComputeConfig()
    """What runs the stages of the datasets; default: as each one's own YAML says."""
    schedule: Cron | None = None
    """Cron line on which Dagster rebuilds the datasets and the mixture, e.g. `0 3 * * *`."""
    training: dict[str, Any] | None = None
    """The trainer's settings, handed on unread."""

    @property
    def by(self) -> Literal["rows", "tokens"]:
        """What all weights count."""
        said: list[Literal["rows", "tokens"]] = [one.by for one in self.mixture if "by" in one.model_fields_set]
        return said[0] if said else "tokens"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the datasets, in order."""
        return tuple(source.dataset for source in self.mixture)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Settings that do not go with others, and why."""
        if not self.mixture:
            yield "mixture", "it names no dataset; write [{dataset: a, weight: 0.7}, {dataset: b, weight: 0.3}]"
        for number, source in enumerate(self.mixture):
            at = f"mixture.{number}"
            if source.dataset in self.names[:number]:
                yield f"{at}.dataset", f"{source.dataset!r} is named twice; name it once, with the weights' sum"
            if source.dataset == self.dataset_name:
                yield f"{at}.dataset", f"{source.dataset!r} is the mixture itself"
            if "by" in source.model_fields_set and source.by != self.by:
                yield f"{at}.by", f"{source.by!r}, but another entry says {self.by!r}: all weights count the same"

    @property
    def _otherwise(self) -> str:
        named = ", ".join(self.names)
        return f"{self.dataset_name} mixes datasets, where one is wanted: name one of them, or its YAML: {named}"
