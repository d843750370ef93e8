"""Measure the code: files, lines, imports between files, and the files that a small build enters.

python scripts/size.py                  this checkout
python scripts/size.py --root FOLDER    another checkout, run with the same libraries
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("tokenloom", "assets", "loaders", "resources", "trainer")

QUICKSTART = "tokenloom/pipelines/quickstart.yaml"
ROWS = "tokenloom/pipelines/samples/quickstart.jsonl"

BUILD = """
import json, sys, threading
from pathlib import Path

yaml, store = map(Path, sys.argv[1:])
entered = set()

def enter(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        entered.add(frame.f_code.co_filename)

from tokenloom import DataPipeline  # what is only imported is not entered
threading.setprofile(enter)
sys.setprofile(enter)
DataPipeline.from_config(yaml, store=store).unwrap().build().unwrap()
sys.setprofile(None)
paths = {Path(name).resolve() for name in entered if not name.startswith("<")}
print(json.dumps(sorted(map(str, paths))))
"""


def tracked(root: Path, *folders: str) -> list[Path]:
    """Return the Python files that git tracks in some folders."""
    names = subprocess.run(["git", "ls-files", *folders], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = (root / name for name in names.split("\n") if name.endswith(".py"))
    return [path for path in paths if path.is_file()]


def core_lines(text: str) -> int:
    """Count the lines that are neither blank, nor part of a docstring or of an import."""
    left_out = {number for number, line in enumerate(text.splitlines(), 1) if not line.strip()}
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        texts = [part for part in body if _is_text(part)] if isinstance(body, list) else []
        for part in (*texts, *([node] if isinstance(node, ast.Import | ast.ImportFrom) else [])):
            left_out |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return len(text.splitlines()) - len(left_out)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imports_between(root: Path, paths: list[Path]) -> int:
    """Count the pairs of files of which one imports the other, at its top or inside a function."""
    modules = {_module(root, path): path for path in paths}
    pairs: set[tuple[Path, Path]] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                full = {f"{node.module}.{name.name}" for name in node.names}
                names = {name if name in modules else str(node.module) for name in full}
            else:
                continue
            pairs |= {(path, modules[name]) for name in names if name in modules}
    return len(pairs)


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(part for part in ("tokenloom", *parts[parts[0] == "tokenloom" :]) if part != "__init__")


def entered(root: Path, product: list[Path]) -> list[Path]:
    """Return the files of which a build of three rows of the quickstart runs a function."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "samples").mkdir()
        rows = (root / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)[:3]
        (folder / "samples" / "quickstart.jsonl").write_text("".join(rows), encoding="utf-8")
        (folder / "quickstart.yaml").write_text((root / QUICKSTART).read_text(encoding="utf-8"), encoding="utf-8")
        command = [sys.executable, "-c", BUILD, folder / "quickstart.yaml", folder / "store"]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        run = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    names = set(json.loads(run.stdout.splitlines()[-1]))
    return [path for path in product if str(path) in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure; default: this one")
    root = parser.parse_args().root.resolve()
    product, tests = tracked(root, *PRODUCT), tracked(root, "tests")
    texts = {path: path.read_text(encoding="utf-8") for path in product}
    lengths = {path: text.count("\n") for path, text in texts.items()}
    longest = max(lengths, key=lambda path: lengths[path])
    print(f"product files      {len(product):>7,}")
    print(f"product lines      {sum(lengths.values()):>7,}")
    print(f"  of these, core   {sum(map(core_lines, texts.values())):>7,}   without docstrings, blanks and imports")
    print(f"longest file       {lengths[longest]:>7,}   {longest.relative_to(root)}")
    print(f"imports of files   {imports_between(root, product):>7,}")
    print(f"entered by a build {len(entered(root, product)):>7,}   files, for three rows")
    print(f"test files         {len(tests):>7,}")
    print(f"test lines         {sum(path.read_text(encoding='utf-8').count(chr(10)) for path in tests):>7,}")


if __name__ == "__main__":
    main()
