"""The iteration that all loaders share: epoch after epoch, from a place that a state can hold, sharded over ranks; and
what frameworks do with it that a loader cannot see in a call: whoever asks for its batches says it.

Frameworks count batches, fetch one before it is used, or divide rows among ranks a second time. Each of these would
lose rows without a word.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from types import FrameType, GeneratorType
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.order.batch_plan import epoch_number
from tokenloom.loaders.order.progress import Progress
from tokenloom.loaders.order.ranks import Ranks

ACCELERATE = "accelerate.data_loader"
RAY = "ray.train.torch.train_loop_utils"
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def _frames() -> Iterator[tuple[FrameType, str]]:
    """Yield the frames around the caller, each with the name of its module."""
    # 0 is this generator, 1 the function that iterates over it
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame, frame.f_globals.get("__name__", "")
        frame = frame.f_back


def fetched_ahead() -> int:
    """Return the number of batches that a framework fetches before they are used.

    Ray's `prepare_data_loader` fetches one. Lightning does so if one of the loaders has no length.
    """
    if not {RAY, *(f"{name}.loops.fetchers" for name in LIGHTNING)} & sys.modules.keys():
        return 0
    for frame, module in _frames():
        if module == RAY:
            return 1
        fetcher: Any = frame.f_locals.get("self") if module.endswith(".loops.fetchers") else None
        if module.startswith(LIGHTNING) and hasattr(fetcher, "prefetch_batches"):
            # with lengths, Lightning sees the last batch without looking ahead
            return 0 if fetcher.length is not None else fetcher.prefetch_batches
    return 0


def accumulates() -> bool:
    """Return whether the process has an `Accelerator` that accumulates gradients over several batches."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.GradientState._shared_state) and state.GradientState().num_steps > 1


class _Epoch:
    """What Accelerate looks at of a running loader."""

    end_of_dataloader, remainder = False, 0


