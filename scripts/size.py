"""Measure the code: files, lines, rooms, imports between files, and what a small build enters.

python scripts/size.py                  this checkout
python scripts/size.py --root FOLDER    another checkout, run with the same libraries
python scripts/size.py --rooms          the lines of each room too: core, and each wing

Code lines are lines without docstrings, comments, blanks and imports. Core is what makes a batch of a row of text; the
wings of `scripts/rooms.toml` are the rest. A crossing is a call between functions of different product files, counted
while three rows are built. Floors are the files in the longest chain of imports inside one folder.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("tokenloom", "assets", "loaders", "resources", "trainer")
ROOMS = "scripts/rooms.toml"

QUICKSTART = "tokenloom/pipelines/quickstart.yaml"
ROWS = "tokenloom/pipelines/samples/quickstart.jsonl"

BUILD = """
import json, sys, threading
from pathlib import Path

yaml, store, root = map(Path, sys.argv[1:])
paths, last, entered, crossings = {}, {}, set(), 0

def product_file(name):
    path = Path(name).resolve()
    folders = ("tokenloom", "assets", "loaders", "resources", "trainer")
    return str(path) if any(path.is_relative_to(root / folder) for folder in folders) else None

def enter(frame, event, argument):
    global crossings
    code = frame.f_code
    if event != "call" or code.co_name == "<module>":
        return
    name = code.co_filename
    path = paths[name] if name in paths else paths.setdefault(name, product_file(name))
    if path is None:
        return
    entered.add(path)
    thread = threading.get_ident()
    crossings += last.get(thread, path) != path
    last[thread] = path

from tokenloom import DataPipeline  # what is only imported is not entered
threading.setprofile(enter)
sys.setprofile(enter)
DataPipeline.from_config(yaml, store=store).unwrap().build().unwrap()
sys.setprofile(None)
print(json.dumps([sorted(entered), crossings]))
"""


def tracked(root: Path, *folders: str) -> list[Path]:
    """Return the Python files that git tracks in some folders."""
    names = subprocess.run(["git", "ls-files", *folders], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = (root / name for name in names.split("\n") if name.endswith(".py"))
    return [path for path in paths if path.is_file()]


def code_lines(text: str) -> int:
    """Count the lines that are neither blank, nor a comment, nor part of a docstring or of an import."""
    left_out = {number for number, line in enumerate(text.splitlines(), 1) if not line.strip()} | comments(text)
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        texts = [part for part in body if _is_text(part)] if isinstance(body, list) else []
        for part in (*texts, *([node] if isinstance(node, ast.Import | ast.ImportFrom) else [])):
            left_out |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return len(text.splitlines()) - len(left_out)


def comments(text: str) -> set[int]:
    """Return the numbers of the lines that have a comment and nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {at.start[0] for at in tokens if at.type == tokenize.COMMENT and not at.line[: at.start[1]].strip()}


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def rooms(root: Path) -> dict[str, list[str]]:
    """Return the wings of a checkout, and the beginnings of the paths in each. What is in none is core."""
    path = root / ROOMS
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def room_of(name: str, wings: dict[str, list[str]]) -> str:
    """Return the room of a file: the wing with the longest beginning of its path, or "core"."""
    begins = [(len(begin), wing) for wing, paths in wings.items() for begin in paths if name.startswith(begin)]
    return max(begins, default=(0, "core"))[1]


def imports_between(root: Path, paths: list[Path]) -> set[tuple[Path, Path]]:
    """Return the pairs of files of which one imports the other, at its top or inside a function."""
    modules = {_module(root, path): path for path in paths}
    pairs: set[tuple[Path, Path]] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                full = {f"{node.module}.{name.name}" for name in node.names}
                names = {name if name in modules else str(node.module) for name in full}
            else:
                continue
            pairs |= {(path, modules[name]) for name in names if name in modules}
    return pairs


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(part for part in ("tokenloom", *parts[parts[0] == "tokenloom" :]) if part != "__init__")


def floors(folder: Path, pairs: set[tuple[Path, Path]]) -> int:
    """Return the number of files in the longest chain of imports inside a folder and the folders in it."""
    inside = {(path, below) for path, below in pairs if path.is_relative_to(folder) and below.is_relative_to(folder)}
    inside = {(path, below) for path, below in inside if "__init__.py" not in (path.name, below.name)}
    graph = {path: {below for other, below in inside if other == path} for path, _ in inside}
    height: dict[Path, int] = {}
    for path in TopologicalSorter(graph).static_order():
        height[path] = 1 + max((height[below] for below in graph.get(path, ())), default=0)
    return max(height.values(), default=1)


@cache
def small_build(root: Path) -> tuple[list[str], int]:
    """Build three rows of the quickstart: the product files of which it runs a function, and the calls between them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "samples").mkdir()
        rows = (root / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)[:3]
        (folder / "samples" / "quickstart.jsonl").write_text("".join(rows), encoding="utf-8")
        (folder / "quickstart.yaml").write_text((root / QUICKSTART).read_text(encoding="utf-8"), encoding="utf-8")
        command = [sys.executable, "-c", BUILD, folder / "quickstart.yaml", folder / "store", root]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        run = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    entered, crossings = json.loads(run.stdout.splitlines()[-1])
    return entered, crossings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure; default: this one")
    parser.add_argument("--rooms", action="store_true", help="show each wing and the floors of each folder too")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    product, tests = tracked(root, *PRODUCT), tracked(root, "tests")
    texts = {path: path.read_text(encoding="utf-8") for path in product}
    lengths = {path: text.count("\n") for path, text in texts.items()}
    longest = max(lengths, key=lambda path: lengths[path])
    wings = rooms(root)
    code: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, text in texts.items():
        room = room_of(path.relative_to(root).as_posix(), wings)
        code[room] += code_lines(text)
        files[room] += 1
    pairs = imports_between(root, product)
    folders = {path.parent for path in product} - {root / "tokenloom", *(root / name for name in PRODUCT)}
    heights = {folder: floors(folder, pairs) for folder in folders}
    entered, crossings = small_build(root)

    print(f"product files      {len(product):>7,}")
    print(f"product lines      {sum(lengths.values()):>7,}")
    print(f"code lines         {code.total():>7,}   without docstrings, comments, blanks and imports")
    print(f"  core             {code['core']:>7,}   in {files['core']} files")
    print(f"  wings            {code.total() - code['core']:>7,}   in {files.total() - files['core']} files")
    if arguments.rooms:
        for wing in sorted(wings, key=lambda wing: -code[wing]):
            print(f"    {wing:<15}{code[wing]:>7,}   in {files[wing]} files")
    print(f"comment lines      {sum(len(comments(text)) for text in texts.values()):>7,}")
    print(f"longest file       {lengths[longest]:>7,}   {longest.relative_to(root)}")
    print(f"imports of files   {len(pairs):>7,}")
    most = sorted(heights, key=lambda folder: -heights[folder])
    for folder in most if arguments.rooms else most[:1]:
        print(f"floors             {heights[folder]:>7,}   {folder.relative_to(root)}")
    print(f"entered by a build {len(entered):>7,}   files, for three rows")
    print(f"  crossings        {crossings:>7,}   calls from one of these files to another")
    print(f"test files         {len(tests):>7,}")
    print(f"test lines         {sum(path.read_text(encoding='utf-8').count(chr(10)) for path in tests):>7,}")


if __name__ == "__main__":
    main()
