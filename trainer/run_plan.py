"""The plan of a run: where it is and where it ends, in steps of the size that it began with.

A run can be resumed on another number of ranks, and with other batches. Its steps then read more or fewer rows than
before, so steps cannot be counted on: the plan counts data, and converts them to steps of the first kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from tokenloom.loaders import TokenLoader
from tokenloom.loaders.order.batch_plan import FixedBatches, Place, TokenBudget


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
        end, units = self._end(step, place, epochs, steps)
        if place.epoch > end:
            return 0
        batches = sum(self._plan.count(self.now.ranks, epoch) for epoch in range(place.epoch + 1, end))
        if place.epoch < end:
            batches += self._plan.left(place, self.now.ranks)
        done = self._done(place) if place.epoch == end else 0
        most = self._plan.left(place if place.epoch == end else Place(end), self.now.ranks) if units else 0
        batches += min(most, max(-(-(units - done) // self.now.units), 0))
        return math.ceil(batches / self.now.gradient_accumulation_steps)

    def _end(self, step: int, place: Place, epochs: float, steps: int | None) -> tuple[int, int]:
        """Return the epoch in which the run ends, and the units of it that are read."""
        if steps is None:
            epoch, part = int(epochs), epochs % 1
            batches = Fraction(math.ceil(part * self._count(epoch)) if part else 0)
        else:
            batches = (steps - self.position(step, place)) * self.first.gradient_accumulation_steps
            epoch, batches = place.epoch, batches + self._before(place)
            while batches > self._count(epoch):
                batches, epoch = batches - self._count(epoch), epoch + 1
        return epoch, min(math.ceil(batches * self.first.units), self._size(epoch)) if batches else 0

    def _before(self, place: Place) -> Fraction:
        """Return the batches of the first size that are before a place in its epoch, of all ranks at once."""
        done, count = self._done(place), Fraction(self._count(place.epoch))
        return count if done >= self._size(place.epoch) else min(Fraction(done, self.first.units), count)

    def _done(self, place: Place) -> int:
        """Return the rows of its epoch before a place; of a token budget, the batches."""
        if isinstance(self._plan, FixedBatches):
            return place.position
        return self._size(place.epoch) - self._plan.left(place, 1)

    def _size(self, epoch: int) -> int:
        """Return the rows of an epoch; of a token budget, the batches."""
        if isinstance(self._plan, FixedBatches):
            return self._plan.rows
        if epoch not in self._sizes:
            self._sizes[epoch] = self._plan.count(1, epoch)
        return self._sizes[epoch]

    def _count(self, epoch: int) -> int:
        """Return the batches of the first size in an epoch, of all ranks at once."""
        if epoch not in self._counts:
            self._counts[epoch] = self._first_plan.count(self.first.ranks, epoch)
        return self._counts[epoch]
