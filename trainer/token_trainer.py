"""Hugging Face's `Trainer` with exact data: the loader, the loss's normalization and the optimizer are tokenloom's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainingArguments

from tokenloom.config.training import TrainingConfig
from tokenloom.loaders import TokenLoader, model_inputs
from tokenloom.loaders.trainer import TokenLoaderMixin
from tokenloom.trainer.arguments import training_arguments
from tokenloom.trainer.checkpoints import Checkpoints
from tokenloom.trainer.losses import CrossEntropy, FusedHead, total_weight, trained_tokens
from tokenloom.trainer.optimizers import build_optimizer
from tokenloom.trainer.step_log import StepLog


class TokenTrainer(Checkpoints, TokenLoaderMixin, Trainer):
    """Trainer on the batches of a `TokenLoader`.

    - The loss of a step is the sum over its trained tokens, on all ranks and in all accumulated batches, divided by
      their number, or by the sum of their weights.
    - Training ends after exactly `config.epochs` passes over the data, or `config.steps` steps.
    - Checkpoints appear complete or not at all, contain the loader's position, and load without pickle.

    Args:
        model: a causal language model of transformers, or a module that takes `input_ids` and returns logits.
        config: the settings; their equivalents in `TrainingArguments` are in docs/train/trainer.md.
        train_loader: this rank's training batches.
        eval_loader: this rank's batches for evaluation, not shuffled.
        output_dir: folder of the run; default: `config.output_dir`, else `runs/` and the dataset's name.
        args: replaces the arguments that the config translates to.
        kwargs: other arguments of Trainer.

    Raises:
        ConfigError: the model's loss cannot be fused, or the optimizer has no such argument.
    """

    loss_is_scaled_for_ga = True  # or Trainer would divide the loss by the number of accumulated batches

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        train_loader: TokenLoader,
        eval_loader: TokenLoader | None = None,
        output_dir: Path | str | None = None,
        args: TrainingArguments | None = None,
        **kwargs: Any,
    ):
        folder = Path(output_dir or config.output_dir or "runs")
        arguments = args or training_arguments(config, train_loader, folder)
        self.config, self.eval_loader = config, eval_loader
        super().__init__(model, arguments, train_loader=train_loader, eval_dataset=eval_loader, **kwargs)
        self.remove_callback(PrinterCallback)
        if config.early_stopping_patience:
            self.add_callback(EarlyStoppingCallback(config.early_stopping_patience))
        self.step_log = StepLog(self, Path(str(arguments.output_dir)) / "log.jsonl")
        self.add_callback(self.step_log)
        self._loss = CrossEntropy(config.z_loss, config.label_smoothing)
        base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]
        self._fused = FusedHead(base, self._loss) if config.loss == "fused_linear_cross_entropy" else None
        self._last: dict[str, Any] = {}

    def get_train_dataloader(self) -> Any:
        return _Batches(self)

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the model's inputs of a batch, and its `loss_weights` if it has any."""
        weights = {name: batch[name] for name in ("loss_weights",) if name in batch}
        return model_inputs({name: value for name, value in batch.items() if name not in weights}) | weights

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """Return the batches of a step, and the weight of their trained tokens on all ranks, float32."""
        batches = list(islice(epoch_iterator, num_batches))
        total: Any = sum((total_weight(batch) for batch in batches), torch.zeros((), dtype=torch.float64))
        if self.accelerator.num_processes > 1:
            total = self.accelerator.reduce(total.to(device), "sum")
        self.step_log.start_step(batches)
        return batches, total.to(device, torch.float32)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return this batch's part of the step's loss, times the number of ranks, over which gradients are averaged."""
        total = total_weight(inputs) if num_items_in_batch is None else num_items_in_batch
        total = torch.as_tensor(total, device=inputs["labels"].device)
        self._last = inputs
        loss = self._loss_sum(model, inputs) * self.accelerator.num_processes / torch.where(total > 0, total, 1.0)
        return (loss, {}) if return_outputs else loss

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.step_log.add_loss(loss)
        return loss

    def _loss_sum(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        labels, weights, given = _split(inputs)
        if self._fused is not None:
            return self._fused(model, given, labels, weights)
        where, targets, weights = trained_tokens(labels, weights)
        return self._loss.of_logits(_logits(model(**given))[where], targets, weights)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            optimizer: Any = build_optimizer(self.config, trained, set(self.get_decay_parameter_names(trained)))
            if self.config.optimizer == "sophia":
                optimizer.estimate = self._gauss_newton
            self.optimizer = optimizer
        return self.optimizer

    def _gauss_newton(self) -> list[torch.Tensor]:
        """Return Sophia's estimate of the Gauss-Newton diagonal from the last batch: its number of tokens times the
        squared gradient of the loss for targets drawn from the model's own predictions."""
        labels, weights, given = _split(self._last)
        where, targets, _ = trained_tokens(labels, weights)
        model: Any = self.model
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        with self.accelerator.autocast():
            logits = _logits(model(**given))[where].float()
        drawn = torch.multinomial(logits.detach().softmax(-1), 1)[:, 0] if len(targets) else targets
        count = max(len(targets), 1)
        loss = nn.functional.cross_entropy(logits, drawn, reduction="sum") / count
        gradients: Any = torch.autograd.grad(loss, parameters, materialize_grads=True)
        if self.accelerator.num_processes > 1:
            gradients = self.accelerator.reduce(list(gradients), "mean")
        return [gradient.square() * count * self.accelerator.num_processes for gradient in gradients]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return loss (cross-entropy per trained token, over all ranks) and perplexity on `eval_loader`.

        Args:
            eval_dataset: another loader to evaluate on.
        """
        model: Any = self.model_wrapped
        loader: Any = eval_dataset or self.eval_loader
        plain = CrossEntropy()
        sums: Any = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        model.eval()
        for batch in loader:
            inputs: Any = self._prepare_inputs(self.model_inputs(batch))
            labels, weights, given = _split(inputs)
            where, targets, weights = trained_tokens(labels, weights)
            with torch.no_grad(), self.accelerator.autocast():
                loss = plain.of_logits(_logits(model(**given))[where], targets, weights)
            sums += torch.stack([loss.double(), total_weight(inputs).to(loss.device)])
        sums = self.accelerator.reduce(sums, "sum")
        loss, weight = sums.tolist()
        mean = loss / weight if weight else math.nan
        metrics = {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "trained_tokens": weight}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class _Batches:
    """The model's inputs in all batches of a run. Batches without loss complete the last step of the last epoch."""

    def __init__(self, trainer: TokenTrainer):
        self._trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        trainer, loader, config = self._trainer, self._trainer.train_loader, self._trainer.config
        endless = config.steps is not None or config.epochs % 1 > 0
        inputs, empty = None, 0  # consecutive epochs without a batch; a resumed epoch can have none left
        while empty < 2 and (endless or loader.place.epoch < config.epochs):
            empty += 1
            for batch in loader:
                empty, inputs = 0, trainer.model_inputs(batch)
                yield inputs
        while inputs is not None:
            yield {**inputs, "labels": torch.full_like(inputs["labels"], -100)}


def _split(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, Any]]:
    """Return the labels, the weights, and what the model takes."""
    given = {name: value for name, value in inputs.items() if name not in ("labels", "loss_weights")}
    return inputs["labels"], inputs.get("loss_weights"), given


def _logits(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.logits
