"""`python -m support.traced_training ROWS SESSION CONFIG…`: trains each config on the store beside it, and resumes it.

`ROWS/<config>-<session>-<rank>.jsonl` has a line for the step that a session begins after, and one for each step that
it makes, with the tokens of its rows. `trained_rows` returns what all sessions of a run together have trained.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tokenloom.config.dataset import load_config
from tokenloom.loaders import TokenLoader
from tokenloom.trainer import TokenTrainer, train
from tokenloom.trainer.log import read_log


class TracedSteps(TrainerCallback):
    """Writes the rows of each step, as the batches that the loader gave since the step before have them."""

    def __init__(self, folder: Path, name: str, session: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}-{session:03}-{os.environ.get('RANK', '0')}.jsonl"
        self._rows: list[str] = []

    def take(self, batch: dict[str, Any]) -> None:
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            if mask.any():
                self._rows.append(" ".join(map(str, ids[mask == 1].tolist())))

    def _write(self, step: int) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, "rows": self._rows}) + "\n")
        self._rows = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rows = []
        self._write(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._write(state.global_step)


def traced_train(config: Path, folder: Path, session: int) -> TokenTrainer:
    """Train a config on the store beside it, resuming it if it can, and trace its steps."""
    steps, batches = TracedSteps(folder, config.stem, session), TokenLoader.__iter__

    def traced(self: TokenLoader) -> Iterator[dict[str, Any]]:
        for batch in batches(self):
            if self.dataset.dataset.split == "train":  # pyright: ignore[reportAttributeAccessIssue]
                steps.take(batch)
            yield batch

    TokenLoader.__iter__ = traced  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return train(load_config(config), str(config.parent / "store"), resume=True, callbacks=[steps])
    finally:
        TokenLoader.__iter__ = batches  # pyright: ignore[reportAttributeAccessIssue]


def trained_rows(folder: Path, name: str) -> dict[int, list[str]]:
    """Return the rows of each step of a run, on all ranks. A session replaces the steps after which it begins."""
    found: dict[int, list[str]] = {}
    sessions: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"{name}-*.jsonl")):
        sessions.setdefault(path.stem.split("-")[-2], []).append(path)
    for paths in sessions.values():
        ranks = [lines for lines in map(read_log, paths) if lines]
        begin = min((lines[0]["step"] for lines in ranks), default=None)
        found = {step: rows for step, rows in found.items() if begin is None or step <= begin}
        for line in (line for lines in ranks for line in lines[1:]):
            found[line["step"]] = [*found.get(line["step"], []), *line["rows"]]
    return found


if __name__ == "__main__":
    for given in sys.argv[3:]:
        traced_train(Path(given), Path(sys.argv[1]), int(sys.argv[2]))
