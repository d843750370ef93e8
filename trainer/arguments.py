"""Translates a `TrainingConfig` to transformers' `TrainingArguments`."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from tokenloom.config.sections import TrainingConfig
from tokenloom.loaders import TokenLoader
from tokenloom.trainer.run_plan import RunPlan, StepSize

TRANSLATED = {
    "output_dir": "output_dir",
    "batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "epochs": "max_steps",
    "steps": "max_steps",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
    "scheduler": "lr_scheduler_type",
    "warmup": "warmup_steps",
    "decay": "lr_scheduler_kwargs",
    "min_lr_ratio": "lr_scheduler_kwargs",
    "precision": "bf16, fp16",
    "gradient_checkpointing": "activation_checkpointing",
    "save_steps": "save_steps",
    "save_total_limit": "save_total_limit",
    "eval_steps": "eval_steps, eval_strategy",
    "early_stopping_patience": "metric_for_best_model",
    "logging_steps": "logging_steps",
    "report_to": "report_to",
    "random_seed": "seed",
}
"""The argument that each setting becomes. All others are the loader's, the model's, the loss's or the optimizer's."""


def training_arguments(config: TrainingConfig, loader: TokenLoader, output_dir: Path) -> TrainingArguments:
    """Return the arguments of a config.

    Args:
        loader: this rank's loader, whose number of batches determines the number of steps.
    """
    steps = RunPlan(loader.plan, StepSize.of(loader, config.gradient_accumulation_steps)).total(
        config.epochs, config.steps
    )
    checkpointing = "activation_checkpointing"
    if checkpointing not in {field.name for field in fields(TrainingArguments)}:
        checkpointing = "gradient_checkpointing"
    more: dict[str, Any] = {checkpointing: config.gradient_checkpointing}
    if config.eval_steps:
        more |= {"eval_strategy": "steps", "eval_steps": config.eval_steps}
        more |= {"metric_for_best_model": "loss", "greater_is_better": False}
    return TrainingArguments(
        str(output_dir),
        per_device_train_batch_size=getattr(loader.plan, "batch_size", 1),  # only reported
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        max_steps=steps,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        **schedule_arguments(config, steps),
        use_cpu=not torch.accelerator.is_available(),  # otherwise it takes each rank on a CPU for the first
        bf16=config.precision == "bf16",
        fp16=config.precision == "fp16",
        save_strategy="steps",
        save_only_model=config.strategy == "fsdp",  # or Trainer refuses to save; `Checkpoints` saves everything
        save_steps=config.save_steps,
        save_total_limit=config.save_total_limit,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,  # a loss that is not a number is logged as such
        report_to=list(config.report_to) or "none",
        seed=config.random_seed,
        disable_tqdm=True,
        log_level="error",
        remove_unused_columns=False,
        **more,
    )


def schedule_arguments(config: TrainingConfig, steps: int) -> dict[str, Any]:
    """Return the arguments of the schedule of a run of so many steps."""
    more: dict[str, Any] = {}
    if config.scheduler == "wsd":
        more = {"num_decay_steps": _steps(config.decay, steps), "min_lr_ratio": config.min_lr_ratio}
    elif config.scheduler == "cosine" and config.min_lr_ratio:
        more = {"min_lr_rate": config.min_lr_ratio}
    names = {"wsd": "warmup_stable_decay", "constant": "constant_with_warmup"}
    name = "cosine_with_min_lr" if "min_lr_rate" in more else names.get(config.scheduler, config.scheduler)
    return {
        "lr_scheduler_type": name,
        "lr_scheduler_kwargs": more,
        "warmup_steps": _steps(config.warmup, steps),
    }


def _steps(value: float, steps: int) -> int:
    return int(value) if value >= 1 else math.ceil(value * steps)
