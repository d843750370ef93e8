"""`python -m support.stopped_training PLACE NUMBER HOW ARGUMENT…`: `tokenloom ARGUMENT…`, which is stopped at a place.

PLACE: `step`, in the middle of step NUMBER; `save`, before checkpoint NUMBER appears; `model`, before the model does;
`evaluation`, at batch NUMBER of all evaluations. HOW: the name of a signal, which the process sends to itself, under
torchrun to its parent; `full`, no file can grow beyond 20 KB from here on; `error`, an exception.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from tokenloom.cli import main
from tokenloom.trainer import TokenTrainer, checkpoints, run
from tokenloom.trainer.__main__ import main as train_on_ranks

LIMIT = 20_000


def stop(how: str) -> None:
    if how == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
    elif how == "error":
        raise RuntimeError("planted")
    elif "RANK" not in os.environ:
        os.kill(os.getpid(), getattr(signal, how))
    elif os.environ["RANK"] == "0":
        os.kill(os.getppid(), getattr(signal, how))


def plant(place: str, number: int, how: str) -> None:
    """Stop the process once it is at a place."""
    count = 0

    def at(owner: Any, name: str, here: Any) -> None:
        original = getattr(owner, name)

        def planted(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if here(*args):
                stop(how)
            return original(*args, **kwargs)

        setattr(owner, name, planted)

    if place == "step":
        at(TokenTrainer, "training_step", lambda trainer, *_: trainer.state.global_step + 1 == number)
    elif place == "evaluation":
        at(TokenTrainer, "_evaluated", lambda *_: count == number)
    else:
        name = f"checkpoint-{number}" if place == "save" else "model"
        for module in (checkpoints, run):
            at(module, "publish", lambda _, path: Path(path).name == name)


if __name__ == "__main__":
    plant(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    if "RANK" not in os.environ:
        sys.exit(main(sys.argv[4:]))
    sys.argv[1:] = sys.argv[5:]  # without the command
    sys.exit(train_on_ranks())