def ending_for_accelerate(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of an epoch, each when the next one is fetched.

    Accelerate's `accumulate` looks at the running loader for the end of an epoch: it steps with the last batch, however
    many it has accumulated.
    """
    gradients, epoch = sys.modules["accelerate.state"].GradientState(), _Epoch()
    gradients._add_dataloader(epoch)
    try:
        for batch in islice(batches, 1):
            for following in batches:
                yield batch
                batch = following
            epoch.end_of_dataloader = True
            yield batch
    finally:
        gradients._remove_dataloader(epoch)


def check_not_skipped() -> None:
    """Check that no framework skips batches that it has counted.

    Raises:
        LoaderStateError: Accelerate's `skip_first_batches` does, which Trainer calls when it resumes.
    """
    for frame, module in _frames() if ACCELERATE in sys.modules else ():
        if module == ACCELERATE and getattr(frame.f_locals.get("self"), "skip_batches", 0):
            raise LoaderStateError(
                "skip_first_batches counts batches, whatever their size was: resume with load_state_dict of the loader "
                "instead; for Trainer, use tokenloom.loaders.trainer.TokenLoaderMixin"
            )


def check_not_sharded_again(name: str) -> None:
    """Check that Accelerate does not divide the rows of a dataset that are already divided among ranks.

    Raises:
        LoaderStateError: it does.
    """
    if ACCELERATE in sys.modules and any(module == ACCELERATE for _, module in _frames()):
        raise LoaderStateError(
            f"a {name} divides its rows among ranks itself, and Accelerate would divide them again: do not pass its "
            "DataLoader to `prepare`; for Trainer, build the dataset and use "
            "tokenloom.loaders.trainer.TokenLoaderMixin"
        )


def counts_batches() -> str | None:
    """Return the framework that loads a state and counts the batches of an epoch itself, or None."""
    if not any(name in sys.modules for name in LIGHTNING):
        return None
    return "Lightning" if any(module.startswith(LIGHTNING) for _, module in _frames()) else None


class RankedSampler(DistributedSampler[Any]):
    """What frameworks find as the `sampler` of a loader: a `DistributedSampler`, since its rows are already divided.

    Args:
        progress: the loader's.
        ranks: this process's rank and the number of ranks.
        rows: rows per epoch; any epoch number whose positions can be counted is accepted.
    """

    def __init__(self, progress: Progress[Any], ranks: Ranks, rows: int):  # not DistributedSampler's, which fixes ranks
        self.progress, self.ranks, self.rows = progress, ranks, rows

    @property
    def rank(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """This process's rank."""
        return self.ranks.now()[0]

    @property
    def num_replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of ranks."""
        return self.ranks.now()[1]

    @property
    def epoch(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The epoch of the next iteration."""
        return self.progress.start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, as the loader's `set_epoch` does, but without a warning.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        self.progress.set_epoch(epoch_number(epoch, self.rows))

    def __iter__(self) -> Iterator[Any]:
        check_not_skipped()
        return self._remaining()

    def _remaining(self) -> Iterator[Any]:
        raise NotImplementedError


class WorkerLoader(DataLoader[Any]):
    """A DataLoader whose iterations do not disturb each other. Torch gives all of them the same persistent workers."""

    _reading: Callable[[], GeneratorType[Any, None, None] | None] = staticmethod(lambda: None)
    """Returns the iteration that has the persistent workers, as long as something refers to it."""

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        running = self._reading()
        if running is not None and running.gi_frame is not None and self.persistent_workers:
            return self._get_iterator()  # workers of its own, which end with it
        # a generator of its own, which can be referred to weakly and says whether it has ended
        batches: Any = (batch for batch in super().__iter__())
        self._reading = weakref.ref(batches)
        return batches

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_reading"} | {"_iterator": None}


class _Asked:
    """The batch sampler of worker processes. It has no reference to them, so that they end with the last one."""

    steps: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.steps()

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Workers:
    """Batches that worker processes build, in the order of the steps that they are given.

    Args:
        dataset: its `__getitems__` builds a batch from what a step asks for.
        collate_fn: called with each batch.
        options: further arguments of `DataLoader`.
    """

    def __init__(self, dataset: Dataset[Any], collate_fn: Callable[[Any], Any], options: dict[str, Any]):
        self._asked = _Asked()
        self.loader = WorkerLoader(dataset, batch_sampler=self._asked, collate_fn=collate_fn, **options)  # pyright: ignore[reportArgumentType]

    def batches(self, steps: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Start the workers, and return their batches.

        Args:
            steps: returns what to ask for, step by step. It may be called twice, and must not refer to the workers.
        """
        self._asked.steps = steps
        return iter(self.loader)


class ResumableLoader(DataLoader[Any]):
    """A DataLoader whose iterations are epochs, which resume at any batch and whose rows are divided among ranks.

    - Each iteration begins at the start of the epoch, or at a loaded state until its epoch is finished, and the loader
      moves on to the next epoch at its end.
    - Each iteration has its own place. While one runs, another, such as a look at the first batch, does not move the
      loader, also with persistent workers. `state_dict` describes the running one; while a later one was read last and
      both are still referred to, it is refused.
    - `load_state_dict` in a running iteration is for the next one.
    - Frameworks that shard loaders leave it unchanged.
    """

    _is_accelerate_prepared = True  # or Accelerate's `prepare` would divide the batches a second time
    _progress: Progress[Any]
    _rows_per_epoch: int
    _workers: Any = None  # `Workers`, if there are any
    sharding: Ranks
    """This process's rank and the number of ranks, read when they are needed."""

    @property
    def _iterator(self) -> Any:
        """The workers, where torch's DataLoader has them: Lightning ends them after a training."""
        return self._workers and self._workers.loader._iterator

    @_iterator.setter
    def _iterator(self, ended: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._workers is not None:
            self._workers.loader._iterator = ended

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.sharding.now()[0]

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.sharding.now()[1]

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # A generator, so that whoever asks for the first batch is known.
        held_back = accumulates()  # by one batch, see `ending_for_accelerate`
        batches = self._progress.iterate(self._following, self._is_at_end, fetched_ahead() + held_back)
        yield from ending_for_accelerate(batches) if held_back else batches

    def _following(self, place: Any) -> Iterator[tuple[Any, Any]]:
        raise NotImplementedError

    def _is_at_end(self, place: Any) -> bool:
        raise NotImplementedError

    def _state_at(self, place: Any) -> dict[str, Any]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch of the running iteration, as less than 1 KB of JSON.

        Raises:
            LoaderStateError: a second iteration was read last, and the first one is still referred to.
        """
        return self._state_at(self._progress.place)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. After a finished epoch the loader moves on by itself.

        A loaded state goes first: until an iteration has begun from it, the epoch that it is in stays chosen, with a
        warning if another one is asked for.

        Raises:
            ValueError: `epoch` is not an integer of at least 0.
        """
        epoch = epoch_number(epoch, self._rows_per_epoch)
        if not self._progress.set_epoch(epoch):
            warnings.warn(
                f"set_epoch({epoch}) has no effect: the loader resumes in epoch {self._progress.start.epoch}, from the "
                "state that was loaded",
                stacklevel=2,
            )

    def _check_counted(self, state: Any, place: Any, own: dict[str, Any]) -> None:
        """Raise a LoaderStateError if a framework that counts batches would end an epoch that is resumed at `place` too
        early or too late: `own` are the counts that decide how many rows the ranks read together at a step."""
        saved = {name: state[name] for name in own}
        framework = counts_batches() if saved != own and any(place[1:]) else None
        if framework and not self._is_at_end(place):
            changed = ", ".join(f"{name} {saved[name]} to {own[name]}" for name in own if saved[name] != own[name])
            raise LoaderStateError(
                f"{framework} counts the batches of an epoch, and would end this one too early or too late ({changed}):"
                " resume with those of the checkpoint, or from one at the end of an epoch"
            )
