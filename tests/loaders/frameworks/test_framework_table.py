"""Every framework with every loader: each row of an epoch is read once over all ranks, or a sentence says why not.

The table of docs/train/frameworks_and_loaders.md is what the soak finds here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.framework_reads import FRAMEWORKS, LOADERS, STOP
from support.paths import ROOT, TESTS
from support.processes import run
from support.soak import machine, sweep
from support.stored_sequences import write_numbered

pytestmark = machine("ranks")

ROWS, BATCH, RANKS = 53, 4, 2
ONCE = "each row once"
SITUATIONS = ("first epoch", "second epoch", "resumed", "other ranks", "other batch")
PAGE = ROOT / "docs" / "train" / "frameworks_and_loaders.md"

Row = tuple[int, ...]


class Reading:
    """What a framework reads from some loaders, on two ranks and then on one."""

    def __init__(self, folder: Path, framework: str, loaders: list[str]):
        self.folder, self.framework, self.loaders = folder, framework, loaders
        folder.mkdir()
        write_numbered(folder / "store", "data", [30, 23], 9, first=1)
        (folder / "text.txt").write_text("\n".join(str(number) for number in range(1, 4 * ROWS + 2)))
        self.ranks = self._launch(RANKS, ["two epochs", "until a checkpoint", "resumed", "other batch"])
        self.alone = self._launch(1, ["other ranks"])

    def _launch(self, world: int, situations: list[str]) -> list[dict[str, dict[str, Any]]]:
        given = {"rows": ROWS, "batch": BATCH, "world": world, "loaders": self.loaders, "situations": situations}
        given |= {
            "store": str(self.folder / "store"),
            "text": str(self.folder / "text.txt"),
            "folder": str(self.folder),
        }
        path = self.folder / f"settings-{world}.json"
        path.write_text(json.dumps(given))
        program = ["-m", "support.framework_reads", self.framework, path]
        if self.framework not in ("mp.spawn", "Ray Train"):
            program = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", *program]
        run([sys.executable, *program], cwd=TESTS, check=True, seconds=60 + 15 * len(self.loaders))
        return [json.loads((self.folder / f"{rank}-of-{world}.json").read_text()) for rank in range(world)]

    def verdicts(self, loader: str) -> dict[str, str]:
        """Return for each situation that each row was read once, or the sentence that says why not."""
        ranks, (alone,) = [rank[loader] for rank in self.ranks], [rank[loader] for rank in self.alone]
        epochs, before = [rank["two epochs"] for rank in ranks], [rank["until a checkpoint"] for rank in ranks]
        half = len(epochs[0]) // 2
        return {
            "first epoch": self.verdict(
                loader, [steps if isinstance(steps, str) else steps[:half] for steps in epochs]
            ),
            "second epoch": self.verdict(
                loader, [steps if isinstance(steps, str) else steps[half:] for steps in epochs]
            ),
            "resumed": self.verdict(before, [rank["resumed"] for rank in ranks]),
            "other ranks": self.verdict(before, [alone["other ranks"]]),
            "other batch": self.verdict(before, [rank["other batch"] for rank in ranks]),
        }

    def verdict(self, *parts: list[Any]) -> str:
        every = [steps for part in parts for steps in part]
        refused = {steps for steps in every if isinstance(steps, str)}
        if refused:
            return min(refused, key=lambda text: (not is_sentence(text), "imed out" in text, text))
        read = Counter(tuple(row) for steps in every for step in steps for row in step)
        repeated = {row: count for row, count in read.items() if count > 1}
        if len(read) == ROWS and not repeated:
            return ONCE
        return f"wrong: {len(read)} of {ROWS} rows were read, {len(repeated)} of them several times"


COVER = [(framework, LOADERS[number % len(LOADERS)]) for number, framework in enumerate(FRAMEWORKS)]
"""A cell of each framework, which hold each loader."""


def is_sentence(verdict: str) -> bool:
    kind, _, text = verdict.partition(": ")
    return kind.endswith("Error") and kind not in ("KeyError", "IndexError", "AttributeError") and "\n" not in text


@pytest.mark.parametrize(("framework", "loader"), COVER)
def test_a_framework_reads_a_loader(framework: str, loader: str, tmp_path: Path) -> None:
    verdicts = Reading(tmp_path / "read", framework, [loader]).verdicts(loader)
    assert verdicts["first epoch"] == ONCE or is_sentence(verdicts["first epoch"]), verdicts
    assert all(verdict == ONCE or is_sentence(verdict) for verdict in verdicts.values()), verdicts


@sweep
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_reads_all_loaders(framework: str, tmp_path: Path) -> None:
    reading = Reading(tmp_path / "read", framework, [*LOADERS])
    found = {loader: reading.verdicts(loader) for loader in LOADERS}
    wrong = {
        (loader, situation): verdict
        for loader, verdicts in found.items()
        for situation, verdict in verdicts.items()
        if verdict != ONCE and not is_sentence(verdict)
    }
    assert not wrong
    print(json.dumps(found, indent=1))


assert STOP * RANKS * BATCH < ROWS
