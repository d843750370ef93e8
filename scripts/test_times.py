"""Run the tests and print CPU and wall seconds of each file, of the slowest cases, and of collection.

python scripts/test_times.py                           the cases of `make test`
python scripts/test_times.py -m '' tests/trainer       what follows is given to pytest
python scripts/test_times.py --read FOLDER             the table of an earlier run, whose measurements are in FOLDER

CPU seconds are of the process that runs a case and of the processes that it waited for. A fixture that cases share
counts for the first of them. Measure on an idle machine: wall seconds grow with what else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = "TOKENLOOM_TEST_TIMES"
"""Environment variable with the folder to which pytest's processes write their measurements."""


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, of its threads and of the children that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Times:
    """The plugin of pytest: appends a line of JSON for each collected file and each case."""

    def __init__(self, folder: Path):
        self.lines = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def measured(self, what: str, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            return (yield)
        finally:
            line = {"what": what, "name": name, "wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu}
            self.lines.write(json.dumps(line) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        return (
            yield from self.measured("file" if isinstance(collector, pytest.Module) else "folder", collector.nodeid)
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self.measured("case", item.nodeid))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Times(Path(os.environ[FOLDER])), "times")


def table(title: str, times: dict[str, tuple[float, float, int]], most: int) -> None:
    """Print the names with the most CPU seconds."""
    print(f"\n{title}\n   CPU s   wall s  cases")
    for name, (cpu, wall, cases) in sorted(times.items(), key=lambda entry: -entry[1][0])[:most]:
        print(f"{cpu:8.2f} {wall:8.2f} {cases:6}  {name}")


def report(folder: Path, files: int, cases: int) -> None:
    lines: list[dict[str, Any]] = [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
    of_files: dict[str, tuple[float, float, int]] = defaultdict(lambda: (0.0, 0.0, 0))
    of_cases: dict[str, tuple[float, float, int]] = {}
    collection = 0.0
    for line in lines:
        if line["what"] != "case":
            collection += line["cpu"]
            continue
        cpu, wall, count = of_files[file := line["name"].partition("::")[0]]
        of_files[file] = cpu + line["cpu"], wall + line["wall"], count + 1
        of_cases[line["name"]] = line["cpu"], line["wall"], 1
    table(f"The {cases} slowest cases", of_cases, cases)
    table("Files", of_files, files)
    cpu, wall = (sum(times[at] for times in of_files.values()) for at in (0, 1))
    print(
        f"\n{len(of_cases)} cases of {len(of_files)} files: {cpu:.0f} CPU s, {wall:.0f} s of wall time in all processes"
    )
    print(f"collection: {collection:.0f} CPU s in all processes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="print the table of an earlier run")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the measurements there")
    parser.add_argument("--files", type=int, default=1000, metavar="N", help="print so many files; default: all")
    parser.add_argument("--cases", type=int, default=300, metavar="N", help="print so many cases; default: 300")
    options, arguments = parser.parse_known_args()
    if options.read:
        report(options.read, options.files, options.cases)
        return 0
    with tempfile.TemporaryDirectory(prefix="tokenloom-times-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, FOLDER: str(folder), "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "test_times", "--numprocesses", "2", *arguments]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        report(folder, options.files, options.cases)
        return code


if __name__ == "__main__":
    raise SystemExit(main())
