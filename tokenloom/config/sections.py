"""Sections beside the way from rows to sequences: what drops rows by content, `training:`, and what Dagster does.

Also the descriptions of the settings of all sections, for the JSON Schema and the documentation.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tokenloom.config.address import AddressText
from tokenloom.config.schema import Count, DatasetConfig, Names, Positive, Section, first_duplicate
from tokenloom.errors import ConfigError, did_you_mean

SHORTEST_ITEM = 3
"""Fewest words of an item of an evaluation that can be found in rows."""


class EvaluationConfig(Section):
    """An evaluation whose items the rows are compared with."""

    name: Annotated[AddressText, Field(min_length=1)]
    """A hub id, a file, a folder, a glob or a URL, as in `dataset.name`."""
    config: str | None = None
    """Config (subset) of a hub dataset."""
    revision: str | None = None
    """Hub revision: a branch, tag or commit."""
    split: str | None = None
    """Split to use. Default: all."""
    columns: Annotated[Names, Field(min_length=1)] | None = None
    """The text of an item: columns, paths such as `answers[0].text`, or texts with `{column}` placeholders, which are
    joined. Default: the prompt, or the whole text of rows without prompts."""

    @property
    def dataset(self) -> DatasetConfig:
        """Its source, as that of a dataset."""
        splits = None if self.split is None else (self.split,)
        return DatasetConfig(name=self.name, config=self.config, revision=self.revision, splits=splits)

    @property
    def label(self) -> str:
        """How settings, messages and records name it: the last part of its name, and what is chosen of it."""
        last = re.split(r"[/\\]", self.name.partition("?")[0].rstrip("/\\"))[-1]
        while (stem := re.sub(r"\.[A-Za-z]{1,7}$", "", last)) not in (last, ""):
            last = stem
        return "/".join(part for part in (last, self.config, self.split) if part)


class DecontaminateConfig(Section):
    """Removes the rows that contain items of evaluations, so that a model is not tested on what it was trained on."""

    against: Annotated[tuple[AddressText | EvaluationConfig, ...], Field(strict=False, min_length=1)]
    """The evaluations: hub ids, files, or `{name: data.csv, columns: [Question]}`."""
    ngram_size: Annotated[int, Field(ge=SHORTEST_ITEM, le=64)] = 8
    """Words of an n-gram. Items of fewer words are found if a whole line of a row, or a whole message, equals them;
    items of fewer than 3 words are not found."""
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Smallest share of an item's words that a row must contain, in n-grams. N-grams that 10 items of the same
    evaluation share, such as its instructions, do not count."""
    search: Literal["all", "prompt", "completion"] = "all"
    """What of a row is searched. In conversations, `completion` is what the assistant says, `prompt` all else; in
    templates, the trained columns and the others."""
    action: Literal["drop", "report"] = "drop"
    """`drop`: rows that contain an item are dropped, counted as filtered, and recorded. `report`: they stay, and are
    recorded."""
    ignore: Names = ()
    """Items that are no reason to drop a row, such as `gsm8k_test:602`: the name of the evaluation and the number of
    the item, as records show them."""

    @property
    def evaluations(self) -> tuple[EvaluationConfig, ...]:
        """The evaluations, each as a section."""
        return tuple(EvaluationConfig(name=each) if isinstance(each, str) else each for each in self.against)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield settings that name nothing, and why."""
        labels = tuple(each.label for each in self.evaluations)
        if (duplicate := first_duplicate(labels)) is not None:
            setting = f"decontaminate.against.{labels.index(duplicate)}"
            yield setting, f"two evaluations are called {duplicate}; rename the file of one, or name a config or split"
        for number, ignored in enumerate(self.ignore):
            label, _, item = ignored.rpartition(":")
            at = f"decontaminate.ignore.{number}"
            if not (item.isascii() and item.isdigit()):
                yield at, f"{ignored!r} is not an item; write the evaluation and the item's number, as {labels[0]}:1"
            elif label not in labels:
                yield at, f"no evaluation is called {label!r}: {', '.join(labels)}{did_you_mean(label, labels)}"


class NearConfig(Section):
    """When two rows count as nearly the same."""

    threshold: Annotated[float, Field(ge=0.5, le=1.0)] = 0.8
    """Least similarity: the n-grams of words that two rows share, divided by all that either has."""
    ngram_size: Annotated[int, Field(ge=1, le=64)] = 5
    """Words of an n-gram."""
    num_perm: Annotated[int, Field(ge=16, le=1024)] = 128
    """Number of permutations of MinHash, which finds the pairs of rows to compare. More of them find more of the pairs
    that are just as similar as the threshold, and take longer."""


class DedupConfig(Section):
    """Drops the rows that repeat an earlier one. A row that is dropped has an earlier one that is kept. Rows of other
    splits come before those of `train`, so that `train` has none of them."""

    exact: Literal["row", "prompt"] | None = "row"
    """What must be the same: all texts of a `row`, or its `prompt` alone. null: nothing."""
    near: NearConfig | None = NearConfig()
    """Also drop rows that are nearly the same. null: only those that are the same."""
    against: Names = ()
    """Other datasets of the same store, built with the same `dedup`. Their rows come before all of this dataset, which
    loses those that repeat them."""


def _number(value: Any) -> Any:
    """YAML 1.1 reads `5e-5`, which has no dot, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Number = Annotated[float, BeforeValidator(_number), Field(ge=0.0, allow_inf_nan=False)]
