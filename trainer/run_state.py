"""The plan and the settings of a run, which its checkpoints keep, and how it is resumed with others.

A run can be resumed on another number of ranks, and with other batches. Its steps then read more or fewer rows than
before, so steps cannot be counted on: the plan counts data, and converts them to steps of the size that the run began
with. `training_arguments` makes transformers' `TrainingArguments` of a `TrainingConfig`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState, TrainingArguments

from tokenloom.config.sections import WITHOUT_EFFECT, TrainingConfig
from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders import TokenLoader
from tokenloom.loaders.order.batch_plan import FixedBatches, Place, TokenBudget, short


@dataclass(frozen=True)
class StepSize:
    """What one optimizer step reads.

    Args:
        ranks: number of ranks.
        batch_size: rows per rank and batch; None: batches have a token budget.
        token_budget: padded tokens per rank and batch, or None.
        gradient_accumulation_steps: batches per step.
    """

    ranks: int
    batch_size: int | None
    token_budget: int | None
    gradient_accumulation_steps: int

    @classmethod
    def of(cls, loader: TokenLoader, accumulated: int) -> StepSize:
        """Return the size of steps of a loader that accumulate so many batches."""
        plan = loader.plan
        if isinstance(plan, FixedBatches):
            return cls(loader.world_size, plan.batch_size, None, accumulated)
        return cls(loader.world_size, None, plan.budget, accumulated)

    @property
    def units(self) -> int:
        """Rows that all ranks read at once; of a token budget, batches."""
        return self.ranks * (self.batch_size or 1)

    def changes(self, other: StepSize) -> dict[str, list[int]]:
        """Return what differs in another size, and what a whole step reads: this value and the other one."""
        pairs = {name: [value, getattr(other, name)] for name, value in asdict(self).items()}
        read = "rows_per_step" if self.batch_size else "batches_per_step"
        pairs[read] = [size.units * size.gradient_accumulation_steps for size in (self, other)]
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class RunPlan:
    """Where a run is and where it ends, in steps of the size that it began with.

    Args:
        plan: the loader's plan.
        now: the size of steps.
        first: the size of steps that the run began with; default: `now`.
        since: the position and the place at which the size changed last; None: it never did, and positions are steps.
    """

    def __init__(
        self,
        plan: FixedBatches | TokenBudget,
        now: StepSize,
        first: StepSize | None = None,
        since: tuple[Fraction, Place] | None = None,
    ):
        self._plan, self.now, self.first, self.since = plan, now, first or now, since
        self._first_plan = replace(plan, batch_size=self.first.batch_size) if isinstance(plan, FixedBatches) else plan
        self._counts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._begun = self._before(since[1]) if since else Fraction(0)

    @classmethod
    def resumed(cls, plan: FixedBatches | TokenBudget, now: StepSize, state: Mapping[str, Any] | None) -> RunPlan:
        """Return the plan of a checkpoint, before `now` is compared with the size of its steps.

        Args:
            state: what `state` returned; None: steps had the size of `now`.
        """
        if state is None:
            return cls(plan, now)
        since = state["since"] and (Fraction(state["since"][0]), Place(*state["since"][1:]))
        return cls(plan, StepSize(**state["now"]), StepSize(**state["first"]), since or None)

    def state(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        since = self.since and [str(self.since[0]), *self.since[1]]
        return {"first": asdict(self.first), "now": asdict(self.now), "since": since}

    def changed(self, now: StepSize, step: int, place: Place) -> RunPlan:
        """Return the plan with steps of another size from a step and a place on."""
        if now == self.now:
            return self
        return RunPlan(self._plan, now, self.first, (Fraction(self.position(step, place)), place))

    def position(self, step: int, place: Place) -> int | Fraction:
        """Return the number of first steps that a step is at, whose data begin at a place."""
        if self.since is None:
            return step
        position, begin = self.since
        batches = self._before(place) - self._begun
        batches += sum(self._count(epoch) for epoch in range(begin.epoch, place.epoch))
        # a fraction: a place can be inside a step of the first size
        return position + Fraction(batches) / self.first.gradient_accumulation_steps

    def total(self, epochs: float, steps: int | None = None) -> int:
        """Return the first steps of a run of so many epochs, or steps. The last one can have fewer batches."""
        if steps is not None:
            return steps
        whole, part = int(epochs), epochs % 1
        batches = sum(self._first_plan.left(Place(epoch), self.first.ranks) for epoch in range(whole))
        batches += math.ceil(part * self._count(whole)) if part else 0
        return max(math.ceil(batches / self.first.gradient_accumulation_steps), 1)

    def left(self, step: int, place: Place, epochs: float, steps: int | None = None) -> int:
        """Return the steps that are left of a run of so many epochs, or first steps, whose steps have changed."""
        if steps is None:
            end, part = int(epochs), epochs % 1
            first = Fraction(math.ceil(part * self._count(end)) if part else 0)
        else:
            first = (steps - self.position(step, place)) * self.first.gradient_accumulation_steps
            end, first = place.epoch, first + self._before(place)
            while first > self._count(end):
                first, end = first - self._count(end), end + 1
        # `end` is the epoch in which the run ends, and `units` how much of it is read
        units = min(math.ceil(first * self.first.units), self._size(end)) if first else 0
        if place.epoch > end:
            return 0
        batches = sum(self._plan.count(self.now.ranks, epoch) for epoch in range(place.epoch + 1, end))
        if place.epoch < end:
            batches += self._plan.left(place, self.now.ranks)
        done = self._done(place) if place.epoch == end else 0
        most = self._plan.left(place if place.epoch == end else Place(end), self.now.ranks) if units else 0
        batches += min(most, max(-(-(units - done) // self.now.units), 0))
        return math.ceil(batches / self.now.gradient_accumulation_steps)

    def _before(self, place: Place) -> Fraction:
        """Return the batches of the first size that are before a place in its epoch, of all ranks at once."""
        done, count = self._done(place), Fraction(self._count(place.epoch))
        # a dropped remainder belongs to the last batch
        return count if done >= self._size(place.epoch) else min(Fraction(done, self.first.units), count)

    def _done(self, place: Place) -> int:
        if isinstance(self._plan, FixedBatches):
            return place.position
        return self._size(place.epoch) - self._plan.left(place, 1)

    def _size(self, epoch: int) -> int:
        if isinstance(self._plan, FixedBatches):
            return self._plan.rows
        if epoch not in self._sizes:
            self._sizes[epoch] = self._plan.count(1, epoch)
        return self._sizes[epoch]

    def _count(self, epoch: int) -> int:
        if epoch not in self._counts:
            self._counts[epoch] = self._first_plan.count(self.first.ranks, epoch)
        return self._counts[epoch]


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
    return {"lr_scheduler_type": name, "lr_scheduler_kwargs": more, "warmup_steps": _steps(config.warmup, steps)}


def _steps(value: float, steps: int) -> int:
    return int(value) if value >= 1 else math.ceil(value * steps)


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
        # a checkpoint without a plan: its steps were those of its loader
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
                # Trainer counts steps; `on_step_end` calls at the places in the data instead
                setattr(state, f"{name}_steps", sys.maxsize)
        if self.changes and not self.is_finished:
            trainer.step_log.report_change(state.global_step, self.changes, args.max_steps - state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.plan.since is None:
            return
        at = self.plan.position(state.global_step, self._trainer.train_loader.place)
        # positions can jump over a multiple of the interval
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
