"""What frameworks do with a loader that the loader cannot see in a call: who asks for its batches says it.

They count batches, fetch one before it is used, or divide rows among ranks a second time. Each of these would lose
rows without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from tokenloom.errors import LoaderStateError

ACCELERATE = "accelerate.data_loader"
RAY = "ray.train.torch.train_loop_utils"
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def _frames() -> Iterator[tuple[FrameType, str]]:
    """Yield the frames around the caller, each with the name of its module."""
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
