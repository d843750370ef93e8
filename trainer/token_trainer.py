"""Hugging Face's `Trainer` with exact data: the loader, the loss's normalization and the optimizer are tokenloom's."""

from __future__ import annotations

import inspect
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainingArguments

from tokenloom.config.sections import TrainingConfig
from tokenloom.errors import ConfigError, TrainingStoppedError, did_you_mean, missing_package
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, model_inputs
from tokenloom.loaders.collation.context import ENDS, TreeMasks
from tokenloom.loaders.order.batch_plan import Place
from tokenloom.loaders.trainer import TokenLoaderMixin, check_batches
from tokenloom.resources.processors.processor import PROCESSOR_FILES
from tokenloom.trainer.checkpoints import Checkpoints, last_checkpoint, mesh_of
from tokenloom.trainer.endings import EarlyStopping, on_sigterm
from tokenloom.trainer.log import StepLog, append_log, cut_log, generated_samples, mean_by_row
from tokenloom.trainer.losses import CrossEntropy, FusedHead, router_weight, total_weight, trained_tokens
from tokenloom.trainer.run_state import PENDING, RunState, training_arguments


def build_optimizer(config: TrainingConfig, model: nn.Module, decayed: set[str]) -> torch.optim.Optimizer:
    """Return the optimizer that a config names, over the trained parameters of a model.

    Args:
        decayed: names of the parameters that get weight decay.

    Raises:
        ConfigError: the optimizer has no such argument.
        ModuleNotFoundError: pytorch-optimizer is needed and not installed.
    """
    kind, given_options = _KINDS[config.optimizer](), config.optimizer_args.items()
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in given_options}
    taken = set(inspect.signature(kind).parameters) - {"params", "lr", "weight_decay", "kwargs"}
    if unknown := [name for name in options if name not in taken]:
        name = f"training.optimizer_args.{unknown[0]}"
        message = f"{name}: not an argument of {config.optimizer}{did_you_mean(unknown[0], taken)}"
        raise ConfigError.at(name, message)
    muon = config.optimizer == "muon"
    matrices = _matrices(model) if muon else set[int]()
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((name in decayed, id(parameter) in matrices), []).append(parameter)
    given: list[dict[str, Any]] = []
    for (decays, is_matrix), parameters in groups.items():
        group = {"params": parameters, "lr": config.learning_rate, "weight_decay": config.weight_decay * decays}
        given.append({**group, "use_muon": is_matrix} if muon else group)
    if muon:  # updates of the size of AdamW's, so that one learning rate fits both
        options = {"use_adjusted_lr": True, **options}
    return kind(given, **options)


def _matrices(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that Muon trains: matrices, but not those of embeddings and output layer."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # pyright: ignore[reportCallIssue]
    apart = [module for module in model.modules() if isinstance(module, nn.Embedding) or module is head]
    outside = {id(parameter) for module in apart for parameter in module.parameters()}
    return {id(parameter) for parameter in model.parameters() if parameter.ndim == 2 and id(parameter) not in outside}


def _library(name: str) -> Any:
    try:
        import pytorch_optimizer  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise missing_package(error.name or "pytorch_optimizer", f"training.optimizer {name.lower()}") from None
    return getattr(pytorch_optimizer, name)


def _sophia() -> Any:
    class Sophia(_library("SophiaH")):
        """Sophia-G (https://arxiv.org/abs/2305.14342): every `update_period` steps it asks `estimate` for the diagonal
        of the Gauss-Newton matrix, a tensor per parameter, in the order of the groups."""

        estimate: Callable[[], list[torch.Tensor]]

        def step(self, closure: Any = None) -> Any:
            due = self.param_groups[0].get("step", 0) % self.update_period == 0
            return super().step(closure, hessian=self.estimate() if due else None)

    return Sophia


_KINDS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: torch.optim.AdamW,
    "adafactor": lambda: torch.optim.Adafactor,
    "muon": lambda: _library("Muon"),
    "lion": lambda: _library("Lion"),
    "sophia": _sophia,
}


_OF_TREES = ("input_ids", "attention_mask", "labels", "position_ids", ENDS)

