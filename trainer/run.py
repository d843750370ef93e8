"""A run: from the config of a dataset or mixture to checkpoints and a trained model."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import AutoTokenizer, TrainerCallback, TrainerState, set_seed
from transformers.utils.logging import disable_progress_bar

from tokenloom.config import MixtureConfig, PipelineConfig, TrainingConfig
from tokenloom.config.training import decisive_settings
from tokenloom.errors import ConfigError
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, open_dataset, open_mixture
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store import ArtifactStore
from tokenloom.trainer.checkpoints import last_checkpoint
from tokenloom.trainer.model import build_model
from tokenloom.trainer.preference import PreferenceTrainer
from tokenloom.trainer.state_files import partial_of, publish
from tokenloom.trainer.token_trainer import TokenTrainer

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
        ConfigError: the config has no `training:`, or the folder has checkpoints of another run.
        DatasetNotFoundError: the dataset is not built, or has no split `validation` to evaluate on.
        StoreError: the last checkpoint is damaged.
    """
    training = config.training
    if training is None:
        raise config.fault("training", _MISSING)
    if isinstance(config, PipelineConfig) and config.dataset.streaming:
        raise config.fault("dataset.streaming", "streamed rows cannot be trained on; set it to false")
    if steps:
        training = training.model_copy(update={"steps": steps})
    disable_progress_bar()
    ranks = PartialState(cpu=not torch.accelerator.is_available())
    folder = _folder(config)
    checkpoint = last_checkpoint(folder)
    if checkpoint and not resume:
        message = f"{checkpoint} belongs to an earlier run; resume it (--resume), or set another training.output_dir"
        raise ConfigError.at("training.output_dir", message)
    if ranks.is_main_process:
        _record(config, folder, store, resume)
    ranks.wait_for_everyone()
    pin = json.loads((folder / RECORD).read_text(encoding="utf-8"))["pin"]
    set_seed(training.random_seed)
    dataset = _opened(config, "train", store, pin)
    validation = _opened(config, "validation", store, pin) if training.eval_steps else None
    kind = PreferenceTrainer if training.loss in PreferenceTrainer.losses else TokenTrainer
    trainer = kind(
        build_model(training, dataset),
        training,
        _loader(config, training, dataset),
        {name: _loader(config, training, each) for name, each in _by_name(validation).items()},
        folder,
        processing_class=AutoTokenizer.from_pretrained(dataset.tokenizer_path),
        callbacks=[*callbacks],
    )
    trainer.step_log.report = report
    trainer.args.eval_on_start = bool(training.eval_steps) and checkpoint is None
    if checkpoint is None or _step(checkpoint) < trainer.args.max_steps:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        _save_model(trainer, folder / "model")
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
    key = digest_json([data, decisive_settings(training, config.dataloader), _files_of(training.model)])
    folder = _folder(config) / key[:12]
    if (folder / "model").is_dir():
        report(f"the model of this data and these settings exists: {folder}")
        return ModelRun(folder, key, data)
    found = last_checkpoint(folder)
    report(f"training goes on after {found}" if found else f"training in {folder}")
    settings = training.model_copy(update={"output_dir": str(folder)})
    train(config.model_copy(update={"training": settings}), store, resume=True, report=report)
    return ModelRun(folder, key, data)


def _folder(config: PipelineConfig | MixtureConfig) -> Path:
    assert config.training is not None
    return Path(config.training.output_dir or f"runs/{config.dataset_name}")


def _files_of(model: object) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files of a model in a folder."""
    if not isinstance(model, str) or not Path(model).is_dir():
        return []
    files = sorted(path for path in Path(model).iterdir() if path.is_file())
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


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
        remedy = f"set {' or '.join(fitting)}" if fitting else "see docs/train/trl.md"
        raise config.fault("training.loss", f"{loss} does not train on a {min(kinds)}; {remedy}")
    return dataset


def _by_name(dataset: TokenDataset | MixedDataset | None) -> dict[str, TokenDataset]:
    if dataset is None:
        return {}
    return dataset.datasets if isinstance(dataset, MixedDataset) else {dataset.name: dataset}


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
    options: dict[str, Any] = {"shuffle": settings.shuffle if is_train else "none", "drop_last": settings.drop_last}
    names = ("seed", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
    options |= {name: getattr(settings, name) for name in names}
    if not settings.num_workers and "prefetch_factor" not in settings.model_fields_set:
        options["prefetch_factor"] = 2  # a background thread gathers batches while the model computes
    size = training.batch_size or settings.batch_size
    return TokenLoader(dataset, size, padding=padding, padding_side=side, token_budget=budget, **options)


def _step(checkpoint: Path) -> int:
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).global_step


def _save_model(trainer: TokenTrainer, path: Path) -> None:
    """Write model and tokenizer, for `from_pretrained`."""
    partial = partial_of(path)
    trainer.save_model(str(partial))
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        publish(partial, path)
