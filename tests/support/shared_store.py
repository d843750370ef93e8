"""Builders, `gc --delete` and a reader with a pin, at once on one store, while some of them are stopped and continued.

`python -m support.shared_store FOLDER SECONDS AGE SEED` runs one process each and prints what they did, as JSON. FOLDER
is written by `write_folder` and `prepare`. `gc` removes what is older than AGE seconds. Processes are forked after the
imports, which take longer than a short run.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from support.builds import SMALL
from support.datasets_on_disk import STAGES, rows, write_dataset
from support.processes import DEADLINE
from tokenloom import open_dataset
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.building.target import BuildTarget, open_target
from tokenloom.cli.main import main
from tokenloom.config.dataset import load_config
from tokenloom.loaders import TokenLoader, batch_digest
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

VARIANTS = 4
BUILDERS = {"a": "a/a.yaml", "b": "b/b.yaml", "mix": "mix/mix.yaml"}
"""YAML by builder. `mix` mixes `c` and its own rows of `a`, which it builds, with `b` as it is stored."""

RUN = "run"
ROUNDS = 2
FREED = ("versions", "actions", "objects")
PATIENCE = DEADLINE / 2
"""Seconds that processes have after the time is over, until each has done ROUNDS rounds and gc has freed all that is in
`FREED`."""

STOPPED = 2
"""Maximum number of processes that are stopped at the same time."""

Log = Callable[[dict[str, Any]], None]
IsOver = Callable[[], bool]


def write_folder(folder: Path, tokenizer: Path) -> None:
    """Write the YAMLs of all builders, and the rows of each variant as `NAME.jsonl.VARIANT` next to them."""
    named = {"name_or_path": str(tokenizer), "max_length": 128}
    for number, (place, name) in enumerate((("a", "a"), ("b", "b"), ("mix", "a"), ("mix", "c"))):
        write_dataset(folder / place, 1, name, tokenizer=named)
        for variant in range(VARIANTS):
            own = [*rows(240, number), *rows(40, 100 + variant), *rows(120, 200 + number)]
            text = "".join(json.dumps(row) + "\n" for row in own)
            (folder / place / f"{name}.jsonl.{variant}").write_text(text)
    mixed = [{"dataset": name, "weight": 1.0, "by": "rows"} for name in "abc"]
    (folder / "mix/mix.yaml").write_text(yaml.safe_dump({"mixture": mixed}))


def prepare(folder: Path) -> None:
    """Build what `mix` uses as stored and what the reader pins."""
    for name in ("a", "b"):
        build(folder / BUILDERS[name], folder / "store", 0)
    ArtifactStore(folder / "store").pin("a", RUN)


def build(config: Path, store: Path, variant: int) -> tuple[BuildTarget, dict[str, str]]:
    """Build one variant of a builder's YAML; returns the digest of each stage, by its label in reports."""
    for source in config.parent.glob(f"*.jsonl.{variant}"):
        edited = source.with_suffix(".new")
        edited.write_bytes(source.read_bytes())
        edited.replace(source.with_suffix(""))
    target = open_target(load_config(config), ArtifactStore(store), ComputeEngine(2))
    for each in target.builds.values():
        each.chunk_size = SMALL
    digests = {report.name: report.digest for report in target.run_all()}
    if (published := target.publish()) is not None:
        digests |= {f"{each['dataset']} in mix": each["digest"] for each in published[0].facts["datasets"]}
    return target, digests


def batches(dataset: Any) -> list[str]:
    """Return the digest of each batch of an epoch."""
    return [batch_digest(batch) for batch in TokenLoader(dataset, batch_size=32, seed=1)]


def _builder(config: Path, store: Path, is_over: IsOver, log: Log) -> None:
    for turn in itertools.count():
        if is_over():
            return
        variant = turn % VARIANTS
        target, digests = build(config, store, variant)
        log({"variant": variant, "digests": digests, "batches": batches(target.open_split("train"))})


