"""What a YAML declares: one dataset, or a mixture of datasets; and how it is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError

from tokenloom.config.schema import (
    DATASET_NAME,
    ComputeConfig,
    DataLoaderConfig,
    DatasetConfig,
    LengthConfig,
    MediaConfig,
    MixtureSource,
    PromptTemplateConfig,
    Section,
    TokenizerConfig,
    ValidationConfig,
    first_duplicate,
)
from tokenloom.config.sections import DagsterConfig, DecontaminateConfig, DedupConfig, Schedule, TrainingConfig
from tokenloom.config.yaml_file import Origin, parse_yaml, read_yaml, setting_fault, validation_faults
from tokenloom.errors import ConfigError


def _version_text(value: Any) -> Any:
    return "1.0" if isinstance(value, float) and value == 1.0 else value


class Declaration(Section):
    """The settings of every YAML."""

    type: Literal["data_module"] = "data_module"
    """The only supported type."""
    version: Annotated[Literal["1.0"], BeforeValidator(_version_text)] = "1.0"
    """The only supported version."""
    name: Annotated[str, Field(pattern=f"^{DATASET_NAME}$")] | None = None
    """Name in the store, in asset keys and in `open_dataset`. Default: the file's stem."""

    misplaced: ClassVar[Mapping[str, str]] = {}
    """Settings of another kind of YAML, with the error message for each."""

    _origin: Origin | None = PrivateAttr(default=None)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a YAML file.

        Raises:
            ConfigError: one fault per wrong setting, with its line and the most similar valid name.
        """
        return cls.checked(*read_yaml(Path(path)))

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> Self:
        """Check the same settings given in Python. Faults name them by their dotted path.

        Raises:
            ConfigError: one fault per wrong setting.
        """
        return cls.checked(settings)

    @classmethod
    def checked(cls, settings: Mapping[str, Any], origin: Origin | None = None) -> Self:
        """Return the config of some settings.

        Args:
            origin: the file that they were read from.

        Raises:
            ConfigError: one fault per wrong setting, in file order.
        """
        cls.refuse_other_kind(settings, origin)
        try:
            config = cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(validation_faults(error, origin, cls, cls.misplaced)) from None
        config._origin = origin
        if not re.fullmatch(DATASET_NAME, config.dataset_name):
            message = f"{config.dataset_name!r} is not a valid dataset name; set `name:` to letters, digits, _, . and -"
            raise config.fault("name", f"name: {message}")
        faults = [setting_fault(origin, name, message) for name, message in config.contradictions()]
        if faults:
            raise ConfigError(faults)
        return config

    @classmethod
    def refuse_other_kind(cls, settings: Mapping[str, Any], origin: Origin | None) -> None:
        """
        Raises:
            ConfigError: the settings declare something else.
        """

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield settings that conflict with others or have no effect, and why."""
        yield from ()

    @property
    def dataset_name(self) -> str:
        """The name in the store, in asset keys and in `open_dataset`."""
        return self.name or (self._origin.path.stem if self._origin else "dataset")

    @property
    def folder(self) -> str | None:
        """The folder of the YAML file, for relative paths; None if the config did not come from a file."""
        return str(self._origin.path.parent) if self._origin else None

    @property
    def file(self) -> str | None:
        """The YAML file, or None."""
        return str(self._origin.path) if self._origin else None

    def line(self, setting: str) -> int:
        """Return the line of a setting, or of the nearest section in the file, counted from 1."""
        return self._origin.line(tuple(setting.split("."))) if self._origin else 1

    def fault(self, setting: str, message: str, offset: int | None = None) -> ConfigError:
        """Return a `ConfigError` about a setting, with its line in the file.

        Args:
            setting: dotted name; the message is prefixed with it unless it already starts with it.
            message: what is wrong, and what to do about it.
            offset: line inside a block of text, counted from 0.
        """
        return ConfigError([setting_fault(self._origin, setting, message, offset)])


