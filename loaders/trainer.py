"""Lets Hugging Face's `Trainer`, and classes derived from it, train on a `TokenLoader`. Needs transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

from tokenloom.errors import ConfigError, LoaderStateError, StoreError, missing_package
from tokenloom.loaders.collation.context import ENDS
from tokenloom.loaders.collation.text import model_inputs
from tokenloom.loaders.order.batch_plan import TokenBudget
from tokenloom.loaders.token_loader import TokenLoader

try:
    from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise missing_package(error.name or "transformers", "tokenloom.loaders.trainer") from None


class TokenLoaderMixin:
    """Mixin for `Trainer` and its subclasses that trains on a `TokenLoader`, epoch after epoch, for `max_steps`.

    Checkpoints contain the loader's position, and training resumes after the last trained batch.

    `class TokenTrainer(TokenLoaderMixin, Trainer): ...`

    Trainer sees all epochs as one, so that no batch is lost where an epoch ends. Give logging, evaluation and saving
    intervals in steps, not in epochs. If rows can have images, DDP looks for unused parameters, since a rank without
    an image in its batch does not use the vision tower.

    `eval_dataset`, here and in `evaluate`, can be a loader or loaders by name. The loss is then that of all of its
    rows, each once, on any number of ranks.

    Args:
        train_loader: the loader; Trainer does not shard its batches again.
        args, kwargs: arguments of Trainer.

    Raises:
        ConfigError: when training begins: an epoch has no batch, or a row does not fit into `token_budget`.
    """

    def __init__(self, *args: Any, train_loader: TokenLoader, **kwargs: Any):
        evaluated = kwargs.get("eval_dataset")
        if has_loaders(evaluated) and kwargs.get("train_dataset") is not None:
            kwargs["eval_dataset"] = kwargs["train_dataset"]  # TRL's trainers look at the columns of a dataset
        super().__init__(*args, **kwargs)
        self.train_loader = train_loader
        trainer: Any = self
        if has_loaders(evaluated):
            trainer.eval_dataset = evaluated
        trainer.args.ignore_data_skip = True  # nothing to replay: the loader resumes by itself
        handler = trainer.accelerator.ddp_handler
        if train_loader.images and handler and trainer.args.ddp_find_unused_parameters is None:
            handler.find_unused_parameters = True  # a rank whose batch has no image does not use the vision tower
        trainer.add_callback(LoaderState(train_loader))

    def get_train_dataloader(self) -> Any:
        check_batches(self.train_loader)
        return _Endless(self)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the loss on a loader: the mean of `compute_loss` over all batches of all ranks, weighted by
        `evaluation_weight`, summed in float64. With several loaders, each has metrics of its own, as in Trainer; what
        is not a loader is evaluated by Trainer.

        Args:
            eval_dataset: replaces `eval_dataset` of Trainer.
        """
        trainer, base = cast(Any, self), cast(Any, super())
        given = trainer.eval_dataset if eval_dataset is None else eval_dataset
        if not has_loaders(given):
            return base.evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if isinstance(given, Mapping):
            metrics: dict[str, float] = {}
            for name, loader in given.items():
                metrics |= self.evaluate(loader, ignore_keys, f"{metric_key_prefix}_{name}")
            return metrics
        trainer.model.eval()
        total: Any = torch.zeros(2, dtype=torch.float64, device=trainer.args.device)
        for batch in given:
            for part in self._evaluated_parts(batch):
                weight = self.evaluation_weight(part)
                inputs = trainer._prepare_inputs(self.model_inputs(part))
                with torch.no_grad(), trainer.accelerator.autocast():
                    loss = trainer.compute_loss(trainer.model_wrapped, inputs).double()
                if weight:  # the mean loss of a batch without trained tokens is not a number
                    total += torch.stack([loss * weight, loss.new_tensor(weight)])
        loss, weight = trainer.accelerator.reduce(total, "sum").tolist()
        metrics = {f"{metric_key_prefix}_loss": loss / weight if weight else math.nan}
        trainer.log(metrics)
        trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
        return metrics

    def _evaluated_parts(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a batch, or its rows one by one if one of the ranks has padding rows, which losses of pairs count."""
        if not _is_preference(batch):
            return [batch]
        trainer, trained = cast(Any, self), _trained_rows(batch)
        # decided by all ranks together: each must call the model equally often
        padding = torch.tensor(float(not trained.all()), device=trainer.args.device)
        if not trainer.accelerator.reduce(padding, "sum"):
            return [batch]
        tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        return [{name: value[row : row + 1] for name, value in tensors.items()} for row in range(len(trained))]

    def evaluation_weight(self, batch: dict[str, Any]) -> float:
        """Return what the mean loss of a batch counts in an evaluation: its trained tokens, or their weights; of pairs
        and of rows with a `label`, the rows. Override it for a loss that is a mean over something else."""
        if _is_preference(batch):
            return float(_trained_rows(batch).sum())
        trained = batch["labels"][:, 1:] != -100
        weights = batch["loss_weights"][:, 1:] * trained if "loss_weights" in batch else trained
        return float(weights.sum(dtype=torch.float64))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights of a model as `from_pretrained` does. It reverts what `save_pretrained` does to names and
        shapes, such as those of experts and vision towers; Trainer by itself would ignore weights with other names.
        A weight that the checkpoint lacks is a StoreError."""
        trainer, base = cast(Any, self), cast(Any, super())
        own = trainer.model
        if not isinstance(own, PreTrainedModel) or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            base._load_from_checkpoint(resume_from_checkpoint, model)
            return
        # FSDP2 derives a class from the model's own, which `from_pretrained` needs
        kind: Any = type(own).__bases__[1] if isinstance(own, FSDPModule) else type(own)
        saved, report = kind.from_pretrained(resume_from_checkpoint, dtype=own.dtype, output_loading_info=True)
        if report["missing_keys"]:
            raise StoreError(f"the checkpoint {resume_from_checkpoint} has no {sorted(report['missing_keys'])[0]}")
        set_model_state_dict(own, saved.state_dict(), options=StateDictOptions(full_state_dict=True))

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the model's inputs of a batch; override it to pass others."""
        trainer = cast(Any, self)
        return model_inputs(batch, trainer.args.device if ENDS in batch else None, trainer.model)


class LoaderState(TrainerCallback):
    """Keeps a loader's state in Trainer's state, which checkpoints save as trainer_state.json, and resumes from it.

    Raises:
        LoaderStateError: a checkpoint has no loader state, or that of other data.
    """

    def __init__(self, loader: TokenLoader):
        self.loader = loader

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        kept: Any = state.stateful_callbacks
        saved = kept.get("TokenLoader")
        if saved is not None:
            self.loader.load_state_dict(saved)
        elif state.global_step:
            raise LoaderStateError("the checkpoint has no TokenLoader state: it was saved without TokenLoaderMixin")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        place, rows = self.loader.place, self.loader.plan.rows
        state.epoch = place.epoch + place.position / rows
        kept: Any = state.stateful_callbacks
        kept["TokenLoader"] = self.loader.state_dict()


class _Endless:
    def __init__(self, trainer: TokenLoaderMixin):
        self._trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        empty = 0  # consecutive epochs without a batch; a resumed epoch can have none left
        while empty < 2:
            empty += 1
            for batch in self._trainer.train_loader:
                empty = 0
                yield self._trainer.model_inputs(batch)
        raise ConfigError.at("train_loader", "train_loader: the loader has no batch, so nothing can be trained on")


def has_loaders(given: Any) -> bool:
    """Return whether something is a loader, or loaders by name."""
    each = [*given.values()] if isinstance(given, Mapping) else [given]
    return bool(each) and all(isinstance(loader, DataLoader) for loader in each)


def check_batches(loader: TokenLoader) -> None:
    """Check that an epoch has a batch, and that all rows fit into batches.

    Raises:
        ConfigError: an epoch has no batch, or a row does not fit into `token_budget`.
    """
    plan, ranks, data = loader.plan, loader.world_size, cast(Any, loader.dataset).dataset
    if not isinstance(plan, TokenBudget):
        if not plan.count(ranks):
            size = f"{plan.batch_size} × {ranks} ranks" if ranks > 1 else str(plan.batch_size)
            message = (
                f"drop_last: an epoch has no batch, since {plan.rows} rows are fewer than a global batch of {size}; "
                "set drop_last to false, or a smaller batch_size"
            )
            raise ConfigError.at("drop_last", message)
    # counting opens all lengths: only where a row could be too long
    elif not hasattr(data, "max_length") or plan._width(np.array([data.max_length]))[0] > plan.budget:  # pyright: ignore[reportPrivateUsage]
        try:
            plan.count(ranks)
        except ValueError as error:
            raise ConfigError.at("token_budget", f"token_budget: {error}") from None


def _is_preference(batch: Mapping[str, Any]) -> bool:
    return "chosen_labels" in batch or isinstance(batch.get("label"), torch.Tensor)  # a kept column is a list


def _trained_rows(batch: Mapping[str, Any]) -> torch.Tensor:
    """Return which pairs or labelled rows have a trained token, bool [rows]: padding rows have none."""
    sides = [batch[name] for name in ("labels", "chosen_labels", "rejected_labels") if name in batch]
    return torch.stack([(labels[:, 1:] != -100).any(1) for labels in sides]).any(0)
