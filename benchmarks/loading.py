"""Time tokenloom's loader against other loaders and a plain NumPy loop, on the same rows, in one run.

usage: loading.py --prepare [--tokens N]
       loading.py [--tokens N] [--runs N] [--seconds S] [--workloads W1 W2] [--only NAME ...]

W1: rows of Alpaca with phi-2's tokenizer if $TOKENLOOM_REAL_DATA is set, else those of the quickstart, in batches of 8,
padded to the longest. W2: batches of 8 × 2,048 from a stream of N tokens. Batches are int64 `input_ids` and `labels`,
in W1 also `attention_mask`; tokenloom always returns the mask, and for packed rows position_ids and cu_seqlens, as the
floor for packed rows does.

`--prepare` installs the other loaders in environments by pip, builds the datasets, and writes each loader's own format,
all in $BENCH_HOME (~/.cache/tokenloom-bench); existing files are kept. Loaders that are not installed are reported and
skipped. Each trial is a separate process; contenders take turns, in another order each run. tokenloom shuffles, reads
one rank's rows, and returns its state every 100 batches. Prints medians, ratios within the runs, and properties of an
epoch: how much of the data 1,000 rows span, whether each row occurs once, and whether another process that loads a
state continues with the same batches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from environments import interpreter, make_environments
from peers import CONTENDERS
from workloads import make_workloads

from tokenloom.resources.engines.engine import cpu_count

QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "LITDATA_DISABLE_VERSION_CHECK": "1"}
FLOOR, OWN, GLOBAL, FAULTS = "floor", "tokenloom", 0.95, ("missing", "repeated", "unknown")
"""The baseline, the prefix of tokenloom's names, the minimum span of a global shuffle, and the faults reported."""
HEAD = (
    "loader",
    "M tokens/s",
    "µs per batch",
    "of the floor",
    "of the best other",
    "of the best that shuffles and resumes",
    "1,000 rows span",
    "each row once",
    "resumes exactly",
)


class Trial:
    """A contender on the rows of a folder.

    Attributes:
        kind: its name in `CONTENDERS`.
        speeds: tokens per second of each run.
    """

    def __init__(self, home: Path, folder: Path, kind: str):
        self.home, self.folder, self.kind = home, folder, kind
        self.label = f"{kind}, packed rows" if folder.name == "packed" else kind
        self.speeds: list[float] = []
        self.microseconds: list[float] = []
        self.seen: dict[str, Any] = {}

    @property
    def other(self) -> bool:
        return self.kind != FLOOR and not self.kind.startswith(OWN)

    @property
    def shuffles_and_resumes(self) -> bool:
        return self.seen["span"] > GLOBAL and self.seen["resumes"] == "yes"

    def run(self, action: str, *rest: str) -> dict[str, Any]:
        """Run an action in a separate process and return the JSON that it prints.

        Raises:
            ChildProcessError: the process fails; the message is the last line of its errors.
        """
        contender: Any = CONTENDERS[self.kind]
        python = interpreter(self.home, getattr(contender, "func", contender).environment)
        if not python.exists():
            raise ChildProcessError("not installed: run with --prepare")
        command = [str(python), str(Path(__file__).with_name("trial.py")), self.kind, str(self.folder), action, *rest]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **QUIET})
        if done.returncode:
            raise ChildProcessError(([*done.stderr.splitlines(), f"exit {done.returncode}"])[-2 if done.stderr else -1])
        return json.loads(done.stdout.splitlines()[-1])

    def inspect(self) -> None:
        """Measure the properties of an epoch."""
        state = str(self.home / "state")
        self.seen = self.run("properties", state)
        following = self.run("resume", state)["following"]
        self.seen["resumes"] = "—" if following is None else "yes" if following == self.seen["following"] else "no"

    def time(self, seconds: float) -> None:
        """Read batches for some seconds and record the speed."""
        offsets = np.load(self.folder / "offsets.npy", mmap_mode="r")
        speed = self.run("speed", str(seconds))
        self.speeds.append(speed["rows_a_second"] * int(offsets[-1]) / (len(offsets) - 1))
        self.microseconds.append(speed["microseconds"])

    def cells(self, floor: Trial | None, others: list[Trial]) -> list[str]:
        """Return a row of the table, with ratios computed run by run."""

        def ratio(against: list[Trial]) -> str:
            if not against:
                return "—"
            best = (max(speeds) for speeds in zip(*(trial.speeds for trial in against), strict=True))
            return f"{statistics.median(own / other for own, other in zip(self.speeds, best, strict=True)):.2f}"

        faults = ", ".join(f"{self.seen[fault]:,} {fault}" for fault in FAULTS if self.seen[fault])
        return [
            self.label,
            f"{statistics.median(self.speeds) / 1e6:.2f}",
            f"{statistics.median(self.microseconds):.0f}",
            ratio([floor] if floor else []),
            ratio(others),
            ratio([trial for trial in others if trial.shuffles_and_resumes]),
            f"{self.seen['span']:.0%}",
            faults or "yes",
            self.seen["resumes"],
        ]