class PipelineConfig(Declaration):
    """One dataset, as its YAML declares it."""

    dataset: DatasetConfig
    """Where the rows come from."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer, sequence length and padding."""
    prompt_template: PromptTemplateConfig = PromptTemplateConfig()
    """How a row becomes text, and which part of the text is trained."""
    decontaminate: DecontaminateConfig | None = None
    """Which rows are dropped because they contain items of evaluations. null: none."""
    dedup: DedupConfig | None = None
    """Which rows are dropped because they repeat others. null: none."""
    length: LengthConfig = LengthConfig()
    """What happens to rows that are too long, and packing."""
    validation: ValidationConfig = ValidationConfig()
    """When bad data fails a run, or is worth a warning."""
    dataloader: DataLoaderConfig = DataLoaderConfig()
    """How training code gets its batches."""
    mixture: None = None
    """null: this YAML declares one dataset. A list declares a mixture of other datasets instead."""
    compute: ComputeConfig = ComputeConfig()
    """How the stages run."""
    schedule: Schedule | None = None
    """When Dagster rebuilds the dataset: a cron line in UTC, e.g. `0 3 * * *`, or `{cron: …, timezone: …}`."""
    dagster: DagsterConfig = DagsterConfig()
    """Owners, tags, group and freshness of the assets in Dagster, and what they depend on."""
    keep: Literal["all", "sequences"] = "all"
    """`all`: `tokenloom gc` keeps the outputs of all stages. `sequences`: it can drop those of the stages before
    sequences."""
    training: TrainingConfig | None = None
    """How a model is trained on the dataset, by `tokenloom train`."""

    @classmethod
    def refuse_other_kind(cls, settings: Mapping[str, Any], origin: Origin | None) -> None:
        mixture = settings.get("mixture")
        if mixture is None:
            return
        name = settings.get("name") or (origin.path.stem if origin else "this config")
        sources = mixture if isinstance(mixture, list | tuple) else []
        names = [str(source["dataset"]) for source in sources if isinstance(source, Mapping) and "dataset" in source]
        message = f"{name} is a mixture, not a dataset; use one of its datasets or their YAMLs: {', '.join(names)}"
        raise ConfigError([setting_fault(origin, "mixture", f"mixture: {message}")])

    @property
    def fingerprints(self) -> DedupConfig | None:
        """What the stage `fingerprints` is for."""
        return self.dedup

    @property
    def media(self) -> MediaConfig | None:
        """Where the images of rows are; None if rows have none."""
        return self.dataset.media if self.tokenizer.processor is not None else None

    def _about_images(self) -> Iterator[tuple[str, str]]:
        if self.media is None:
            reason = "has no effect without tokenizer.processor; set it, or omit this"
            if "media" in self.dataset.model_fields_set:
                yield "dataset.media", reason
            if self.length.media_budget is not None:
                yield "length.media_budget", reason
            return
        if self.length.strategy == "split":
            yield "length.strategy", "split would cut through images; use smart, drop_turns or drop"
        if self.length.packing == "concat":
            yield "length.packing", "concat would cut through images; use best_fit or none"
        if self.length.packing == "tree":
            yield "length.packing", "tree cannot hold images; use best_fit or none"
        if self.length.document_multiple:
            yield "length.document_multiple", "rows with images cannot be padded to a multiple of tokens; omit it"
        if self.prompt_template.few_shot.count:
            yield "prompt_template.few_shot", "rows with images cannot have examples; set count: 0"
        if self.dataset.streaming:
            yield "dataset.streaming", "rows with images need a build; set it to false"

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from self._about_images()
        length, longest = self.length, self.tokenizer.max_length
        if length.stride and length.strategy not in (None, "split"):
            yield "length.stride", f"has no effect with strategy: {length.strategy}; set strategy: split"
        elif length.stride and length.packing == "concat":
            yield "length.stride", "has no effect with packing: concat; set packing: none or best_fit"
        elif length.stride >= longest:
            yield "length.stride", f"{length.stride} leaves no room for new tokens in max_length {longest}"
        if length.document_multiple:
            yield from length.about_multiple(longest, self.tokenizer.padding)
        if both := {*self.dataset.token_columns}.intersection(self.dataset.keep_columns):
            yield "dataset.token_columns", f"{min(both)} is also in keep_columns; list it in one of them"
        if (duplicate := first_duplicate(length.give_up)) is not None:
            yield "length.give_up", f"{duplicate} is listed twice"
        if self.decontaminate is not None:
            yield from self.decontaminate.contradictions()
        if self.dedup is not None:
            if self.dedup.exact is None and self.dedup.near is None:
                yield "dedup", "has no effect: exact and near are null; omit it"
            if self.dataset_name in self.dedup.against:
                yield "dedup.against", f"{self.dataset_name} is this dataset; its own rows are compared anyway"
            if (duplicate := first_duplicate(self.dedup.against)) is not None:
                yield "dedup.against", f"{duplicate} is listed twice"
        for section in ("decontaminate", "dedup"):
            if getattr(self, section) is not None and self.dataset.streaming:
                yield section, "needs a build, but dataset.streaming reads rows on the fly; set it to false"
        if length.packing == "tree" and self.dataset.streaming:
            yield "length.packing", "tree needs a build, but dataset.streaming reads rows on the fly; set best_fit"
        if self.training is not None:
            yield from self.training.contradictions()