SHOWN = 60
"""Characters of a prompt and of an answer that progress shows."""


class TokenTrainer(Checkpoints, TokenLoaderMixin, Trainer):
    """Trainer on the batches of a `TokenLoader`.

    - The loss of a step is the sum over its trained tokens, on all ranks and in all accumulated batches, divided by
      their number, or by the sum of their weights.
    - Training ends after exactly `config.epochs` passes over the data, or `config.steps` steps.
    - Checkpoints appear complete or not at all, contain the loader's position, and load without pickle. If rows have
      images, they contain the files of the image processor.
    - A run can be resumed on another number of ranks and with other batches: each row of an epoch is trained once, and
      schedule, evaluations and checkpoints are at the same places in the data.
    - At SIGTERM, `train` writes a checkpoint after the step and raises TrainingStoppedError.

    Args:
        model: a causal language model of transformers, for rows with images an image-text model, or a module that takes
            `input_ids` and returns logits.
        config: the settings; their equivalents in `TrainingArguments` are in docs/train/trainer.md.
        train_loader: this rank's training batches.
        eval_loader: this rank's batches for evaluation, not shuffled; or such loaders by the name of their dataset.
            `eval_dataset`, as Trainer names it, is the same.
        output_dir: folder of the run; default: `config.output_dir`, else `runs/` and the dataset's name.
        args: replaces the arguments that the config translates to.
        kwargs: other arguments of Trainer.

    Raises:
        ConfigError: the model's loss cannot be fused, the optimizer has no such argument, the dataset has trees and the
            model cannot take them, an epoch has no batch, or a row does not fit into a token budget.
    """

    losses = ("cross_entropy", "fused_linear_cross_entropy")
    loss_is_scaled_for_ga = True  # or Trainer would divide the loss by the number of accumulated batches

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        train_loader: TokenLoader,
        eval_loader: TokenLoader | Mapping[str, TokenLoader] | None = None,
        output_dir: Path | str | None = None,
        args: TrainingArguments | None = None,
        **kwargs: Any,
    ):
        if config.loss not in self.losses:
            message = f"training.loss: {type(self).__name__} computes {' and '.join(self.losses)}, not {config.loss}"
            raise ConfigError.at("training.loss", message)
        eval_loader = kwargs.pop("eval_dataset", None) if eval_loader is None else eval_loader
        for loader in (train_loader, *_by_name(eval_loader).values()):
            check_batches(loader)
        folder = Path(output_dir or config.output_dir or "runs")
        arguments = args or training_arguments(config, train_loader, folder)
        self.config, self.eval_loader = config, eval_loader
        super().__init__(
            model,
            arguments,
            train_loader=train_loader,
            eval_dataset=eval_loader if _by_name(eval_loader) else None,
            **kwargs,
        )  # pyright: ignore[reportArgumentType]
        self.remove_callback(PrinterCallback)
        if config.early_stopping_patience:
            self.add_callback(EarlyStopping(config.early_stopping_patience))
        self.step_log = StepLog(self, Path(str(arguments.output_dir)) / "log.jsonl")
        self.run_state = RunState(self, arguments.max_steps if args else None)
        self.add_callback(self.step_log)
        self.add_callback(self.run_state)
        self._got_sigterm = self._stops = False
        self._loss = CrossEntropy(config.z_loss, config.label_smoothing)
        base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]
        self._router = router_weight(base, config.loss)
        self._fused = FusedHead(base, self._loss) if config.loss == "fused_linear_cross_entropy" else None
        loaders = [train_loader, *_by_name(eval_loader).values()]
        has_trees = any(loader.dataset.dataset.trees for loader in loaders)  # pyright: ignore[reportAttributeAccessIssue]
        self._tree_masks = _tree_masks(base, self._router) if has_trees else None
        self._last: dict[str, Any] = {}
        self._row_losses: torch.Tensor | None = None

    def get_train_dataloader(self) -> Any:
        return _Batches(self)

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, and return what Trainer does. A checkpoint of a finished run is only loaded.

        Args:
            resume_from_checkpoint: a checkpoint to continue after; True: the last one.

        Raises:
            ConfigError: the checkpoint is of a run with a setting that cannot change, or with more steps.
            LoaderStateError: the checkpoint is of other data or of another order.
            TrainingStoppedError: the process got SIGTERM. A checkpoint is written.
        """
        checkpoint: Any = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = last_checkpoint(Path(str(self.args.output_dir)))
        self.saved_step, self._got_sigterm, self._stops = -1, False, False
        if checkpoint:
            self.saved_step = self.run_state.resume(Path(checkpoint)).global_step
        else:
            self.run_state.begin()
        first, output = self.args.eval_on_start, None
        self.args.eval_on_start = self.run_state.is_pending or (first and not checkpoint)
        with on_sigterm(self._stop):
            try:
                output = super().train(str(checkpoint) if checkpoint else None, *args, **kwargs)
            except _EvaluationStopped:
                self.is_in_train = False
                kept: Any = self.state.stateful_callbacks
                kept[PENDING] = True
                if self.state.global_step and not self.run_state.is_pending:
                    self._save_checkpoint(self.model_wrapped, None)
            finally:
                self.args.eval_on_start = first
        if self._stops:
            step = self.state.global_step
            saved = f"after step {step}, which is saved" if step else "before the first step"
            raise TrainingStoppedError(f"stopped by SIGTERM {saved}; continue with --resume ({self.args.output_dir})")
        return output

    def _stop(self) -> None:
        """Stop after this step. A second SIGTERM ends the process, unless torchrun sends it, which kills it later."""
        self._got_sigterm = True
        if not torch.distributed.is_torchelastic_launched():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        is_given = self.lr_scheduler is not None
        scheduler: Any = super().create_scheduler(self.run_state.total, optimizer)
        if not is_given and isinstance(scheduler, LambdaLR):
            # by the place in the data: with other batches, step n is at another one
            scheduler.lr_lambdas = [partial(self._factor, schedule) for schedule in scheduler.lr_lambdas]
        return scheduler

    def _factor(self, schedule: Callable[[Any], float], step: int) -> float:
        """Return the value of a schedule at a step, whose data begin at the loader's place."""
        at = self.run_state.plan.position(step, self.train_loader.place)
        return schedule(at if isinstance(at, int) else float(at))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        images = self.train_loader.images
        if images is None or not self.args.should_save:
            return
        for name in PROCESSOR_FILES:
            file, copy = images.folder / name, Path(output_dir or str(self.args.output_dir)) / name
            if name != "config.json" and file.is_file():  # config.json is the model's
                copy.write_bytes(file.read_bytes())

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the model's inputs of a batch, and its `loss_weights` if it has any. Of a batch of trees, return what
        their masks are made from, on the device, when the model is called."""
        weights = {name: batch[name] for name in ("loss_weights",) if name in batch}
        if ENDS in batch:
            return {name: batch[name] for name in _OF_TREES} | weights
        return model_inputs({name: value for name, value in batch.items() if name not in weights}) | weights

    def weight_of(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return what the loss of a batch counts: the weight of its trained tokens, float64 scalar."""
        return total_weight(inputs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """Return the batches of a step, and the weight of their trained tokens on all ranks, float32. No batch ends the
        training."""
        if self.control.should_training_stop:  # as a resumed run is finished, or its first evaluation ends it
            return [], torch.zeros((), device=device)
        taken: list[tuple[Place | None, dict[str, Any]]] = list(islice(epoch_iterator, num_batches))
        batches = [batch for _, batch in taken]
        total: Any = sum((self.weight_of(batch) for batch in batches), torch.zeros((), dtype=torch.float64))
        stopped: Any = self._got_sigterm
        if self.accelerator.num_processes > 1:
            # one reduction for both: ranks must stop at the same step
            both = torch.stack([total, torch.tensor(stopped, dtype=torch.float64)])
            total, stopped = self.accelerator.reduce(both.to(device), "sum").unbind()  # pyright: ignore[reportAttributeAccessIssue]
        if stopped:
            self._stops = self.control.should_training_stop = True
            self.control.should_save = self.saved_step != self.state.global_step > 0
            return [], total
        self.step_log.start_step(batches, [place for place, _ in taken])
        return batches, total.to(device, torch.float32)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return this batch's part of the step's loss, times the number of ranks, over which gradients are averaged."""
        total = self.weight_of(inputs) if num_items_in_batch is None else num_items_in_batch
        total = torch.as_tensor(total, device=inputs["labels"].device)
        self._last = inputs
        # DDP and FSDP average gradients; sums need the factor back
        loss = self._loss_sum(model, inputs) * self.accelerator.num_processes / torch.where(total > 0, total, 1.0)
        return (loss, {}) if return_outputs else loss

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.step_log.add_loss(loss, self._row_losses)
        return loss

    def _split(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, Any]]:
        given = {name: value for name, value in inputs.items() if name not in ("labels", "loss_weights", ENDS)}
        if ENDS in inputs:
            assert self._tree_masks is not None
            given |= {"attention_mask": self._tree_masks(inputs[ENDS], given["position_ids"]), "use_cache": False}
        return inputs["labels"], inputs.get("loss_weights"), given

    def _loss_sum(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        labels, weights, given = self._split(inputs)
        where, targets, weighted = trained_tokens(labels, weights)
        if self._fused is not None:
            total = self._fused(model, given, labels, weights)
            self._row_losses = mean_by_row(self._fused.losses, where)
            return total
        output = model(**given)
        losses = self._loss.of_logits(_logits(output)[where], targets, weighted)
        self._row_losses = mean_by_row(losses.detach(), where)
        if not self._router:
            return losses.sum()
        return losses.sum() + self._router * output.aux_loss * self.weight_of(inputs).float()

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
        labels, weights, given = self._split(self._last)
        where, targets, _ = trained_tokens(labels, weights)
        model: Any = self.model
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        with self.accelerator.autocast():
            # a second forward pass: the first one's graph is gone by now
            logits = _logits(model(**given))[where].float()
        # targets from the model's own predictions make it Gauss-Newton, not the empirical Fisher
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

        With several loaders, `loss` is that of all tokens, and `loss/<name>` and `perplexity/<name>` are those of each.
        Answers to the first rows are written to `samples.jsonl`.

        Args:
            eval_dataset: a loader or loaders by name, which replace `eval_loader`.
        """
        loaders = _by_name(self.eval_loader if eval_dataset is None else eval_dataset)
        model: Any = self.model_wrapped
        model.eval()
        by_loader: list[torch.Tensor] = []
        for loader in loaders.values():
            total: Any = None
            for batch in loader:
                self._end_if_stopped()
                inputs: Any = self._prepare_inputs(self.model_inputs(batch))
                with torch.no_grad(), self.accelerator.autocast():
                    of_batch = self._evaluated(inputs)
                total = of_batch if total is None else total + of_batch
            if total is None:
                message = "eval_dataset: a loader has no batch, so there is nothing to evaluate"
                raise ConfigError.at("eval_dataset", message)
            by_loader.append(total)
        sums: Any = self.accelerator.reduce(torch.stack(by_loader), "sum")
        metrics = self._metrics(sums.sum(0).tolist())
        for name, part in zip(loaders, sums.tolist(), strict=True) if len(loaders) > 1 else ():
            metrics |= {f"{metric}/{name}": value for metric, value in self._metrics(part).items()}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self._end_if_stopped()
        self.log(dict(metrics))
        self._write_samples(loaders)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.run_state.is_pending:  # Trainer compares and saves after other evaluations
            self._determine_best_metric(metrics, None)  # pyright: ignore[reportArgumentType]
            kept: Any = self.state.stateful_callbacks
            self.control.should_save = kept.pop(PENDING, False)
            self.run_state.is_pending = False
        return metrics

    def _end_if_stopped(self) -> None:
        """End an evaluation that is part of a training if one of the ranks got SIGTERM. Called on all ranks."""
        stopped: Any = self._got_sigterm
        if self.is_in_train and self.accelerator.num_processes > 1:
            stopped = self.accelerator.reduce(torch.tensor(float(stopped), device=self.args.device), "sum")
        if self.is_in_train and stopped:
            self._stops = True
            raise _EvaluationStopped

    def _evaluated(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the summed cross-entropy of a batch and the weight of its tokens, float64 [2]."""
        model: Any = self.model_wrapped
        labels, weights, given = self._split(inputs)
        where, targets, weights = trained_tokens(labels, weights)
        losses = CrossEntropy().of_logits(_logits(model(**given))[where], targets, weights)
        return torch.stack([losses.sum(dtype=torch.float64), total_weight(inputs).to(losses.device)])

    def _metrics(self, sums: list[float]) -> dict[str, float]:
        loss, weight = sums
        mean = loss / weight if weight else math.nan
        return {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "trained_tokens": weight}

    def _write_samples(self, loaders: Mapping[str, TokenLoader]) -> None:
        """Write `samples.jsonl` on the first rank: answers before, during and after the training."""
        model: Any = self.accelerator.unwrap_model(self.model)  # pyright: ignore[reportArgumentType]
        can = hasattr(model, "generate") and self.processing_class is not None and not self._is_wrapped()
        writes, is_sharded = self.is_world_process_zero(), mesh_of(model) is not None
        if not (can and self.config.eval_samples and (writes or is_sharded)):  # all ranks compute a sharded model
            return
        datasets: dict[str, TokenDataset] = {}
        for loader in loaders.values():
            data: Any = getattr(loader.dataset, "dataset", None)
            datasets |= data.datasets if isinstance(data, MixedDataset) else {}
            datasets |= {data.name: data} if isinstance(data, TokenDataset) else {}
        path, step = Path(str(self.args.output_dir)) / "samples.jsonl", self.state.global_step
        with self.accelerator.autocast():
            lines = [*generated_samples(model, self.processing_class, datasets, self.config.eval_samples)]
        if not writes:
            return
        cut_log(path, step - 1)
        append_log(path, [{"step": step, **line} for line in lines])
        for line in lines[:1]:
            self.step_log.report(f"step {step:>6}  {line['prompt'][-SHOWN:]!r} → {line['generated'][:SHOWN]!r}")


class _EvaluationStopped(Exception):
    """SIGTERM ends an evaluation, which a resumed run begins again."""


def _by_name(loaders: TokenLoader | Mapping[str, TokenLoader] | None) -> dict[str, TokenLoader]:
    return dict(loaders) if isinstance(loaders, Mapping) else {} if loaders is None else {"": loaders}


class _Batches:
    """The model's inputs in all batches of a run, each with the loader's place before it. Batches without loss, which
    have no place, complete the last step of the last epoch."""

    def __init__(self, trainer: TokenTrainer):
        self._trainer = trainer

    def __iter__(self) -> Iterator[tuple[Place | None, dict[str, Any]]]:
        trainer, loader, config = self._trainer, self._trainer.train_loader, self._trainer.config
        endless = config.steps is not None or config.epochs % 1 > 0
        inputs, empty = None, 0  # consecutive epochs without a batch; a resumed epoch can have none left
        while empty < 2 and (endless or loader.place.epoch < config.epochs):
            empty, before = empty + 1, loader.place
            for batch in loader:
                empty, inputs = 0, trainer.model_inputs(batch)
                yield before, inputs
                before = loader.place
        if inputs is None:
            raise ConfigError.at("train_loader", "train_loader: the loader has no batch left to train on")
        # Trainer asks for whole steps: batches without loss complete the last one, on all ranks
        while True:
            yield None, {**inputs, "labels": torch.full_like(inputs["labels"], -100)}


def _tree_masks(model: nn.Module, router: float) -> TreeMasks:
    """Return the masks of a model that is trained on trees; a ConfigError if it cannot be."""
    if router:
        message = "training.loss: a model cannot balance its experts on trees; set its output_router_logits: false"
        raise ConfigError.at("training.loss", message)
    try:
        return TreeMasks.of(model)
    except ValueError as error:
        message = f"training.attention: the dataset has trees (length.packing: tree), but {error}"
        raise ConfigError.at("training.attention", message) from None


def _logits(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.logits
