"""Builds on stored outputs that match their digests but are not what a build writes, in a process of its own.

`python -m support.crafted_builds CONFIG STORE SEED CASES` prints a line per case: the stage whose output is crafted,
and how this build and the next one ended.
"""

from __future__ import annotations

import random
import resource
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from support.builds import build, digests
from support.crafted_objects import MEMORY, encoded, mutated, outcome, with_column
from tokenloom.assets.building.report import StageReport
from tokenloom.resources.store import ArtifactStore

STAGES = ("raw", "schema", "columns", "prompts", "tokenizer", "tokens")


def crafted(table: pa.Table, draw: random.Random) -> bytes:
    """Return a file with another table: other columns, types, nulls, offsets or rows."""
    name = draw.choice(table.column_names)
    rows, kind = table.num_rows, table[name].type
    tables = (
        table.drop_columns([name]),
        table.append_column(name, table[name]),
        with_column(table, name, pa.nulls(rows, kind)),
        with_column(table, name, pa.nulls(rows)),
        with_column(table, name, pa.array([b"\xff\xfe"] * rows)),
        with_column(table, name, pa.array([[(1 << 31) - 1]] * rows)),
        table.slice(0, rows // 2),
        pa.concat_tables([table] * 3),
    )
    if draw.random() < 0.5:
        return encoded(draw.choice(tables), draw.random() < 0.5)
    return mutated(encoded(table, draw.random() < 0.2), draw)


def forget_manifests(store: Path) -> None:
    """Make the next build read the actions, which the latest manifests state too."""
    for pointer in store.glob("datasets/*/*.json"):
        pointer.unlink()


def build_into(reports: dict[str, StageReport], config: Path, store: Path) -> None:
    reports.update(build(config, store))


def check_build(config: Path, store: Path, expected: dict[str, str]) -> None:
    assert digests(build(config, store)) == expected, "other digests"


def main(config: str, folder: str, seed: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    path, store = Path(config), ArtifactStore(folder)
    expected = digests(build(path, Path(folder)))
    chunks = {stage: store.manifest(path.stem, stage).chunks[0] for stage in STAGES}
    for number in range(int(seed), int(seed) + int(count)):
        stage, draw = STAGES[number % len(STAGES)], random.Random(number)
        chunk = chunks[stage]
        action = store.actions.get(chunk.key)
        assert action is not None
        data = crafted(store.objects.get(chunk.output), draw)
        print(f"{number} ", end="", flush=True)
        digest = store.objects.put(pa.py_buffer(data))
        store.actions.put(chunk.key, replace(action, output=digest, bytes=len(data)))
        forget_manifests(Path(folder))
        reports: dict[str, StageReport] = {}
        first = outcome(partial(build_into, reports, path, Path(folder)))
        if any("damaged" in notice for report in reports.values() for notice in report.notices):
            first = "healed"
        if first != "StoreError":  # rows can have any columns, and a tokenizer any content
            store.actions.put(chunk.key, action)
            forget_manifests(Path(folder))
        again = outcome(partial(check_build, path, Path(folder), expected))
        print(f"{stage}: {first}, {again}", flush=True)
        if digest != chunk.output:
            store.objects.delete(digest)


if __name__ == "__main__":
    main(*sys.argv[1:])
