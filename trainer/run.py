"""A run: from the config of a dataset or mixture to checkpoints and a trained model."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    TrainerCallback,
    set_seed,
)
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils.logging import disable_progress_bar

from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.sections import TrainingConfig, decisive_settings
from tokenloom.errors import ConfigError, TrainingStoppedError, did_you_mean, missing_package
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, open_dataset, open_mixture
from tokenloom.loaders.collation.context import ATTENTIONS
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store import ArtifactStore
from tokenloom.trainer.checkpoints import has_same_weights, last_checkpoint, partial_of, publish, writing
from tokenloom.trainer.endings import on_sigterm, only_run_in
from tokenloom.trainer.preference import PreferenceTrainer
from tokenloom.trainer.token_trainer import TokenTrainer


def build_model(config: TrainingConfig, dataset: TokenDataset | MixedDataset) -> PreTrainedModel:
    """Return the model of a config, in float32, with room for the dataset's vocabulary: an image-text model if the
    dataset has images, else a causal language model.

    Raises:
        ConfigError: `model` is missing or has an unknown setting, it or its attention does not take the dataset's rows,
            or it cannot be sharded.
        ModuleNotFoundError: `lora` is set and peft is not installed.
    """
    if config.model is None:
        raise ConfigError.at(
            "training.model", "training.model: missing; set a hub id, a folder, or {model_type: llama}"
        )
    if dataset.images and config.strategy == "fsdp":
        message = "training.strategy: models cannot be sharded for rows with images; set strategy: ddp"
        raise ConfigError.at("training.strategy", message)
    kind: Any = AutoModelForImageTextToText if dataset.images else AutoModelForCausalLM
    options: dict[str, Any] = {"dtype": torch.float32}
    if attention := _attention(config, dataset):
        options["attn_implementation"] = attention
    ranks = PartialState().num_processes if config.strategy == "fsdp" else 1
    model: Any
    try:
        sharded = options | {"distributed_config": DistributedConfig(fsdp_size=ranks)} if ranks > 1 else options
        if isinstance(config.model, str):
            settings = AutoConfig.from_pretrained(config.model)
            _check_images(settings, kind, dataset)
            fits = settings.get_text_config().vocab_size >= dataset.vocab_size
            model = kind.from_pretrained(config.model, **(sharded if fits else options))
            if not fits:
                model.resize_token_embeddings(dataset.vocab_size)
        else:
            settings = _new(config.model, dataset)
            _check_images(settings, kind, dataset)
            model = kind.from_config(settings, **options)
        # a new model is made whole; transformers shards only what it loads
        if ranks > 1 and not model.is_distributed_loading_by_transformers:
            weights = model.state_dict()
            model = type(model).from_pretrained(None, config=model.config, state_dict=weights, **sharded)
    except (TypeError, ValueError) as error:
        if "fsdp" not in str(error):  # only what transformers says of its plan, or of a version without one
            raise
        message = f"training.strategy: this model cannot be sharded: {error}; set strategy: ddp"
        raise ConfigError.at("training.strategy", message) from None
    return _with_adapters(model, config) if config.lora else model


def _attention(config: TrainingConfig, dataset: TokenDataset | MixedDataset) -> str | None:
    name = "flex_attention" if config.attention == "flex" else config.attention
    if name and dataset.trees and name not in ATTENTIONS:
        message = f"{name} does not take masks of trees (length.packing: tree); set flex, sdpa or eager"
    elif name == "flex_attention" and not torch.accelerator.is_available():
        message = "FlexAttention has no gradients on CPUs; set sdpa"
    else:
        return name
    raise ConfigError.at("training.attention", f"training.attention: {message}")


def _new(settings: dict[str, Any], dataset: TokenDataset | MixedDataset) -> Any:
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        hint = did_you_mean(str(kind), CONFIG_MAPPING) if kind else ", such as {model_type: llama}"
        raise ConfigError.at("training.model", f"training.model.model_type: not a model of transformers{hint}")
    ours: dict[str, Any] = {"vocab_size": dataset.vocab_size, "max_position_embeddings": dataset.max_length}
    tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    default = AutoConfig.for_model(kind)
    names = default.to_dict().keys() | default.attribute_map.keys() | {"model_type"}
    for name in settings:
        if name not in names:
            message = f"training.model.{name}: not a setting of {kind}{did_you_mean(name, names)}"
            raise ConfigError.at("training.model", message)
    # special tokens of the default config are those of another vocabulary
    if default.get_text_config() is default:
        return AutoConfig.for_model(**(tokens | ours | settings))
    given: dict[str, Any] = {"image_token_id": dataset.images.tokens.token_id} if dataset.images else {}
    text = tokens | ours | (settings.get("text_config") or {})
    return AutoConfig.for_model(**{**given, **settings, "text_config": text})


def _check_images(settings: Any, kind: Any, dataset: TokenDataset | MixedDataset) -> None:
    """Raise a ConfigError if a model with these settings does not take the dataset's images."""
    if dataset.images is None:
        return
    name, tokens = settings.model_type, dataset.images.tokens
    if type(settings) not in kind._model_mapping:
        message = f"training.model: {name} does not take images; set an image-text model, such as qwen2_vl"
        raise ConfigError.at("training.model", message)
    own = getattr(settings, "image_token_id", tokens.token_id)
    if own != tokens.token_id:
        message = (
            f"training.model: the image token of this {name} has id {own}, but {tokens.token_id} ({tokens.token}) in "
            "the dataset; set tokenizer.processor to the model's own processor, and build the dataset again"
        )
        raise ConfigError.at("training.model", message)


