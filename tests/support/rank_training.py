"""`torchrun -m support.rank_training CONFIG…`: trains each config, one after the other, on a store beside it.

A sharded one is described and then trained once more from its first checkpoint: `RUN-<rank>.json` has the class and
placements of each parameter and of each state of the optimizer, and the shapes of this rank's part and of the whole;
`RUN-before` has the run's folder as it was before it was resumed.
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


def main(path: Path) -> None:
    config, store = load_config(path), str(path.parent / "store")
    trainer: Any = train(config, store)
    assert config.training
    if config.training.strategy != "fsdp":
        return
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
    run = str(config.training.output_dir)
    Path(f"{run}-{trainer.args.process_index}.json").write_text(json.dumps(held))
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.copytree(run, f"{run}-before")
        for folder in (f"checkpoint-{config.training.steps}", "model"):
            shutil.rmtree(Path(run) / folder)
    trainer.accelerator.wait_for_everyone()
    train(config, store, resume=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(Path(name))
