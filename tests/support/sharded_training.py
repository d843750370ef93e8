"""`torchrun -m support.sharded_training CONFIG STORE RUN STEP`: trains to the end, then once more from a checkpoint.

`RUN-<rank>.json` has the class and placements of each parameter and of each state of the optimizer, and the shapes of
this rank's part and of the whole. `RUN-before` has the run's folder as it was before it was resumed.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tokenloom.config.dataset import load_config
from tokenloom.trainer import train


def described(value: Any) -> dict[str, Any]:
    sharded = isinstance(value, DTensor)
    return {
        "class": type(value).__name__,
        "placements": [str(placement) for placement in value.placements] if sharded else [],
        "part": list(value.to_local().shape) if sharded else list(value.shape),
        "whole": list(value.shape),
    }


def main(config: str, store: str, run: str, step: str) -> None:
    trainer: Any = train(load_config(config), store)
    held = {
        "wrapped": [type(module).__name__ for module in trainer.model.modules() if isinstance(module, FSDPModule)],
        "parameters": [described(value) for value in trainer.model.parameters()],
        "optimizer": [
            described(value)
            for state in trainer.optimizer.state.values()
            for value in state.values()
            if getattr(value, "ndim", 0)
        ],
    }
    Path(f"{run}-{trainer.args.process_index}.json").write_text(json.dumps(held))
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.copytree(run, f"{run}-before")
        for folder in (f"checkpoint-{step}", "model"):
            shutil.rmtree(Path(run) / folder)
    trainer.accelerator.wait_for_everyone()
    train(load_config(config), store, resume=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