def _with_adapters(model: PreTrainedModel, config: TrainingConfig) -> Any:
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise missing_package(error.name or "peft", "training.lora") from None
    lora = config.lora
    assert lora is not None
    modules = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=modules, task_type="CAUSAL_LM"
        ),
    )


_say = partial(print, flush=True)

RECORD = "run.json"
_MISSING = "missing; it is required: training: {model: HUB_ID}"

LOSSES = {"sequence": TokenTrainer.losses, "pair": ("dpo",), "labelled sequence": ("kto",)}
"""Losses by the kind of a dataset's rows."""


def train(
    config: PipelineConfig | MixtureConfig,
    store: str | None = None,
    resume: bool = False,
    steps: int | None = None,
    report: Callable[[str], None] = _say,
    callbacks: Sequence[TrainerCallback] = (),
) -> TokenTrainer:
    """Train the model of a config's `training:` on its dataset or mixture, and return the trainer.

    A new run pins the latest version in the store; a resumed one opens that version, whatever was built since. The
    trained model is in `<output_dir>/model`. Under torchrun, called on every rank.

    Args:
        store: the store's address, as in `open_dataset`.
        resume: continue after the last checkpoint, if there is one.
        steps: replaces `training.steps`.
        report: is given lines of progress, on the first rank.
        callbacks: called at the hooks of transformers' `TrainerCallback`.

    Raises:
        ConfigError: the config has no `training:`, the folder has checkpoints of another run, another run trains in it,
            an epoch has no batch, or the run is resumed with a setting that cannot change.
        DatasetNotFoundError: the dataset is not built, or has no split `validation` to evaluate on.
        StoreError: the last checkpoint is damaged, or a checkpoint cannot be written.
        TrainingStoppedError: the process got SIGTERM; a checkpoint of the step is written.
    """
    training = config.training
    if training is None:
        raise config.fault("training", _MISSING)
    if isinstance(config, PipelineConfig) and config.dataset.streaming:
        raise config.fault("dataset.streaming", "streamed rows cannot be trained on; set it to false")
    if steps:
        training = training.model_copy(update={"steps": steps})
    disable_progress_bar()
    ranks, folder = PartialState(cpu=not torch.accelerator.is_available()), _folder(config)
    with only_run_in(folder) if ranks.is_main_process else nullcontext(), on_sigterm(_not_training):
        try:
            return _trained(config, training, folder, store, resume, report, callbacks)
        except KeyboardInterrupt:
            last = get_last_checkpoint(folder) or f"the beginning, since {folder} has no checkpoint yet"
            raise KeyboardInterrupt(f"interrupted; --resume continues after {last}") from None


def _not_training() -> None:
    raise TrainingStoppedError("stopped by SIGTERM between checkpoints; continue with --resume")


def _trained(
    config: PipelineConfig | MixtureConfig,
    training: TrainingConfig,
    folder: Path,
    store: str | None,
    resume: bool,
    report: Callable[[str], None],
    callbacks: Sequence[TrainerCallback],
) -> TokenTrainer:
    checkpoint, ranks = last_checkpoint(folder), PartialState()
    if checkpoint and not resume:
        message = f"{checkpoint} belongs to an earlier run; resume it (--resume), or set another training.output_dir"
        raise ConfigError.at("training.output_dir", message)
    if ranks.is_main_process:
        for partial in folder.glob(".*.partial"):  # of a run that was killed while it wrote
            shutil.rmtree(partial, ignore_errors=True)
        _record(config, folder, store, resume)
    ranks.wait_for_everyone()
    # all ranks open the version that the first one has pinned
    pin = json.loads((folder / RECORD).read_text(encoding="utf-8"))["pin"]
    set_seed(training.random_seed)
    dataset = _opened(config, "train", store, pin)
    validation = _opened(config, "validation", store, pin) if training.eval_steps else None
    kind = PreferenceTrainer if training.loss in PreferenceTrainer.losses else TokenTrainer
    evaluated = {validation.name: validation} if isinstance(validation, TokenDataset) else {}
    evaluated = validation.datasets if isinstance(validation, MixedDataset) else evaluated
    trainer = kind(
        build_model(training, dataset),
        training,
        _loader(config, training, dataset),
        {name: _loader(config, training, each) for name, each in evaluated.items()},
        folder,
        processing_class=AutoTokenizer.from_pretrained(dataset.tokenizer_path),
        callbacks=[*callbacks],
    )
    trainer.step_log.report = report
    trainer.args.eval_on_start = bool(training.eval_steps)
    model = folder / "model"
    if checkpoint:
        trainer.state = trainer.run_state.resume(checkpoint)
        if trainer.run_state.is_finished and has_same_weights(checkpoint, model):
            if ranks.is_main_process:
                report(f"the run is finished: step {trainer.state.global_step}, {model}")
            return trainer
    trainer.train(resume_from_checkpoint=checkpoint)
    with writing(model):
        partial = partial_of(model)
        trainer.save_model(str(partial))
        trainer.accelerator.wait_for_everyone()  # of a sharded model, each writes its part
        if trainer.is_world_process_zero():
            publish(partial, model)
    return trainer


