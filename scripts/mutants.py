"""Plant faults in the code, one at a time, and check that the tests named for each fail.

python scripts/mutants.py                   all mutants of tests/mutants.toml, on a copy of this checkout
python scripts/mutants.py --only NAME …     some of them
python scripts/mutants.py --tree FOLDER     on a copy of another checkout, with its tests

A mutant replaces a snippet that occurs once in the code, wherever that is; `old` can list alternatives. Exit code 1: a
mutant was missed, or its snippet or its tests were not found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PRODUCT = ("tokenloom", "assets", "loaders", "resources", "trainer")
TESTS_FAILED = 1
"""Pytest's exit code if tests ran and some failed."""


def copied(tree: Path, folder: Path) -> Path:
    """Copy what git tracks in a checkout, links as links, and what is there but not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (tree / name).is_symlink() or (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, folder / name, follow_symlinks=False)
    return folder


def place_of(tree: Path, snippets: list[str]) -> tuple[Path, str] | None:
    """Return the file that has one of the snippets, and that snippet; None unless exactly one file has it, once."""
    found = [
        (path, snippet)
        for folder in PRODUCT
        if not (tree / folder).is_symlink()
        for path in sorted((tree / folder).rglob("*.py"))
        if not any(part.is_symlink() for part in path.relative_to(tree).parents if part != Path())
        for snippet in snippets
        for _ in range(path.read_text(encoding="utf-8").count(snippet))
    ]
    return found[0] if len(found) == 1 else None


@contextmanager
def planted(path: Path, old: str, new: str) -> Iterator[None]:
    """Replace a snippet while the context lasts."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(old, new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def outcome(tree: Path, mutant: dict[str, Any]) -> str:
    """Run a mutant's tests and return "caught", "missed" or what was not found."""
    old = mutant["old"]
    place = place_of(tree, old if isinstance(old, list) else [old])
    if place is None:
        return "its snippet is not in the code exactly once"
    tests = [test for test in mutant["tests"] if (tree / test.partition("::")[0]).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    with planted(*place, mutant["new"]):
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if run.returncode not in (0, TESTS_FAILED) or not tests:
        # Code that cannot be imported is caught, too; a test that does not exist is a fault of the table.
        return "its tests are not found" if "not found:" in run.stderr + run.stdout or not tests else "caught"
    return "caught" if run.returncode else "missed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="the mutants to plant; default: all")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout; default: this one")
    options = parser.parse_args()
    mutants: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))
    if unknown := [name for name in options.only if name not in mutants]:
        parser.error(f"no mutant is named {', '.join(unknown)}")
    chosen = options.only or list(mutants)
    counts = dict.fromkeys(["caught"], 0)
    with tempfile.TemporaryDirectory(prefix="tokenloom-mutants-") as folder:
        tree = copied(options.tree.resolve(), Path(folder))
        for name in chosen:
            found = outcome(tree, mutants[name])
            counts[found] = counts.get(found, 0) + 1
            print(f"{found:7}  {name}: {mutants[name]['fault']}", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.items()), f"of {len(chosen)}")
    return int(counts["caught"] < len(chosen))


if __name__ == "__main__":
    raise SystemExit(main())
