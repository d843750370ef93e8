"""Time builds after small changes against a build from nothing, as whole processes, and count recomputed chunks.

usage: incremental.py [--rows N]

Rows are those of Alpaca, repeated and made distinct, with phi-2's tokenizer, if $TOKENLOOM_REAL_DATA is set; else those
of the quickstart. Each change is built on the store of the previous one, then compared with a build from nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build import BIN, write

Lines = list[bytes]


def built(config: Path, store: Path) -> tuple[float, list[dict[str, Any]]]:
    """Run a build. Return the seconds of the whole process, and the report of each stage."""
    started = time.perf_counter()
    command = [str(BIN / "tokenloom"), "build", str(config), "--store", str(store), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started, json.loads(done.stdout)["stages"]


def append(lines: Lines) -> None:
    lines += [
        b'{"instruction": "more ' + line.removeprefix(b'{"instruction": "') for line in lines[: len(lines) // 100]
    ]


def delete(lines: Lines) -> None:
    del lines[100]


def insert(lines: Lines) -> None:
    lines.insert(len(lines) // 2, b'{"instruction": "say so", "input": "", "output": "so"}\n')


def edit(lines: Lines) -> None:
    lines[len(lines) // 3] = b'{"instruction": "say no", "input": "", "output": "no"}\n'


def nothing(lines: Lines) -> None:
    """Leave the file unchanged."""


CHANGES: dict[str, Callable[[Lines], None]] = {
    "unchanged": nothing,
    "1% appended": append,
    "row 100 deleted": delete,
    "a row inserted in the middle": insert,
    "a row edited": edit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=52_000)
    options = parser.parse_args()
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import tokenloom.assets.building.build, tokenloom.cli.terminal"], check=True)
    print(
        f"{options.rows:,} rows; starting a process with the imports of a build: {time.perf_counter() - started:.2f} s"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, config, _ = write(folder, options.rows)
        cold, reports = built(config, folder / "store")
        print(f"{'cold':30} {cold:6.2f} s, {reports[0]['chunks']} chunks")
        for what, change in CHANGES.items():
            lines = data.read_bytes().splitlines(keepends=True)
            change(lines)
            data.write_bytes(b"".join(lines))
            seconds, reports = built(config, folder / "store")
            new_chunks = {stage["name"]: stage["chunks"] - stage["chunks_reused"] for stage in reports}
            same = "" if what == "unchanged" else comparison(reports, config, folder / f"{change.__name__}-cold")
            counts = " ".join(f"{stage} {count}" for stage, count in new_chunks.items() if count) or "none"
            print(f"{what:30} {seconds:6.2f} s, {seconds / cold:6.1%} of cold; chunks recomputed: {counts}{same}")


def comparison(reports: list[dict[str, Any]], config: Path, store: Path) -> str:
    """Say whether a build from nothing gives the same digests."""
    _, cold = built(config, store)
    same = [stage["digest"] for stage in cold] == [stage["digest"] for stage in reports]
    return "; equal to a build from nothing" if same else "; NOT EQUAL to a build from nothing"


if __name__ == "__main__":
    main()