@dataclass(frozen=True)
class ModelRun:
    """A finished run in a folder of its own.

    Args:
        folder: log, checkpoints and `model`.
        key: digest of the data and the settings that decide about the model.
        data: digest of the data.
    """

    folder: Path
    key: str
    data: str


def train_once(
    config: PipelineConfig | MixtureConfig, store: str | None = None, report: Callable[[str], None] = print
) -> ModelRun:
    """Train as `train` does, unless a model of the same data and settings exists.

    Each model has a folder of its own, `<output_dir>/<start of its key>`. A run that ended early goes on.

    Args:
        report: is given what is found, and lines of progress.

    Raises:
        ConfigError, DatasetNotFoundError, StoreError: as for `train`.
    """
    training = config.training
    if training is None:
        raise config.fault("training", _MISSING)
    splits = ("train", "validation") if training.eval_steps else ("train",)
    data = digest_json([_opened(config, split, store, None).digest for split in splits])
    model, files = training.model, list[tuple[str, int, int]]()
    if isinstance(model, str) and Path(model).is_dir():
        stats = [(path.name, path.stat()) for path in sorted(Path(model).iterdir()) if path.is_file()]
        files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    key = digest_json([data, decisive_settings(training, config.dataloader), files])
    folder = _folder(config) / key[:12]
    if (folder / "model").is_dir():
        report(f"the model of this data and these settings exists: {folder}")
        return ModelRun(folder, key, data)
    last = last_checkpoint(folder)
    report(f"training goes on after {last}" if last else f"training in {folder}")
    settings = training.model_copy(update={"output_dir": str(folder)})
    train(config.model_copy(update={"training": settings}), store, resume=True, report=report)
    return ModelRun(folder, key, data)


def _folder(config: PipelineConfig | MixtureConfig) -> Path:
    assert config.training is not None
    return Path(config.training.output_dir or f"runs/{config.dataset_name}")


def _record(config: PipelineConfig | MixtureConfig, folder: Path, store: str | None, resume: bool) -> None:
    """Write the name of the run's pin, unless the run exists and is resumed. Releases the pin that it replaces."""
    path, name = folder / RECORD, config.dataset_name
    if path.exists():
        if resume:
            return
        pins, old = ArtifactStore(store).pins, json.loads(path.read_text(encoding="utf-8"))["pin"]
        if pins.find(name, old) is not None:
            pins.remove(name, old)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{RECORD}.partial")
    partial.write_text(json.dumps({"dataset": name, "pin": f"train-{secrets.token_hex(6)}"}), encoding="utf-8")
    partial.replace(path)


def _opened(
    config: PipelineConfig | MixtureConfig, split: str, store: str | None, pin: str | None
) -> TokenDataset | MixedDataset:
    if isinstance(config, MixtureConfig):
        dataset = open_mixture(config.dataset_name, split, store, pin=pin)
        kinds = {each.kind for each in dataset.datasets.values()}
    else:
        dataset = open_dataset(config.dataset_name, split, store, pin=pin)
        kinds = {dataset.kind}
    assert config.training is not None
    loss, fitting = config.training.loss, LOSSES.get(min(kinds), ())
    if loss not in fitting:
        remedy = f"set {' or '.join(fitting)}" if fitting else "see docs/coming_from/trl.md"
        raise config.fault("training.loss", f"{loss} does not train on a {min(kinds)}; {remedy}")
    return dataset


def _loader(
    config: PipelineConfig | MixtureConfig, training: TrainingConfig, dataset: TokenDataset | MixedDataset
) -> TokenLoader:
    """Return the loader of a split. Rows are padded to the longest of a batch, unless the YAML sets another padding."""
    settings, padding, side = config.dataloader, "longest", "right"
    if isinstance(config, PipelineConfig):
        side = config.tokenizer.padding_side
        if "padding" in config.tokenizer.model_fields_set:
            padding = config.tokenizer.padding
    budget = training.token_budget or (None if training.batch_size else settings.token_budget)
    is_train = isinstance(dataset, MixedDataset) or dataset.split == "train"
    options: dict[str, Any] = {"shuffle": settings.shuffle if is_train else "none"}
    options["drop_last"] = settings.drop_last and is_train  # evaluations are over all rows
    names = ("seed", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
    options |= {name: getattr(settings, name) for name in names}
    if not settings.num_workers and "prefetch_factor" not in settings.model_fields_set:
        options["prefetch_factor"] = 2  # a background thread gathers batches while the model computes
    size = training.batch_size or settings.batch_size
    return TokenLoader(dataset, size, padding=padding, padding_side=side, token_budget=budget, **options)