class MixtureConfig(Declaration):
    """Several datasets mixed by weight, as a YAML declares them."""

    mixture: Annotated[tuple[MixtureSource, ...], Field(strict=False)]
    """The datasets to mix."""
    dataloader: DataLoaderConfig = DataLoaderConfig()
    """How training code gets its batches."""
    compute: ComputeConfig = ComputeConfig()
    """How the stages of the datasets run. Default: what each dataset's own YAML sets."""
    schedule: Schedule | None = None
    """When Dagster rebuilds the datasets and the mixture: a cron line in UTC, e.g. `0 3 * * *`, or
    `{cron: …, timezone: …}`."""
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
    def by(self) -> Literal["rows", "tokens", "size"]:
        """The unit of all weights."""
        if any(source.weight == "size" for source in self.mixture):
            return "size"
        declared: list[Literal["rows", "tokens"]] = [
            source.by for source in self.mixture if "by" in source.model_fields_set
        ]
        return declared[0] if declared else "tokens"

    @property
    def unweighted(self) -> str:
        """A sentence about the shares of a mixture without any weight; "" for others."""
        if len(self.mixture) < 2 or any("weight" in source.model_fields_set for source in self.mixture):
            return ""
        shares = f"without weights, each dataset has the same share of the {self.by}, however large it is"
        return f"{shares}; weight: size takes each row of all datasets once per epoch"

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
            if self.by == "size" and source.weight != "size":
                yield (
                    f"{at}.weight",
                    f"{source.weight:g} does not go with size in another entry; write size in all or in none",
                )
            elif self.by == "size" and "by" in source.model_fields_set:
                yield f"{at}.by", "has no effect with weight: size; omit it"
            elif "by" in source.model_fields_set and source.by != self.by:
                yield f"{at}.by", f"{source.by!r} differs from {self.by!r} in another entry; all weights use one unit"
        if self.training is not None:
            yield from self.training.contradictions()


Config = PipelineConfig | MixtureConfig


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and check one YAML file.

    Raises:
        ConfigError: one fault per wrong setting, in file order.
    """
    return check_config(*read_yaml(Path(path)))


def parse_config(text: str, path: Path) -> Config:
    """Check the text of one YAML file.

    Args:
        path: the file, for error messages and the default name of the dataset.

    Raises:
        ConfigError: one fault per wrong setting, in file order.
    """
    return check_config(*parse_yaml(text, path))


def check_config(settings: Mapping[str, Any], origin: Origin | None = None) -> Config:
    """Check settings.

    Args:
        origin: the file that they were read from.

    Raises:
        ConfigError: one fault per wrong setting, in file order.
    """
    kind: type[Config] = PipelineConfig if settings.get("mixture") is None else MixtureConfig
    return kind.checked(settings, origin)
