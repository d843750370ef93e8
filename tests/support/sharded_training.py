"""`torchrun -m support.sharded_training CONFIG STORE OUTPUT [resume]`: trains, and writes how each rank held the model.

The file `OUTPUT-<rank>.json` has the class and the placements of each parameter and of each state of the optimizer, and
the shapes of this rank's part and of the whole.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tokenloom.config.load import load_config
from tokenloom.trainer import train


def described(value: Any) -> dict[str, Any]:
    sharded = isinstance(value, DTensor)
    return {
        "class": type(value).__name__,
        "placements": [str(placement) for placement in value.placements] if sharded else [],
        "part": list(value.to_local().shape) if sharded else list(value.shape),
        "whole": list(value.shape),
    }


def main(config: str, store: str, output: str, resume: str = "") -> None:
    trainer: Any = train(load_config(config), store, resume=bool(resume))
    layers = [module for module in trainer.model.modules() if isinstance(module, FSDPModule)]
    states = [
        {name: described(value) for name, value in state.items() if value.ndim}
        for state in trainer.optimizer.state.values()
    ]
    found = {
        "wrapped": [type(module).__name__ for module in layers],
        "parameters": {name: described(value) for name, value in trainer.model.named_parameters()},
        "optimizer": states,
    }
    Path(f"{output}-{trainer.args.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
