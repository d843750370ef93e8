"""The plan and the settings of a run, which its checkpoints keep, and how it is resumed with others."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState

from tokenloom.config.sections import WITHOUT_EFFECT
from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders.order.batch_plan import short
from tokenloom.trainer.arguments import schedule_arguments
from tokenloom.trainer.run_plan import RunPlan, StepSize

PLAN, SETTINGS, PENDING = "RunPlan", "Settings", "PendingEvaluation"
"""Their names in the state of Trainer, next to `TokenLoader`."""

OF_THE_RUN = ("model", "lora", "optimizer", "optimizer_args", "loss", "random_seed")
"""Settings that a run keeps. All others take effect when it is resumed."""

ALIKE = ("cross_entropy", "fused_linear_cross_entropy")
"""Losses of the same values."""


class RunState(TrainerCallback):
    """Where a run is and where it ends. Keeps the plan and the settings of a run in its checkpoints, and calls for
    logging, evaluation and saving at the places in the data at which the run began to.

    Args:
        trainer: the `TokenTrainer`.
        max_steps: steps that replace those of the config, or None.

    Attributes:
        plan: the plan.
        total: the steps of the run, of the size that it began with.
        is_finished: whether no step is left.
        is_pending: whether the evaluation of the last step is still to be done.
    """

    def __init__(self, trainer: Any, max_steps: int | None):
        self._trainer, self._max_steps = trainer, max_steps
        self._counted = trainer.train_loader.plan, trainer.args.max_steps
        self._intervals: dict[str, int] = {}
        self._at: int | Fraction = 0
        self.begin()

    def begin(self) -> None:
        """Start a run."""
        trainer = self._trainer
        self.size = StepSize.of(trainer.train_loader, trainer.args.gradient_accumulation_steps)
        self._continue(RunPlan(trainer.train_loader.plan, self.size))
        trainer.args.max_steps = self.total

    def _continue(self, plan: RunPlan) -> None:
        self.plan, self.changes = plan, dict[str, list[int]]()
        counted, total = self._counted  # counting the batches of a token budget takes time
        is_counted = plan.since is None and counted is self._trainer.train_loader.plan
        self.total = total if is_counted else plan.total(*self._length())
        self.is_finished = self.is_pending = False
        if self._max_steps is None:
            schedule = schedule_arguments(self._trainer.config, self.total)
            for name in ("warmup_steps", "lr_scheduler_kwargs"):
                setattr(self._trainer.args, name, schedule[name])

    def _length(self) -> tuple[float, int | None]:
        """Return the epochs or the steps that a run is to have."""
        config = self._trainer.config
        return config.epochs, config.steps if self._max_steps is None else self._max_steps

    def resume(self, checkpoint: Path) -> TrainerState:
        """Continue the run of a checkpoint: load the loader's state, and find out which steps are left.

        Raises:
            ConfigError: the checkpoint was made with a setting that cannot change, or is after the end of the run; or
                the run is finished with other settings.
            LoaderStateError: the checkpoint is of other data or of another order.
        """
        trainer, loader = self._trainer, self._trainer.train_loader
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        kept: Any = state.stateful_callbacks
        step, settings, of_loader = state.global_step, kept.get(SETTINGS), kept.get("TokenLoader")
        for name, was, now in _differing(settings, self.settings(), OF_THE_RUN):
            raise _fault(name, f"{now} here, but {checkpoint} was trained with {was}; set it back, {_NEW}")
        if of_loader is None:
            raise LoaderStateError(f"{checkpoint} has no TokenLoader state: it was saved without TokenLoaderMixin")
        was = StepSize.of(loader, trainer.args.gradient_accumulation_steps)
        if (of_loader.get("token_budget") is None) != (was.token_budget is None):
            here, there = ("token_budget", "batch_size") if was.token_budget else ("batch_size", "token_budget")
            raise _fault(here, f"{checkpoint} was trained with {there}; set {there} again, {_NEW}")
        loader.load_state_dict(of_loader)
        now = StepSize.of(loader, trainer.args.gradient_accumulation_steps)
        older = replace(now, ranks=of_loader["world_size"], batch_size=of_loader.get("batch_size"))
        before = RunPlan.resumed(loader.plan, older, kept.get(PLAN))
        self._continue(before.changed(now, step, loader.place))
        self.size, self.changes = now, before.now.changes(now)
        ended = kept.get(PLAN, {}).get("total") == self.total  # the last step can read more than is asked for
        if self.plan.position(step, loader.place) > self.total and not ended:
            name = "steps" if trainer.config.steps or self._max_steps else "epochs"
            value = trainer.config.epochs if name == "epochs" else self.total
            message = f"{value} end at step {self.total}, but {checkpoint} is at step {step}; set more, {_NEW}"
            raise _fault(name, message)
        moved = self.plan.since is not None
        left = self.plan.left(step, loader.place, *self._length()) if moved else self.total - step
        stopped = kept.get("EarlyStopping", {}).get("attributes", {}).get("stopped", False)
        self.is_finished, self.is_pending = stopped or not left, bool(kept.get(PENDING))
        for name, was, now in _differing(settings, self.settings(), self.settings()) if self.is_finished else ():
            how = "stopped early" if stopped else f"finished at step {step}"
            raise _fault(name, f"{now} here, but the run {how} with {was} ({checkpoint}); set it back, {_NEW}")
        trainer.args.max_steps = step + left
        return state

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide about the weights, but for the length of the run."""
        config = self._trainer.config
        values = config.model_dump(mode="json", exclude=WITHOUT_EFFECT | {"epochs", "steps", "strategy"})
        values["loss"] = ALIKE[0] if config.loss in ALIKE else config.loss
        return values | {"batch_size": self.size.batch_size, "token_budget": self.size.token_budget}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kept, trainer = state.stateful_callbacks, self._trainer
        kept[PLAN], kept[SETTINGS] = self.plan.state() | {"total": self.total}, self.settings()
        state.compute_steps(args, self.total)
        if args.save_total_limit == 1:
            state.best_model_checkpoint = None  # or Trainer would delete the last checkpoint at the end
        control.should_training_stop |= self.is_finished
        self._intervals, self._at = {}, self.plan.position(state.global_step, trainer.train_loader.place)
        if self.plan.since is not None:
            for name in ("logging", "eval", "save"):
                if getattr(args, f"{name}_strategy") == "steps":
                    self._intervals[name] = getattr(state, f"{name}_steps")
                setattr(state, f"{name}_steps", sys.maxsize)
        if self.changes and not self.is_finished:
            trainer.step_log.report_change(state.global_step, self.changes, args.max_steps - state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.plan.since is None:
            return
        at = self.plan.position(state.global_step, self._trainer.train_loader.place)
        due = [name for name, steps in self._intervals.items() if at // steps > self._at // steps]
        control.should_log |= "logging" in due
        control.should_evaluate |= "eval" in due
        control.should_save |= "save" in due
        self._at = at


_NEW = "or start a new run in another training.output_dir"


def _fault(name: str, message: str) -> ConfigError:
    return ConfigError.at(f"training.{name}", f"training.{name}: {message}")


def _differing(was: Mapping[str, Any] | None, now: Mapping[str, Any], names: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that differ, each with both values; of mappings, the first value in them that differs."""
    for name in names:
        before, here = (was or now).get(name, now[name]), now[name]
        while before != here and isinstance(before, Mapping) and isinstance(here, Mapping):
            key = min(key for key in {*before, *here} if before.get(key) != here.get(key))
            name, before, here = f"{name}.{key}", before.get(key), here.get(key)
        if before != here:
            yield name, short(before).strip("'"), short(here).strip("'")
