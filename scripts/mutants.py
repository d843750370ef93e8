"""Plant faults in the code, one at a time, and check that the tests named for each fail.

python scripts/mutants.py                   the written mutants, and a sample of the drawn ones
python scripts/mutants.py --drawn 400       the written ones, and at most 400 drawn ones
python scripts/mutants.py --only NAME …     some of them
python scripts/mutants.py --tree FOLDER     on a copy of another checkout, with its tests

tests/mutants.toml has the faults that someone wrote, tests/drawn_mutants.toml those that `draw_mutants.py` drew. A
mutant replaces a snippet that occurs once in the code, wherever that is; `old` can list alternatives. A test that fails
also without the fault catches nothing. Exit code 1: a mutant was missed, or its snippet or its tests were not found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
PRODUCT = ("tokenloom", "assets", "loaders", "resources", "trainer")
WRITTEN, DRAWN = ROOT / "tests" / "mutants.toml", ROOT / "tests" / "drawn_mutants.toml"
SAMPLE = 60
"""Drawn mutants of one run; which ones, the day decides."""

SECONDS = 300
"""A run of tests ends after so long: what it found until then counts, and a case that does not end is caught."""

COLLECTION = "collection"
"""Stands for a case where the process ended before the first one."""

WORKERS = 2
LIBRARIES = ("torch", "pyarrow.parquet", "transformers", "datasets", "dagster", "pandera", "hypothesis", "accelerate")
"""Imported once; each run is a fork, which imports the code itself, since a fault can be in any part of it."""

FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Outcome:
    """How a run of cases on a copy ended.

    Attributes:
        failed: the cases that failed, or that did not end.
        ran: how many cases ran.
        printed: the end of what the run printed.
    """

    failed: list[str]
    ran: int
    printed: str

    @property
    def case(self) -> str | None:
        """The first case that failed; None if all passed."""
        return next(iter(self.failed), None)


def copied(tree: Path, folder: Path) -> Path:
    """Copy what git tracks in a checkout, links as links, and what is there but not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (tree / name).is_symlink() or (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, folder / name, follow_symlinks=False)
    return folder


def product_files(tree: Path) -> Iterator[Path]:
    """Yield the files of the code, each once: `tokenloom/` has links to the other folders."""
    for folder in PRODUCT:
        for path in sorted((tree / folder).rglob("*.py")):
            if not any((tree / part).is_symlink() for part in path.relative_to(tree).parents):
                yield path


def place_of(tree: Path, snippets: list[str]) -> tuple[Path, str] | None:
    """Return the file that has one of the snippets, and that snippet; None unless exactly one file has it, once."""
    found = [
        (path, snippet)
        for path in product_files(tree)
        for snippet in snippets
        for _ in range(path.read_text(encoding="utf-8").count(snippet))
    ]
    return found[0] if len(found) == 1 else None


