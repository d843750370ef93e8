"""The YAML of one dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tokenloom.config.declaration import Declaration
from tokenloom.config.faults import setting_fault
from tokenloom.config.schema import (
    ComputeConfig,
    DagsterConfig,
    DataLoaderConfig,
    DatasetConfig,
    LengthConfig,
    PromptTemplateConfig,
    Schedule,
    TokenizerConfig,
    ValidationConfig,
    first_duplicate,
)
from tokenloom.config.training import TrainingConfig
from tokenloom.config.yaml_file import Origin
from tokenloom.errors import ConfigError


class PipelineConfig(Declaration):
    """One dataset, as its YAML declares it."""

    dataset: DatasetConfig
    """Where the rows come from."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer, sequence length and padding."""
    prompt_template: PromptTemplateConfig = PromptTemplateConfig()
    """How a row becomes text, and which part of the text is trained."""
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
    """Cron line on which Dagster rebuilds the dataset, e.g. `0 3 * * *`."""
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

    def contradictions(self) -> Iterator[tuple[str, str]]:
        length, longest = self.length, self.tokenizer.max_length
        if length.stride and length.strategy not in (None, "split"):
            yield "length.stride", f"has no effect with strategy: {length.strategy}; set strategy: split"
        elif length.stride and length.packing == "concat":
            yield "length.stride", "has no effect with packing: concat; set packing: none or best_fit"
        elif length.stride >= longest:
            yield "length.stride", f"{length.stride} leaves no room for new tokens in max_length {longest}"
        if (duplicate := first_duplicate(length.give_up)) is not None:
            yield "length.give_up", f"{duplicate} is listed twice"
        if self.training is not None:
            yield from self.training.contradictions()
