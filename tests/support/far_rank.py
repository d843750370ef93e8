"""One rank of a run that reads a dataset from a far store, as `torchrun` or `python` starts it.

usage: python -m support.far_rank STORE FOLDER ARGUMENTS [STATE]

ARGUMENTS are those of the loader, as JSON; `window_rows` is the number of rows of a window of the block shuffle. Reads
an epoch, and writes the digest and the rows of each batch to FOLDER/RANK.json. Ranks wait for each other at every step,
as training does. With STATE, a file, it reads only the batch after it, and writes its digest and the seconds from
`open_dataset` on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tokenloom.loaders import TokenLoader, batch_digest, open_dataset
from tokenloom.loaders.order import row_order

Step = tuple[str, list[list[int]]]
"""A batch's digest, and the tokens of its rows without padding rows."""


def steps_of(batches: Iterable[dict[str, Any]]) -> list[Step]:
    found = []
    for batch in batches:
        kept = zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
        rows = [ids[mask].tolist() for ids, mask in kept if mask.any()]
        found.append((batch_digest(batch), rows))
        if dist.is_initialized():
            dist.all_reduce(torch.ones(1))
    return found


def main() -> None:
    store, folder, arguments, *state = sys.argv[1:]
    options: dict[str, Any] = json.loads(arguments)
    row_order.WINDOW_ROWS = options.pop("window_rows")
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    started = time.perf_counter()
    loader = TokenLoader(open_dataset("far", store=store), **options)
    if state:
        loader.load_state_dict(json.loads(Path(state[0]).read_text()))
        batches = iter(loader)
        found: dict[str, Any] = {"first": batch_digest(next(batches)), "seconds": time.perf_counter() - started}
    else:
        found = {"steps": steps_of(loader)}
    (Path(folder) / f"{loader.rank}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
