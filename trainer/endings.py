"""What ends a run before its last step: early stopping and SIGTERM; and the lock that keeps another run out."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from tokenloom.errors import ConfigError
from tokenloom.resources.file_lock import lock_exclusive

LOCK = ".lock"


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder while the block runs. The lock ends with the process, however it ends.

    Raises:
        ConfigError: another run is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOCK).touch()
    with lock_exclusive(folder / LOCK, forks=False) as free:
        if not free:
            message = f"training.output_dir: another run trains in {folder}; wait for its end, or set another folder"
            raise ConfigError.at("training.output_dir", message)
        yield


@contextmanager
def on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Call a function when the process gets SIGTERM, while the block runs. Only in the main thread: others get no
    signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


class EarlyStopping(TrainerCallback, ExportableState):
    """Stops a run after so many evaluations in a row without a lower loss than the lowest, that before the first step
    included. The step is saved, and the run counts as finished."""

    def __init__(self, patience: int):
        self.patience = patience
        self.best: float | None = None
        self.worse, self.stopped = 0, False

    def state(self) -> dict[str, Any]:
        attributes = {"best": self.best, "worse": self.worse, "stopped": self.stopped}
        return {"args": {"patience": self.patience}, "attributes": attributes}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        values = saved["attributes"] if saved else {"best": state.best_metric, "worse": 0, "stopped": False}
        self.best, self.worse, self.stopped = values["best"], values["worse"], values["stopped"]

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        loss = metrics.get("eval_loss")
        if loss is None:
            return
        if self.best is None or math.isnan(self.best) or loss < self.best:
            self.best, self.worse = loss, 0
        else:
            self.worse += 1
        if self.worse >= self.patience:
            self.stopped = control.should_training_stop = control.should_save = True
