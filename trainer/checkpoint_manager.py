"""Saves and loads checkpoints of a training loop of your own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tokenloom.trainer.state_files import check_sealed, new_folder, read_state, write_state


class CheckpointManager:
    """Checkpoints of a training loop: one folder each, which appears complete or not at all.

    `model.safetensors` has the weights under the names of `state_dict`; other parts are safetensors and JSON too.
    Loading runs no code from a checkpoint. `TokenTrainer` writes its own checkpoints.

    Args:
        checkpoint_dir: folder of the checkpoints.
    """

    def __init__(self, checkpoint_dir: str | os.PathLike[str]):
        self.checkpoint_dir = Path(checkpoint_dir)

    def save(
        self,
        model: nn.Module,
        optimizer: Any = None,
        scheduler: Any = None,
        epoch: int = 0,
        metrics: Mapping[str, float] | None = None,
        custom_state: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint and return its folder, `epoch-<epoch>`, numbered if it exists already.

        Args:
            model, optimizer, scheduler: have `state_dict`; the last two can be None.
            custom_state: tensors, mappings, lists, numbers and text, such as `loader.state_dict()`.

        Raises:
            TypeError: a state contains something else.
        """
        base = path = self.checkpoint_dir / f"epoch-{epoch:04d}"
        number = 1
        while path.exists():
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        with new_folder(path) as folder:
            write_state(folder, "model", model.state_dict())
            states = {
                "optimizer": optimizer and optimizer.state_dict(),
                "scheduler": scheduler and scheduler.state_dict(),
                "epoch": epoch,
                "metrics": dict(metrics or {}),
                "custom_state": dict(custom_state or {}),
            }
            write_state(folder, "state", states)
        return path

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return what `save` was given: `model`, `optimizer` and `scheduler` as states for `load_state_dict`, and
        `epoch`, `metrics` and `custom_state`. Tensors are on the CPU.

        Raises:
            StoreError: the checkpoint is not complete, or damaged.
        """
        check_sealed(Path(path))
        return {"model": read_state(Path(path), "model"), **read_state(Path(path), "state")}

    def latest(self) -> Path | None:
        """Return the last checkpoint of the last epoch, or None if there is none."""
        found = [(match, path) for path in self.checkpoint_dir.glob("epoch-*") if (match := _NAME.fullmatch(path.name))]
        return max(found, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 1)))[1] if found else None


_NAME = re.compile(r"epoch-(\d+)(?:-(\d+))?")