def trials(home: Path, folder: Path, workload: str, only: list[str]) -> list[Trial]:
    """Return the installed contenders of a workload, after writing each one's own format."""
    rows = folder / ("sft" if workload == "W1" else "stream")
    selected = [Trial(home, rows, kind) for kind in only or CONTENDERS]
    if workload == "W2":
        selected += [Trial(home, folder / "packed", kind) for kind in only or CONTENDERS if kind in (FLOOR, OWN)]
    ready = []
    for trial in selected:
        try:
            trial.run("prepare")
            ready.append(trial)
        except ChildProcessError as error:
            print(f"{workload}: {trial.label} is skipped: {error}", file=sys.stderr)
    return ready


def timed(trials: list[Trial], runs: int, seconds: float) -> list[Trial]:
    """Time the trials and return those that complete all their runs."""

    def completed(trial: Trial, run: Callable[[], None]) -> bool:
        try:
            run()
        except ChildProcessError as error:
            print(f"{trial.label} is skipped: {error}", file=sys.stderr)
            return False
        return True

    trials = [trial for trial in trials if completed(trial, trial.inspect)]
    for number in range(runs):
        order = random.Random(number).sample(trials, len(trials))
        failed = [trial for trial in order if not completed(trial, lambda trial=trial: trial.time(seconds))]
        trials = [trial for trial in trials if trial not in failed]
    return trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", action="store_true", help="install and write what is missing, and time nothing")
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="per trial, after as many for warm-up")
    parser.add_argument("--workloads", nargs="+", choices=["W1", "W2"], default=["W1", "W2"])
    parser.add_argument(
        "--only", nargs="+", choices=[*CONTENDERS], default=[], metavar="NAME", help=", ".join(CONTENDERS)
    )
    options = parser.parse_args()
    home = Path(os.environ.get("BENCH_HOME") or Path.home() / ".cache" / "tokenloom-bench")
    folder = home / f"{'alpaca' if os.environ.get('TOKENLOOM_REAL_DATA') else 'quickstart'}-{options.tokens}"
    if options.prepare:
        make_environments(home)
    make_workloads(folder, options.tokens)
    for workload in options.workloads:
        ready = trials(home, folder, workload, options.only)
        if options.prepare:
            continue
        done = timed(ready, options.runs, options.seconds)
        floor = next((trial for trial in done if trial.label == FLOOR), None)
        others = [trial for trial in done if trial.other]
        print(f"\n{workload}: {cpu_count()} cores, {options.runs} runs of {options.seconds:g} s, medians\n")
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        for trial in sorted(done, key=lambda trial: -statistics.median(trial.speeds)):
            print(f"| {' | '.join(trial.cells(floor, others))} |")


if __name__ == "__main__":
    main()