Rate = Annotated[float, BeforeValidator(_number), Field(gt=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(_number), Field(ge=0.0, lt=1.0)]


class LoraConfig(Section):
    """Low-rank adapters, trained instead of the model's own weights. Needs peft."""

    r: Positive = 16
    """Rank of the adapters."""
    alpha: Positive = 32
    """Scale of the adapters: their output is multiplied by `alpha / r`."""
    dropout: Fraction = 0.0
    """Dropout before the adapters."""
    target_modules: Literal["all-linear"] | Names = "all-linear"
    """Modules that get adapters: names such as `q_proj`, or all linear layers but the output layer."""


class TrainingConfig(Section):
    """How a model is trained. Immutable; unknown settings are refused with the nearest name.

    Raises:
        ConfigError: a setting is unknown.
    """

    model: str | dict[str, Any] | None = None
    """A hub id or a folder, whose weights are trained further; or the settings of a new model, such as
    `{model_type: llama, hidden_size: 64}`. Vocabulary and length default to the dataset's."""
    output_dir: str | None = None
    """Folder of the run: checkpoints, log and model. Default: `runs/` and the dataset's name."""
    batch_size: Positive | None = None
    """Rows per rank and batch. Default: `dataloader.batch_size`."""
    token_budget: Positive | None = None
    """Padded tokens per rank and batch; replaces `batch_size`. Default: `dataloader.token_budget`."""
    gradient_accumulation_steps: Positive = 1
    """Batches per optimizer step."""
    epochs: Rate = 1.0
    """Passes over the dataset."""
    steps: Positive | None = None
    """Optimizer steps; replaces `epochs`."""
    learning_rate: Rate = 5e-5
    """Learning rate after the warm-up."""
    optimizer: Literal["adamw", "adafactor", "muon", "lion", "sophia"] = "adamw"
    """The optimizer. `muon` trains matrices, and everything else with AdamW. `lion`, `muon` and `sophia` need
    pytorch-optimizer."""
    optimizer_args: dict[str, Any] = Field(default_factory=dict)
    """More arguments of the optimizer, such as `{betas: [0.9, 0.95]}`."""
    weight_decay: Number = 0.0
    """Weight decay; not applied to biases and norms."""
    max_grad_norm: Number = 1.0
    """Gradients are scaled down to this norm; 0: they are not."""
    scheduler: Literal["linear", "cosine", "wsd", "constant"] = "linear"
    """How the learning rate falls after the warm-up. `wsd`: constant, then a final decay."""
    warmup: Number = 0.0
    """Steps in which the learning rate rises from 0; below 1, a fraction of all steps."""
    decay: Number = 0.1
    """`wsd`: steps of the final decay; below 1, a fraction of all steps."""
    min_lr_ratio: Fraction = 0.0
    """`cosine` and `wsd`: the last learning rate, as a fraction of `learning_rate`."""
    loss: Literal["cross_entropy", "fused_linear_cross_entropy", "dpo", "kto"] = "cross_entropy"
    """The loss. `fused_linear_cross_entropy` has the same values and never holds the logits of a whole batch. `dpo`
    trains on preference pairs, `kto` on rated answers."""
    beta: Rate = 0.1
    """`dpo` and `kto`: how close the model stays to the one that it starts from."""
    z_loss: Number = 0.0
    """Weight of the squared log-partition function, which keeps logits small; 1e-4 is usual."""
    label_smoothing: Fraction = 0.0
    """Fraction of each target that is spread over the vocabulary. `dpo`: fraction of pairs taken to be swapped."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the model's computations. Weights and optimizer are in fp32."""
    attention: str | None = None
    """Attention of transformers, such as `sdpa`, `eager`, `flex` (FlexAttention) or `flash_attention_2`. Default: the
    model's. Rows of `length.packing: tree` need `flex`, `sdpa` or `eager`."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """What several ranks hold. `ddp`: each has the whole model. `fsdp`: weights, gradients and the optimizer's state
    are sharded over them (FSDP2)."""
    lora: LoraConfig | None = None
    """Train low-rank adapters. null: train all weights."""
    save_steps: Positive = 500
    """Steps between checkpoints. The last step is always saved."""
    save_total_limit: Positive | None = None
    """Checkpoints to keep. null: all."""
    eval_steps: Positive | None = None
    """Steps between evaluations on the split `validation`. null: no evaluation."""
    eval_samples: Count = 2
    """Rows of the split `validation` whose answers are generated at each evaluation."""
    early_stopping_patience: Positive | None = None
    """Stop after this many evaluations in a row without a lower loss. null: train to the end."""
    logging_steps: Positive = 10
    """Steps between progress lines. The log has a line for every step."""
    spike_threshold: Number = 6.0
    """A step is a loss spike if its loss is this many standard deviations above that of the steps before; the raw rows
    of its batches are written to `spikes.jsonl`. 0: no spikes are looked for."""
    peak_tflops: Rate | None = None
    """Peak of one device in 10^12 FLOPs per second, for the model FLOPs utilization. Default: known for NVIDIA's A100,
    H100, H200, L40S and B200."""
    report_to: Names = ()
    """Integrations of transformers that get metrics, such as `tensorboard` or `wandb`."""
    random_seed: Count = 42
    """Seed of new weights and of dropout. The order of rows has `dataloader.seed`."""

    def __new__(cls, **settings: Any) -> TrainingConfig:  # called without settings when a YAML is checked
        for name in settings:
            if name not in cls.model_fields:
                raise ConfigError.at(name, f"{name}: unknown setting{did_you_mean(name, cls.model_fields)}")
        return super().__new__(cls)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield settings that conflict with others or have no effect, and why."""
        given = self.model_fields_set
        if self.min_lr_ratio and self.scheduler not in ("cosine", "wsd"):
            yield "training.min_lr_ratio", f"has no effect with scheduler: {self.scheduler}; set cosine or wsd"
        if "decay" in given and self.scheduler != "wsd":
            yield "training.decay", f"has no effect with scheduler: {self.scheduler}; set scheduler: wsd"
        preference = self.loss in ("dpo", "kto")
        if "beta" in given and not preference:
            yield "training.beta", f"has no effect with loss: {self.loss}; set dpo or kto"
        if self.z_loss and preference:
            yield "training.z_loss", f"has no effect with loss: {self.loss}"
        if self.label_smoothing and self.loss == "kto":
            yield "training.label_smoothing", "has no effect with loss: kto"
        if self.strategy == "fsdp" and self.optimizer in ("adafactor", "sophia"):
            yield "training.optimizer", f"{self.optimizer} cannot be sharded; set adamw, lion or muon, or strategy: ddp"
        if self.strategy == "fsdp" and preference and not self.lora:
            yield "training.strategy", f"fsdp cannot shard the reference of {self.loss}; set lora, or strategy: ddp"
        if self.loss == "kto" and (self.batch_size == 1 or self.token_budget):
            yield ("training.loss", "kto compares rows of a batch; set a batch_size of at least 2")
        if self.early_stopping_patience and not self.eval_steps:
            yield "training.early_stopping_patience", "needs evaluations; set eval_steps"
        if "eval_samples" in given and not self.eval_steps:
            yield "training.eval_samples", "needs evaluations; set eval_steps"
        if self.steps and "epochs" in given:
            yield "training.epochs", "has no effect with steps; set one of them"
        if self.batch_size and self.token_budget:
            yield "training.batch_size", "has no effect with token_budget; set one of them"


WITHOUT_EFFECT = {
    *("output_dir", "save_steps", "save_total_limit", "logging_steps", "report_to"),
    *("eval_samples", "spike_threshold", "peak_tflops"),
}
"""Settings that do not change the weights."""

_ORDER = {"batch_size", "token_budget", "shuffle", "drop_last", "seed"}


def decisive_settings(training: TrainingConfig, dataloader: Section) -> dict[str, Any]:
    """Return the settings that decide, together with the data, what the weights of a model become."""
    trained = training.model_dump(mode="json", exclude=WITHOUT_EFFECT)
    return {"training": trained, "dataloader": dataloader.model_dump(mode="json", include=_ORDER)}


CronLine = Annotated[str, Field(min_length=1)]
"""A cron line. Dagster checks it when it creates the schedule."""


_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
_TAG_PART = "[A-Za-z0-9_.-]{1,63}"
_DURATION = re.compile(r"(\d{1,6})(m|h|d)")
_MINUTES = {"m": 1, "h": 60, "d": 24 * 60}

TagName = Annotated[str, Field(pattern=f"^({_TAG_PART}/)?{_TAG_PART}$")]
TagValue = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{0,63}$")]
Duration = Annotated[str, Field(pattern=f"^{_DURATION.pattern}$")]


class FreshnessConfig(Section):
    """How old the sequences may become. Times are such as `90m`, `24h` or `7d`."""

    fail: Duration
    """The asset fails if it was not materialized for this long."""
    warn: Duration | None = None
    """The asset warns if it was not materialized for this long."""

    @field_validator("fail", "warn")
    @classmethod
    def _not_at_once(cls, value: str | None) -> str | None:
        if value is not None and not minutes(value):
            raise ValueError(f"must be at least 1m, got {value!r}")
        return value

    @model_validator(mode="after")
    def _warns_first(self) -> FreshnessConfig:
        if self.warn is not None and minutes(self.warn) >= minutes(self.fail):
            raise ValueError(f"warn ({self.warn}) must be shorter than fail ({self.fail})")
        return self


class ScheduleConfig(Section):
    """When Dagster rebuilds the dataset or mixture. A text is the cron line, in UTC: `schedule: "0 3 * * *"`."""

    cron: CronLine
    """Cron line, e.g. `0 3 * * *`."""
    timezone: str = "UTC"
    """Time zone of the cron line, by its IANA name, e.g. `Europe/Berlin`."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        from zoneinfo import ZoneInfo, available_timezones

        try:
            if value != "UTC":  # needs no file of time zones
                ZoneInfo(value)
        except (KeyError, ValueError, OSError):
            similar = did_you_mean(value, available_timezones()) or "; write an IANA name such as Europe/Berlin"
            raise ValueError(f"{value[:60]!r} is not a known time zone{similar}") from None
        return value


def _of_cron_line(value: Any) -> Any:
    if value == "":
        raise ValueError("must have at least 1 character, got ''")
    return {"cron": value} if isinstance(value, str) else value


Schedule = Annotated[ScheduleConfig, BeforeValidator(_of_cron_line, json_schema_input_type=CronLine | ScheduleConfig)]
"""A cron line in UTC, or one with a time zone."""


class DagsterConfig(Section):
    """The assets in Dagster. Nothing here changes what is built."""

    owners: Names = ()
    """E-mail addresses, or teams as `team:name`."""
    tags: dict[TagName, TagValue] = {}  # noqa: RUF012  # pydantic copies it
    """Tags of the assets."""
    deps: Names = ()
    """Keys of the assets that write what `dataset.name` reads, such as `crawl/pages`. A run builds the dataset after
    them. Without any, the asset `<name>/source` observes the source."""
    group: Annotated[str, Field(pattern="^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*$")] | None = None
    """The group of the assets. Default: the dataset's name."""
    freshness: FreshnessConfig | None = None
    """How old the sequences, or the mixture, may become."""
    observe: CronLine = "*/10 * * * *"
    """Cron line, in UTC, on which Dagster looks whether the source changed, once its automation is switched on."""

    @field_validator("owners")
    @classmethod
    def _addresses_or_teams(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            if not _EMAIL.fullmatch(owner) and not re.fullmatch("team:.+", owner):
                raise ValueError(f"{owner!r} is neither an e-mail address, such as data@example.com, nor team:name")
        return value

    @field_validator("freshness", mode="before")
    @classmethod
    def _fail_only(cls, value: Any) -> Any:
        return {"fail": value} if isinstance(value, str) else value

    @field_validator("deps")
    @classmethod
    def _asset_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in value:
            if not all(key.split("/")):
                raise ValueError(f"{key!r} is not an asset key; write its parts with slashes, such as crawl/pages")
        return value


def minutes(duration: str) -> int:
    """Return the minutes of a duration such as `24h`."""
    found = _DURATION.fullmatch(duration)
    assert found is not None
    return int(found[1]) * _MINUTES[found[2]]


def describe_settings() -> None:
    """Give each field of each section its description: the docstring below it, read from the source code.

    Nothing else pays for reading the source.
    """
    _describe(Section)


def _describe(section: type[Section]) -> None:
    documented: dict[str, str] = {}
    for base in reversed(section.__mro__):
        documented |= _docstrings(base.__module__).get(base.__name__, {})
    for name, field in section.model_fields.items():
        field.description = documented.get(name)
    section.model_rebuild(force=True)
    for inner in section.__subclasses__():  # in the order of definition: a section comes after those in it
        _describe(inner)


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstring of each field of each class of a module."""
    if not module.startswith("tokenloom."):
        return {}
    statements = ast.parse(inspect.getsource(sys.modules[module])).body
    return {
        found.name: {
            field.target.id: inspect.cleandoc(text.value.value)
            for field, text in zip(found.body, found.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        }
        for found in statements
        if isinstance(found, ast.ClassDef)
    }
