"""Run one loader on one workload in this process, and print the result as JSON.

usage: trial.py CONTENDER FOLDER prepare
       trial.py CONTENDER FOLDER speed SECONDS
       trial.py CONTENDER FOLDER properties STATE
       trial.py CONTENDER FOLDER resume STATE

`prepare` writes the loader's own format. `speed` reads batches for some seconds, after as many for warm-up.
`properties` reads an epoch and saves a state from within it to a file, from which `resume` continues.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import BATCH, CONTENDERS, Contender, Rows

INTERRUPT, COMPARED, WINDOW, OFTEN = 301, 3, 1000, 16
"""Batches before a state is saved (fewer for small data), and batches compared after it; rows of a window; batches
between reads of the clock."""


def prepare(contender: Contender) -> dict[str, Any]:
    contender.prepare()
    return {}


def speed(contender: Contender, seconds: str) -> dict[str, float]:
    """Return rows per second, and microseconds per batch."""
    torch.set_num_threads(1)
    batches = contender.batches()
    check(next(batches), contender.rows)

    def read(limit: float) -> tuple[float, int, int]:
        """Read for `limit` seconds, over as many epochs as needed. Return seconds, batches and rows."""
        nonlocal batches
        began, count, rows = time.perf_counter(), 0, 0
        while True:
            for batch in batches:
                rows += len(batch["input_ids"])
                count += 1
                if not count % OFTEN and (took := time.perf_counter() - began) > limit:
                    return took, count, rows
            batches = contender.batches()

    read(float(seconds))
    gc.collect()
    took, count, rows = read(float(seconds))
    return {"rows_a_second": rows / took, "microseconds": took / count * 1e6}


def check(batch: dict[str, Any], rows: Rows) -> None:
    """Fail if a batch is not in the format that all contenders return."""
    names = ["input_ids", "labels", *(["attention_mask"] if rows.ragged else [])]
    shapes = {batch[name].shape for name in names} | ({(BATCH, rows.length)} if not rows.ragged else set())
    if {batch[name].dtype for name in names} != {torch.int64} or len(shapes) > 1:
        raise TypeError(f"batches are of {shapes} and {[batch[name].dtype for name in names]}")


def properties(contender: Contender, path: str) -> dict[str, Any]:
    """Return the fraction of the data that 1,000 rows span, counts of rows not read once, and what follows a state."""
    rows, order, following = contender.rows, [], hashlib.blake2b()
    interrupt = min(INTERRUPT, len(rows) // BATCH // 4)
    known: dict[bytes, int] = {}
    of_row = [known.setdefault(rows[row]["input_ids"].tobytes(), row) for row in range(len(rows))]
    for number, batch in enumerate(contender.batches(), 1):
        if interrupt < number <= interrupt + COMPARED:
            following.update(batch["input_ids"].numpy().tobytes())
        if number == interrupt:
            Path(path).write_bytes(pickle.dumps(contender.state()))
        ids = batch["input_ids"].numpy().astype(rows.ids.dtype)
        masks = batch["attention_mask"].numpy().astype(bool) if "attention_mask" in batch else np.ones_like(ids, bool)
        own = [row[mask].tobytes() for row, mask in zip(ids, masks, strict=True)]
        order += [known.get(row, -1) for row in own if row]  # padding rows are empty
    window = min(WINDOW, len(order))
    windows = np.array(order[: len(order) // window * window]).reshape(-1, window)
    counts = np.bincount(np.array(order) + 1, minlength=len(rows) + 1)
    repeated = int(np.maximum(counts[1:] - np.bincount(of_row, minlength=len(rows)), 0).sum())
    return {
        "span": float(np.mean(np.ptp(windows, axis=1)) / len(rows)),
        "missing": max(len(rows) // contender.ranks - int(counts[1:].sum()) + repeated, 0),
        "repeated": repeated,
        "unknown": int(counts[0]),
        "following": following.hexdigest(),
    }


def resume(contender: Contender, path: str) -> dict[str, Any]:
    """Return a digest of the batches after a state."""
    state = pickle.loads(Path(path).read_bytes())
    if state is None:
        return {"following": None}
    following = hashlib.blake2b()
    for batch in islice(contender.batches(state), COMPARED):
        following.update(batch["input_ids"].numpy().tobytes())
    return {"following": following.hexdigest()}


ACTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    action.__name__: action for action in (prepare, speed, properties, resume)
}


def main(name: str, folder: str, action: str, *rest: str) -> None:
    printed = ACTIONS[action](CONTENDERS[name](Path(folder)), *rest)
    print(json.dumps(printed), flush=True)
    os._exit(0)  # does not wait for threads of loaders


if __name__ == "__main__":
    main(*sys.argv[1:])