class Runner:
    """A copy of a checkout, and a process that runs cases on it in forks."""

    def __init__(self, tree: Path, folder: Path):
        self.tree = copied(tree, folder)
        self._stamp = 10**9
        path = os.pathsep.join(map(str, (self.tree, self.tree / "tests", ROOT / "scripts")))
        self._server = subprocess.Popen(
            [sys.executable, "-c", "import mutants; mutants.serve()"],
            cwd=self.tree,
            env={**os.environ, **FIXED, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def planted(self, path: Path, old: str, new: str) -> Iterator[None]:
        """Replace a snippet while the context lasts."""
        text, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(text.replace(old, new), encoding="utf-8")
        # Python takes compiled code for current if size and whole second are those of the source.
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (times.st_atime, times.st_mtime))

    def run(self, cases: Iterable[str], seconds: float = SECONDS, stop: bool = True) -> Outcome:
        """Run cases, files or folders in this order, until one fails."""
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(json.dumps([[*cases], seconds, stop]) + "\n")
        self._server.stdin.flush()
        return Outcome(*json.loads(self._server.stdout.readline()))

    def outcome(self, mutant: dict[str, Any]) -> str:
        """Run a mutant's tests and return "caught", "missed" or what was not found."""
        old = mutant["old"]
        place = place_of(self.tree, old if isinstance(old, list) else [old])
        if place is None:
            return "its snippet is not in the code exactly once"
        tests = [test for test in mutant["tests"] if (self.tree / test.partition("::")[0]).exists()]
        with self.planted(*place, mutant["new"]):
            found = self.run(tests) if tests else Outcome([], 0, "")
        if found.case and found.case != COLLECTION and self.run([found.case]).case:
            return "its tests fail without it"
        return "caught" if found.case else "missed" if found.ran else "its tests are not found"

    def close(self) -> None:
        self._server.communicate(timeout=60)


def serve() -> None:
    """Run the cases of each line of stdin in a fork, and print how that ended."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        cases, seconds, stop = json.loads(line)
        with tempfile.TemporaryDirectory(prefix="tokenloom-mutant-") as folder:
            print(json.dumps(_in_fork(Path(folder), cases, seconds, stop)), file=answers)


def _in_fork(folder: Path, cases: list[str], seconds: float, stop: bool) -> tuple[list[str], int, str]:
    notes, printed = folder / "notes", folder / "printed"
    notes.touch()
    printed.touch()
    child = os.fork()
    if not child:
        _run_cases(folder, cases, stop)
    end, status = time.monotonic() + seconds, 0
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.02)
    status = ended[1]
    lines = [line.partition(" ") for line in notes.read_text().splitlines()]
    started = [case for what, _, case in lines if what == "start"]
    failed = list(dict.fromkeys(case for what, _, case in lines if what == "fail"))
    finished = any(what == "end" for what, _, _ in lines)
    if not failed and not finished:  # it hangs, or a signal ended the process
        failed = started[-1:] or [COLLECTION] * bool(status)
    return failed, len(started), printed.read_text(errors="replace")[-4000:]


def _run_cases(folder: Path, cases: list[str], stop: bool) -> None:
    """Run cases as pytest does, and end the process."""
    import pytest

    os.setsid()
    for number, path in enumerate([os.devnull, folder / "printed", folder / "printed"]):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
    notes = (folder / "notes").open("a", buffering=1)
    order = {case: place for place, case in enumerate(cases)}
    files = list(dict.fromkeys(case.partition("::")[0] for case in cases))

    def place(item: pytest.Item) -> int:
        """The place of the first given name that is the case's, its function's, its file's or its folder's."""
        function = item.nodeid.partition("[")[0]
        path = Path(function.partition("::")[0])
        names = (item.nodeid, function, *map(str, (path, *path.parents)))
        return min((order[name] for name in names if name in order), default=-1)

    class Chosen:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            items[:] = sorted((item for item in items if place(item) >= 0), key=place)

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            notes.write(f"start {nodeid}\n")

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                notes.write(f"fail {report.nodeid}\n")

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                notes.write(f"fail {report.nodeid}\n")

    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", *(["-x"] if stop else [])]
    try:
        pytest.main([*options, *files], plugins=[Chosen()])
        notes.write("end \n")
    finally:
        os._exit(0)


def read(path: Path) -> dict[str, dict[str, Any]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="the mutants to plant")
    parser.add_argument("--drawn", type=int, default=SAMPLE, metavar="N", help=f"so many drawn ones; default: {SAMPLE}")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout; default: this one")
    options = parser.parse_args()
    drawn = {name: mutant for name, mutant in read(DRAWN).items() if "tests" in mutant}
    mutants = read(WRITTEN) | drawn
    if unknown := [name for name in options.only if name not in mutants]:
        parser.error(f"no mutant is named {', '.join(unknown)}")
    sample = random.Random(time.strftime("%Y-%m-%d")).sample([*drawn], min(options.drawn, len(drawn)))
    chosen = options.only or [*read(WRITTEN), *sample]
    counts = dict.fromkeys(["caught"], 0)
    with (
        tempfile.TemporaryDirectory(prefix="tokenloom-mutants-") as folder,
        runners(options.tree.resolve(), Path(folder)) as ready,
        ThreadPoolExecutor(WORKERS) as threads,
    ):

        def outcome(name: str) -> str:
            with one_of(ready) as runner:
                return runner.outcome(mutants[name])

        for name, found in zip(chosen, threads.map(outcome, chosen), strict=True):
            counts[found] = counts.get(found, 0) + 1
            print(f"{found:7}  {name}: {mutants[name]['fault']}", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.items()), f"of {len(chosen)}")
    return int(counts["caught"] < len(chosen))


@contextmanager
def runners(tree: Path, folder: Path) -> Iterator[SimpleQueue[Runner]]:
    """A queue of runners, as many as run at once."""
    ready: SimpleQueue[Runner] = SimpleQueue()
    every = [Runner(tree, folder / str(number)) for number in range(WORKERS)]
    for runner in every:
        ready.put(runner)
    try:
        yield ready
    finally:
        for runner in every:
            runner.close()


@contextmanager
def one_of(ready: SimpleQueue[Runner]) -> Iterator[Runner]:
    runner = ready.get()
    try:
        yield runner
    finally:
        ready.put(runner)


if __name__ == "__main__":
    raise SystemExit(main())
