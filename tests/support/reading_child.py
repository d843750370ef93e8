"""Reads files in processes of their own, each with limits on memory and time, and reports how each process ended.

Run as a script, which finds no other module of this folder: cases as JSON on stdin, outcomes as JSON on stdout. Its
processes are forked, so that libraries load once.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STAGES = ("raw", "schema", "columns")


@dataclass(frozen=True)
class Outcome:
    """How reading a file ended.

    Args:
        signal: the number of the signal that ended the process, or 0.
        rows: the number of rows.
        rejects: the number of rejected rows by code.
        error: the type and message of a `TokenloomError`, or "".
        traceback: the type and message of any other exception, or "".
        peak: the largest resident memory in bytes.
    """

    signal: int
    rows: int
    rejects: dict[str, int]
    error: str
    traceback: str
    peak: int


def read_in_children(datasets: list[dict[str, Any]], memory: int = 4 << 30, last_stage: str = "") -> list[Outcome]:
    """Read the rows of each dataset in its own process, or build it.

    Args:
        datasets: the settings of `dataset`.
        memory: the largest address space of a process in bytes.
        last_stage: the last stage to build; "" only reads the rows.
    """
    from support.processes import DEADLINE, run

    given = json.dumps([datasets, memory, last_stage, DEADLINE])
    ran = run([sys.executable, __file__], input=given, seconds=2 * DEADLINE, check=True)  # one may take its whole time
    return [Outcome(**outcome) for outcome in json.loads(ran.stdout)]


def _read(dataset: dict[str, Any], last_stage: str) -> dict[str, Any]:
    import pyarrow as pa

    from tokenloom.assets.raw.chunks import source_chunks
    from tokenloom.config import PipelineConfig
    from tokenloom.errors import TokenloomError

    found: dict[str, Any] = {"rows": 0, "rejects": {}, "error": "", "traceback": ""}
    codes: Counter[str] = Counter()

    def add(rows: int, rejects: pa.Table | None) -> None:
        found["rows"] += rows
        codes.update(rejects["code"].to_pylist() if rejects is not None else ())

    try:
        config = PipelineConfig.from_mapping({"dataset": dataset, "validation": {"max_reject_fraction": 1.0}})
        if last_stage:
            _build(config, last_stage, add)
        else:
            for chunk in source_chunks(config):
                output = chunk.load()
                add(output.table.num_rows, output.rejects)
    except TokenloomError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    except BaseException as error:
        found["traceback"] = f"{type(error).__name__}: {error}"
    return {**found, "rejects": dict(codes)}


def _build(config: Any, last_stage: str, add: Callable[[int, Any], None]) -> None:
    from tokenloom.assets.building.build import Build
    from tokenloom.resources.store import ArtifactStore

    with tempfile.TemporaryDirectory() as store:
        build = Build(config, ArtifactStore(Path(store)))
        for stage in STAGES[: STAGES.index(last_stage) + 1]:
            build.run(stage)
        for chunk in build.manifest("raw").chunks:
            objects = build.store.objects
            add(objects.get(chunk.output).num_rows, objects.get(chunk.rejects) if chunk.rejects else None)


def _in_child(dataset: dict[str, Any], memory: int, last_stage: str, seconds: int) -> Outcome:
    reading, writing = os.pipe()
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        signal.alarm(seconds)  # for a reader that never ends
        os.write(writing, json.dumps(_read(dataset, last_stage)).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(child, 0)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    found = json.loads(text) if text else {"rows": 0, "rejects": {}, "error": "", "traceback": ""}
    return Outcome(killed, peak=usage.ru_maxrss * 1024, **found)


def _main() -> None:
    import tokenloom.assets.building.build
    import tokenloom.assets.raw.chunks  # noqa: F401  # loaded once, before the forks

    datasets, memory, last_stage, seconds = json.load(sys.stdin)
    outcomes = [asdict(_in_child(dataset, memory, last_stage, seconds)) for dataset in datasets]
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    _main()
