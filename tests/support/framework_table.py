"""What frameworks read from loaders, and its page: `python -m support.framework_table` writes that."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from support.framework_reads import FRAMEWORKS, LOADERS
from support.paths import ROOT, TESTS
from support.processes import run
from support.stored_sequences import write_numbered

ROWS, BATCH, RANKS = 53, 4, 2
ONCE = "each row once"
SITUATIONS = ("first epoch", "second epoch", "resumed", "other ranks", "other batch")
PAGE = ROOT / "docs" / "train" / "frameworks_and_loaders.md"

REFUSALS = {
    "a": ("skip_first_batches counts batches", "Trainer and Accelerate skip batches that they have counted, whatever "
          "their size was. Load the state of the loader; for Trainer, use `TokenLoaderMixin`."),
    "b": ("divides its rows among ranks itself", "the dataset divides its rows among ranks itself. Do not pass its "
          "`DataLoader` to `prepare`."),
    "c": ("counts the batches of an epoch", "Lightning counts the batches of an epoch, so it cannot finish one with "
          "batches of another size. Resume with the same, or at the end of an epoch."),
    "d": ("the state is from another run", "a stream resumes with the same number of ranks and the same batch size."),
    "e": ("no state to resume from", "torch's `DataLoader` over the dataset has no state. Save the dataset's, or use "
          "torchdata's `StatefulDataLoader`."),
    "f": ("Expected 'attention_mask'", "TRL needs an `attention_mask`, which these batches do not have."),
}  # fmt: skip
"""The sentences with which a cell is refused: how each is recognized, and what the page says."""


class Reading:
    """What a framework reads from some loaders, on two ranks and then on one."""

    def __init__(self, folder: Path, framework: str, loaders: list[str]):
        self.folder, self.framework, self.loaders = folder, framework, loaders
        folder.mkdir()
        write_numbered(folder / "store", "data", [30, 23], 9, first=1)
        (folder / "text.txt").write_text("\n".join(str(number) for number in range(1, 4 * ROWS + 2)))
        self.ranks = self._launch(RANKS, ["two epochs", "until a checkpoint", "resumed", "other batch"])
        (self.alone,) = self._launch(1, ["other ranks"])

    def _launch(self, world: int, situations: list[str]) -> list[dict[str, dict[str, Any]]]:
        given = {"rows": ROWS, "batch": BATCH, "world": world, "loaders": self.loaders, "situations": situations}
        paths = {"store": self.folder / "store", "text": self.folder / "text.txt", "folder": self.folder}
        path = self.folder / f"settings-{world}.json"
        path.write_text(json.dumps(given | {name: str(path) for name, path in paths.items()}))
        program: list[Any] = ["-m", "support.framework_reads", self.framework, path]
        if self.framework not in ("mp.spawn", "Ray Train"):
            program = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", *program]
        run([sys.executable, *program], cwd=TESTS, check=True, seconds=60 + 15 * len(self.loaders))
        return [json.loads((self.folder / f"{rank}-of-{world}.json").read_text()) for rank in range(world)]

    def verdicts(self, loader: str) -> dict[str, str]:
        """Return for each situation that each row was read once, or the sentence that says why not."""
        ranks = [rank[loader] for rank in self.ranks]
        epochs, before = [rank["two epochs"] for rank in ranks], [rank["until a checkpoint"] for rank in ranks]
        half = len(epochs[0]) // 2
        parts = [[steps if isinstance(steps, str) else steps[:half] for steps in epochs]]
        parts.append([steps if isinstance(steps, str) else steps[half:] for steps in epochs])
        parts += [[*before, *(rank[situation] for rank in ranks)] for situation in ("resumed", "other batch")]
        parts.insert(3, [*before, self.alone[loader]["other ranks"]])
        return {situation: verdict(steps) for situation, steps in zip(SITUATIONS, parts, strict=True)}


def verdict(read: list[Any]) -> str:
    """Return whether each row is in the steps that ranks read once; or the sentence with which one was refused."""
    refused = [steps for steps in read if isinstance(steps, str)]
    if refused:
        return min(refused, key=lambda text: (not is_sentence(text), text))
    counted = Counter(tuple(row) for steps in read for step in steps for row in step)
    if len(counted) == ROWS == counted.total():
        return ONCE
    return f"wrong: {len(counted)} of {ROWS} rows were read, {counted.total()} in all"


def is_sentence(text: str) -> bool:
    return any(part in text for part, _ in REFUSALS.values()) and "\n" not in text


def cell(verdicts: dict[str, str]) -> str:
    """Return a cell of the page: a letter for each situation, or one sign if all are right."""
    signs = "".join(
        "✓" if found == ONCE else next((sign for sign, (part, _) in REFUSALS.items() if part in found), "✗")
        for found in verdicts.values()
    )
    return "✓" if set(signs) == {"✓"} else f"`{signs}`"


def line(framework: str, cells: list[str]) -> str:
    return f"| {framework} | {' | '.join(cells)} |"


HEAD = f"""# Frameworks and loaders

What each framework reads from each loader: each row of an epoch once over all ranks, or a sentence says why not.

```bash
cd tests && python -m support.framework_table    # writes this page, from {ROWS} rows on {RANKS} processes
```

Each cell shows five situations, in this order: the first epoch, the second epoch, a checkpoint from the middle of an
epoch resumed, resumed on one process instead of two, and resumed with a batch size of {2 * BATCH} instead of {BATCH}. A
single ✓ means that each row was read once in all five. Loaders were created before ranks were known. torchtitan is
not installed here: its loop is written from its documentation. `StreamingPreprocessedDataset` is read by torch's own
`DataLoader`, the others by the loaders that their names say.

"""


def page(cells: dict[str, list[str]]) -> str:
    head = line("framework", [f"`{name}`" if "," not in name else f"`{name.replace(',', '`,')}" for name in LOADERS])
    table = [head, line("---", ["---"] * len(LOADERS)), *(line(name, found) for name, found in cells.items())]
    legend = "\n".join(f"- `{sign}`: {text}" for sign, (_, text) in REFUSALS.items())
    return HEAD + "\n".join(table) + "\n\nWhat is refused, and what to do:\n\n" + legend + "\n"


def read_cells(framework: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        reading = Reading(Path(folder) / "read", framework, [*LOADERS])
        found = {loader: reading.verdicts(loader) for loader in LOADERS}
    for loader, verdicts in found.items():
        for situation, text in verdicts.items():
            if text != ONCE and not is_sentence(text):
                print(f"{framework} | {loader} | {situation}: {text[:300]}", file=sys.stderr)
    return [cell(verdicts) for verdicts in found.values()]


def main() -> None:
    cells: dict[str, list[str]] = {}
    for framework in FRAMEWORKS:
        cells[framework] = read_cells(framework)
        print(line(framework, cells[framework]), flush=True)
    PAGE.write_text(page(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
