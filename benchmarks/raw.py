"""Measure reading and introspection: time and peak memory of whole processes, and how many chunks an edit renews.

usage: raw.py [--rows N …] [--edits N]

For each number of rows, one process builds `raw` and another `raw` and `schema`, each on a fresh store; `schema` of the
second is the cost of introspection on top of reading. For the last number, row 100 is then deleted, and a second file
added. Then single rows of the first file are inserted, deleted and changed at random, and new chunks are counted.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from alpaca import source, write_rows

from tokenloom.assets.building.build import Build
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore

SMALL = ChunkSize(256 << 10, 1 << 20)


def config_of(path: Path) -> PipelineConfig:
    return PipelineConfig.from_mapping({"dataset": {"name": str(path)}})


def run_stages(data: str, store: str, *stages: str) -> None:
    """Build stages in this process. Print their seconds and the process's peak memory in MB."""
    build = Build(config_of(Path(data)), ArtifactStore(store))
    seconds = {stage: build.run(stage).seconds for stage in stages}
    print(json.dumps({**seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))


def measured(data: Path, store: Path, *stages: str, keep: bool = False) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--run", str(data), str(store), *stages], capture_output=True, text=True, check=True
    )
    if not keep:
        shutil.rmtree(store)
    return json.loads(done.stdout)


def rebuilt(folder: Path, store: Path) -> str:
    """Build a folder's files. Say how many of their chunks were not in the store."""
    report = Build(config_of(folder), ArtifactStore(store)).run("raw")
    return f"{report.chunks - report.chunks_reused} of {report.chunks} chunks new"


def changed_files(folder: Path, rows: list[dict[str, str]], count: int) -> None:
    files, store = folder / "files", folder / "store"
    files.mkdir()
    write_rows(files / "a.jsonl", rows, count)
    print(f"{count:,} rows: {rebuilt(files, store)}", end="")
    lines = (files / "a.jsonl").read_bytes().split(b"\n")
    (files / "a.jsonl").write_bytes(b"\n".join(lines[:100] + lines[101:]))
    print(f"; row 100 deleted: {rebuilt(files, store)}", end="")
    write_rows(files / "b.jsonl", rows[::-1], len(rows))
    print(f"; a file of {len(rows):,} rows added: {rebuilt(files, store)}")


def digests(path: Path, size: ChunkSize) -> Counter[str]:
    return Counter(chunk.digest for chunk in source_chunks(config_of(path), size))


def edits(folder: Path, lines: list[str], count: int, size: ChunkSize) -> tuple[int, Counter[int]]:
    """Edit single rows. Return the number of chunks, and how many edits led to each number of new chunks."""
    noise, path, renewed = random.Random(7), folder / "edited.jsonl", Counter()
    path.write_text("".join(lines), encoding="utf-8")
    before = digests(path, size)
    for _ in range(count):
        place, kind = noise.randrange(len(lines)), noise.choice(("insert", "delete", "change"))
        row = json.dumps({"instruction": f"edit {noise.random()}", "input": "", "output": lines[place][20:200]}) + "\n"
        edited = lines[:place] + ([] if kind == "delete" else [row]) + lines[place + (kind != "insert") :]
        path.write_text("".join(edited), encoding="utf-8")
        renewed[(digests(path, size) - before).total()] += 1
    return before.total(), renewed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[52_002, 520_020])
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.run:
        return run_stages(*parsed.run)
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as name:
        folder = Path(name)
        rows, _ = source(folder)
        data, store = folder / "rows.jsonl", folder / "store"
        for count in parsed.rows:
            write_rows(data, rows, count)
            measured(data, store, "raw")  # warms the page cache
            reading = measured(data, store, "raw")
            both = measured(data, store, "raw", "schema", keep=True)
            again = measured(data, store, "raw", "schema")
            introspection, repeated = both["schema"] / both["raw"], (again["raw"] + again["schema"]) / both["raw"]
            print(
                f"{count:,} rows, {data.stat().st_size >> 20} MB: reading {both['raw']:.2f} s, introspection "
                f"{introspection:.2f} of that, both again {repeated:.2f} of it; "
                f"peak memory {reading['peak_mb']:.0f} MB reading, {both['peak_mb']:.0f} MB with introspection"
            )
        changed_files(folder, rows, parsed.rows[-1])
        write_rows(data, rows, parsed.rows[0])
        lines = data.read_text(encoding="utf-8").splitlines(keepends=True)
        for size in (ChunkSize(), SMALL):
            chunks, renewed = edits(folder, lines, parsed.edits, size)
            counts = ", ".join(f"{new} new: {renewed[new]}" for new in sorted(renewed))
            print(f"{parsed.edits:,} edits of {chunks} chunks of about {size.target >> 10} KB: {counts}")


if __name__ == "__main__":
    main()