def _collector(store: Path, age: int, is_over: IsOver, log: Log) -> None:
    command = ["gc", "--store", str(store), "--keep", "1", "--older-than", f"{age}s", "--delete", "--json"]
    while not is_over():
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
            status = main(command)
        assert status == 0, errors.getvalue()
        done = json.loads(out.getvalue())
        log({kind: done[kind]["count"] for kind in FREED})
        time.sleep(0.05)


def _reader(store: Path, is_over: IsOver, log: Log) -> None:
    first = batches(open_dataset("a", store=store, pin=RUN))
    while not is_over():
        read = batches(open_dataset("a", store=store, pin=RUN))
        assert read == first, "the reader read other batches"
        log({"batches": len(read)})
        time.sleep(0.05)


def _fork(name: str, folder: Path, function: Callable[[Log], None]) -> int:
    """Run a function in a child process that appends what it logs to `NAME.log`, and its error to `NAME.error`."""
    (folder / f"{name}.log").touch()
    if child := os.fork():
        return child
    try:
        with (folder / f"{name}.log").open("a") as file:

            def log(entry: dict[str, Any]) -> None:
                file.write(json.dumps(entry) + "\n")
                file.flush()

            function(log)
        os._exit(0)
    except BaseException:
        (folder / f"{name}.error").write_text(traceback.format_exc())
        os._exit(1)


def _stop_and_continue(stoppable: list[int], longest: float, seed: int, is_over: IsOver) -> int:
    """Stop and continue processes at random until the time is over or one has ended; returns the number of stops."""
    draw, resume, stops = random.Random(seed), dict[int, float](), 0
    while not is_over() and os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = time.monotonic()
        for child in [child for child, moment in resume.items() if moment <= now]:
            os.kill(child, signal.SIGCONT)
            del resume[child]
        if len(resume) < STOPPED and draw.random() < 0.2:
            child = draw.choice([child for child in stoppable if child not in resume])
            os.kill(child, signal.SIGSTOP)
            resume[child] = now + draw.uniform(0.02, longest)
            stops += 1
        time.sleep(draw.uniform(0.0, 0.05))
    for child in resume:
        os.kill(child, signal.SIGCONT)
    return stops


def _run(folder: Path, seconds: float, age: int, seed: int) -> dict[str, Any]:
    store, over, begun = folder / "store", folder / "over", time.monotonic()
    for stage in STAGES:
        stage_named(stage)  # imports it
    functions: dict[str, Callable[[Log], None]] = {
        name: lambda log, config=config: _builder(folder / config, store, over.exists, log)
        for name, config in BUILDERS.items()
    }
    functions["gc"] = lambda log: _collector(store, age, over.exists, log)
    functions["reader"] = lambda log: _reader(store, over.exists, log)

    def is_over() -> bool:
        if (passed := time.monotonic() - begun) < seconds:
            return False
        logs = {name: (folder / f"{name}.log").read_text().split("\n")[:-1] for name in functions}
        freed = [json.loads(line) for line in logs["gc"]]
        done = min(map(len, logs.values())) >= ROUNDS and all(sum(each[kind] for each in freed) for kind in FREED)
        return done or passed > seconds + PATIENCE

    children = {_fork(name, folder, function): name for name, function in functions.items()}
    try:
        stoppable = [child for child, name in children.items() if name != "reader"]
        stops = _stop_and_continue(stoppable, 2.0 * age + 0.5, seed, is_over)
    except BaseException:
        for child in children:
            os.kill(child, signal.SIGKILL)
        raise
    over.touch()
    ended = {name: os.waitpid(child, 0)[1] for child, name in children.items()}
    logs = {name: [json.loads(line) for line in (folder / f"{name}.log").open()] for name in functions}
    errors = {path.stem: path.read_text() for path in folder.glob("*.error")}
    return {"seconds": time.monotonic() - begun, "stops": stops, "ended": ended, "errors": errors, "logs": logs}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.redirect_stdout(sys.stderr):
        found = _run(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps(found))
