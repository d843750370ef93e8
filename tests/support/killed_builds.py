"""Kills builds and `gc` at chosen file operations and at random moments, and checks the store after each kill.

`python -m support.killed_builds FOLDER SEED KILLS [SCENARIO]` prints a line per kill: its number, the scenario,
where the process was killed, and what was found. Processes are forked from this one, which imports what they need and
builds nothing.
"""

from __future__ import annotations

import gzip
import importlib
import json
import math
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml
from blake3 import blake3

from support.builds import build, digests, frozen_tokenizer
from support.datasets_on_disk import PROMPT, rows, write_dataset
from support.garbage import DAY, gc
from support.golden_datasets import write_golden
from support.store_files import age, stems
from tokenloom.assets.building import build as building
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import ChainTask, LinkTask
from tokenloom.assets.building.target import open_target
from tokenloom.config.dataset import load_config
from tokenloom.errors import DatasetNotFoundError
from tokenloom.loaders import TokenLoader, open_dataset, open_mixture
from tokenloom.loaders.reading.batch import batch_digest
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.manifest import MIXTURE
from tokenloom.resources.store.verify import verify

Work = Callable[[Path], Any]
Operation = tuple[str, int]
"""A file operation: stage, kind and folder in one text, and its number among those of the same text."""

OPERATIONS = {
    "open": 0,
    "os.mkdir": 0,
    "os.rename": 1,
    "os.link": 1,
    "os.remove": 0,
    "os.utime": 0,
    "os.scandir": 0,
}
"""Audit events of file operations, each raised before the operation, and the argument that is the path."""
MOST_KILLED = 4
"""Largest number of times that the processes of one store are killed."""
SPARED = 0.4
"""How often one of several processes is not killed."""


@dataclass
class Scenario:
    """Processes that run at the same time on one store.

    Attributes:
        works: what each process runs.
        before: what makes the store that they start from.
        published: digests that each name can have: those of the store before, and of the finished one.
        kept: the names that can be opened before.
        after: what each of the works returns.
        operations: how many file operations of each kind each of the works has.
        seconds: how long the works take, run at the same time.
        timed: fraction of the kills that are at random moments, not before a file operation.
        most_killed: largest number of times that the processes of one store are killed.
    """

    works: list[Work]
    before: list[Work] = field(default_factory=list[Work])
    published: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    kept: set[str] = field(default_factory=set[str])
    after: list[Any] = field(default_factory=list[Any])
    operations: list[Counter[str]] = field(default_factory=list[Counter[str]])
    seconds: float = 0.0
    timed: float = 0.3
    most_killed: int = MOST_KILLED

    def prepare(self, folder: Path, rows: Path) -> None:
        """Make the store that the works start from, `folder / "before"`, and run each of them on a copy of it."""
        for work in self.before:
            forked(work, folder / "before")
        stores = [folder / "before"]
        for number, work in enumerate(self.works):
            stores.append(self.store(folder, f"whole{number}"))
            result, counted = forked(watched, work, stores[-1], rows, None)
            self.after.append(result)
            self.operations.append(counted)
        for store in stores:
            for name, digest in forked(published, store).items():
                self.published.setdefault(name, set()).add(digest)
                self.kept |= {name} if store is stores[0] else set()
        begun, together = time.monotonic(), self.store(folder, "together")
        running = [Forked(partial(watched, work, together, rows, None)) for work in self.works]
        assert [process.result()[0] for process in running] == self.after
        self.seconds = time.monotonic() - begun

    def store(self, folder: Path, name: str) -> Path:
        """Return a new store, as it is before the works."""
        if self.before:
            shutil.copytree(folder / "before", folder / name)
        return folder / name


class Forked:
    """A forked process that runs a function; `result` returns what it returned, or None if it was killed."""

    def __init__(self, function: Callable[[], Any]):
        receiving, sending = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(receiving)
            try:
                answer = True, function()
            except BaseException:
                answer = False, traceback.format_exc()
            with os.fdopen(sending, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
        os.close(sending)
        self._receiving = receiving

    def result(self) -> Any:
        with os.fdopen(self._receiving, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        self.killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if self.killed:
            return None
        assert status == 0, f"ended with status {status}"
        succeeded, answer = pickle.loads(data)
        assert succeeded, answer
        return answer


def forked(function: Callable[..., Any], *arguments: Any) -> Any:
    return Forked(partial(function, *arguments)).result()


def watched(work: Work, store: Path, rows: Path, fatal: Operation | None) -> tuple[Any, Counter[str]]:
    """Run `work`, and count its operations on files of a store and of rows, by stage, kind and folder; SIGKILL before a
    fatal one.

    Before `half`, half of a file is written; before `fsync`, all of it.
    """
    counted, place = Counter[str](), threading.local()

    def seen(kind: str, path: Path | str, file: int = -1) -> None:
        for root, of_root in ((store, None), (rows, "rows")):
            if str(path).startswith(f"{root}/"):
                name = f"{getattr(place, 'stage', 'other')} {kind} {of_root or Path(path).relative_to(root).parts[0]}"
                counted[name] += 1
                if fatal == (name, counted[name]):
                    if kind == "half":
                        os.ftruncate(file, os.fstat(file).st_size // 2)
                    os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not isinstance(arguments[OPERATIONS[event]], str | os.PathLike):
            return
        kind = event.removeprefix("os.")
        if event == "open":
            kind = "create" if arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) else "read"
        seen(kind, os.fspath(arguments[OPERATIONS[event]]))

    fsync = os.fsync

    def synced(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        seen("half", path, file)
        seen("fsync", path)
        fsync(file)

    def at(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def named(*arguments: Any) -> Any:
            place.stage = name
            return function(*arguments)

        return named

    def one(self: ChainTask, link: LinkTask, *others: Any) -> Any:
        *most, write = others
        name = link.stage.name
        return at(name, run_one)(self, link, *most, lambda store: write(at(name, store)))

    building.LARGE_BYTES = 0  # so that a thread prepares later stages, as in large builds
    os.fsync = synced
    run_one = getattr(ChainTask, "_one")  # noqa: B009
    setattr(ChainTask, "_one", one)  # noqa: B010
    for method, name in (("_sidecars", "sidecars"), ("_publish", "publish")):
        setattr(Build, method, at(name, getattr(Build, method)))
    sys.addaudithook(hook)
    return work(store), counted


def built(config: Path, store: Path) -> dict[str, str]:
    return digests(build(config, store))


def mixed(config: Path, store: Path) -> str:
    target = open_target(load_config(config), ArtifactStore(store), ComputeEngine(2))
    for _ in target.run_all():
        pass
    target.publish()
    return ArtifactStore(store).manifest_digest(config.stem, MIXTURE)


def collected(store: Path) -> list[set[str]]:
    """Collect garbage; returns what is left."""
    gc(store, keep=1)
    return [stems(store, folder) for folder in ("objects", "actions", "versions")]


def collected_with_grace(store: Path) -> None:
    gc(store, 1, DAY)


def published(store: Path) -> dict[str, str]:
    """Return a digest of all batches of each dataset and mixture that can be opened."""
    found: dict[str, str] = {}
    for name in ArtifactStore(store).datasets() if store.exists() else ():
        for kind, opened in (("", open_dataset), (" mixed", open_mixture)):
            with suppress(DatasetNotFoundError):
                batches = TokenLoader(opened(name, store=store), batch_size=16, padding="longest")
                found[name + kind] = blake3("".join(map(batch_digest, batches)).encode()).hexdigest()
    return found


def faults(store: Path, scenario: Scenario) -> list[str]:
    """Return what is wrong with a store after a kill: half-written files, what `verify` reports, what can be read."""
    objects = store.glob("objects/*/*")
    found = [f"{path} is damaged" for path in objects if blake3(path.read_bytes()).hexdigest() != path.stem]
    for folder in ("actions", "datasets", "versions"):
        for path in store.glob(f"{folder}/*/*"):
            json.loads(path.read_bytes())
    if (store / "FORMAT").exists():  # a process killed earlier leaves no store to verify
        found += [
            str(finding) for finding in verify(ArtifactStore(store), None, ComputeEngine(1), remove=False).findings
        ]
    read = published(store)
    found += [f"{name} is {digest}" for name, digest in read.items() if digest not in scenario.published[name]]
    found += [f"{name} is gone" for name in scenario.kept - read.keys()]
    return found


def faults_in_the_end(store: Path, scenario: Scenario) -> list[str]:
    """Finish what was killed, and return what is wrong with the result."""
    found = []
    if [work(store) for work in scenario.works] != scenario.after:
        found.append("not the result of the same works without a kill")
    found += faults(store, scenario)
    found += [f"{name} is missing" for name in scenario.published.keys() - published(store).keys()]
    return found


def write_rows(folder: Path, name: str, count: int, **changes: Any) -> Path:
    """Write rows as a file whose ending tells its format, and the YAML; returns the YAML's path."""
    stem, table = name.partition(".")[0], pa.Table.from_pylist(rows(count))
    config = write_dataset(folder, count, stem, dataset={"name": name, "keep_columns": ["output"]}, **changes)
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress((folder / f"{stem}.jsonl").read_bytes()))
    elif name.endswith(".csv"):
        pyarrow.csv.write_csv(table, folder / name)
    elif name.endswith(".parquet"):
        pq.write_table(table, folder / name, row_group_size=50)
    return config


def scenarios(folder: Path) -> tuple[dict[str, Scenario], list[str]]:
    """Write the rows of all scenarios; returns also the modules that a build loads."""
    pair = [write_rows(folder / "pair", f"{name}.jsonl", count) for name, count in (("first", 220), ("second", 170))]
    template = PROMPT["template"].replace("Response", "Answer")
    states = [
        write_rows(folder / "state", "small.jsonl", 200),
        write_rows(folder / "edited", "small.jsonl", 201),
        write_rows(folder / "retold", "small.jsonl", 201, prompt_template={**PROMPT, "template": template}),
    ]
    first, second, third = (partial(built, config) for config in states)
    mix, named = folder / "mixture" / "mix.yaml", frozen_tokenizer(folder)
    same = [
        write_rows(folder / "same", f"{name}.jsonl", 400, tokenizer=named, length={"packing": packing})
        for name, packing in (("plain", "none"), ("packed", "best_fit"))
    ]
    for name, count in (("a", 120), ("b", 60)):
        write_rows(mix.parent, f"{name}.jsonl", count, tokenizer=named)
    mix.write_text(yaml.safe_dump({"mixture": [{"dataset": "a", "weight": 2}, {"dataset": "b", "weight": 1}]}))
    aged = [first, second, age]
    names = ("lines.jsonl", "table.parquet", "packed.jsonl.gz", "table.csv")
    made = {
        "two builds": Scenario([partial(built, config) for config in pair]),
        "two builds of the same rows": Scenario([partial(built, config) for config in same], timed=1.0, most_killed=1),
        "an update": Scenario([second], [first]),
        "a mixture": Scenario([partial(mixed, mix)]),
        "a build that drops rows": Scenario(
            [partial(built, write_golden("without_repeats_and_items", folder / "drops"))]
        ),
        "gc": Scenario([collected], [first, second, third]),
        "gc next to a build": Scenario([collected_with_grace, partial(built, states[0])], aged),
        **{f"a build of {name}": Scenario([partial(built, write_rows(folder / name, name, 200))]) for name in names},
    }
    return made, sorted(sys.modules)


def fate(operations: Counter[str], seconds: float, timed: float, draw: random.Random) -> tuple[Operation | None, float]:
    """Draw where a process is killed: before an operation, or after some seconds."""
    if draw.random() < timed:
        return None, draw.uniform(0.0, 1.1 * seconds)
    kind = draw.choice(sorted({name.split()[1] for name in operations}))
    name = draw.choice(sorted(name for name in operations if name.split()[1] == kind))
    return (name, draw.randint(1, operations[name])), 0.0


def killed(scenario: Scenario, store: Path, rows: Path, draw: random.Random) -> tuple[list[str], list[str]]:
    """Run the works of a scenario at the same time, killing each of them unless it ends before or is spared.

    Returns:
        Where they were killed, and what is wrong with the results of the others.
    """
    fates = [fate(counted, scenario.seconds, scenario.timed, draw) for counted in scenario.operations]
    if len(fates) > 1 and draw.random() < SPARED:
        fates[draw.randrange(len(fates))] = None, math.inf
    begun, running = time.monotonic(), list[Forked]()
    for work, (operation, _) in zip(scenario.works, fates, strict=True):
        running.append(Forked(partial(watched, work, store, rows, operation)))
    timed = [(moment, number) for number, (_, moment) in enumerate(fates) if 0.0 < moment < math.inf]
    for moment, number in sorted(timed):
        time.sleep(max(begun + moment - time.monotonic(), 0.0))
        os.kill(running[number].pid, signal.SIGKILL)
    places, wrong = list[str](), list[str]()
    for process, (operation, moment), after in zip(running, fates, scenario.after, strict=True):
        result = process.result()
        if process.killed:
            at = f"before {operation[0]} {operation[1]}" if operation else f"at a random moment, {moment:.2f} s"
            places.append(at)
        elif result[0] != after:
            wrong.append("one that was not killed has another result")
    return places, wrong


def main(folder: str, seed: str, kills: str, only: str = "") -> None:
    root, draw, done = Path(folder), random.Random(int(seed)), 0
    rows = root / "rows"
    made, modules = forked(scenarios, rows)
    for module in modules:  # a forked process would import them again
        with suppress(ImportError):
            importlib.import_module(module)
    chosen = {name: scenario for name, scenario in made.items() if only in ("", name)}
    for number, (name, scenario) in enumerate(cycle(chosen.items())):
        place = root / name
        if not scenario.after:
            scenario.prepare(place, rows)
        store = scenario.store(place, f"killed{number}")
        for _ in range(draw.randint(1, scenario.most_killed)):
            places, wrong = killed(scenario, store, rows, draw)
            found = wrong + forked(faults, store, scenario)
            for at in places:
                print(f"{done} {name}: {at}: {found or 'intact'}", flush=True)
                done += 1
            if not places:
                assert not found, found
                break
        print(f"{done} {name}: finished: {forked(faults_in_the_end, store, scenario) or 'intact'}", flush=True)
        shutil.rmtree(store)
        if done >= int(kills):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
