"""The layout: what is installed, what imports what, and what a wheel holds."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
SHELVES = ("tokenloom", "assets", "loaders", "resources")
LINKS = [ROOT / "tokenloom" / name for name in SHELVES[1:]]
SOURCES = [
    path
    for shelf in SHELVES
    for path in sorted((ROOT / shelf).rglob("*.py"))
    if not any(path.is_relative_to(link) for link in LINKS)
]

LAYERS = {"errors": 0, "config": 1, "resources": 2, "loaders": 3, "assets": 4, "pipeline": 5, "cli": 6}
"""Imports only go down; the other modules of `tokenloom` are the front doors, above all of them."""

FRONT_DOORS = 9


def room(module: str) -> str:
    """The part of the package that a module belongs to: a folder, or a front door."""
    return module.split(".")[1] if "." in module else ""


def layer(module: str) -> int:
    return LAYERS.get(room(module), FRONT_DOORS)


def imports(path: Path) -> set[str]:
    """Modules that a file imports when it is imported, and those it imports later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "tokenloom" else ("tokenloom", *parts)
    return ".".join(part for part in parts if part != "__init__")


def test_every_folder_of_code_is_a_declared_package() -> None:
    folders = {module_of(path.parent / "__init__.py") for path in SOURCES}
    assert folders == set(PACKAGES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_go_down(path: Path) -> None:
    own = module_of(path)
    for module in imports(path):
        if module.startswith("tokenloom.") and layer(own) < FRONT_DOORS:
            assert layer(module) < layer(own) or room(module) == room(own), f"{own} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dagster_stays_at_the_edge(path: Path) -> None:
    if not module_of(path).startswith(("tokenloom.definitions", "tokenloom.assets.dagster")):
        assert not any(module.split(".")[0] == "dagster" for module in imports(path))


def test_importing_the_loaders_stays_light() -> None:
    heavy = "{'dagster', 'datasets', 'transformers', 'pandera', 'polars', 'pydantic', 'yaml', 'tokenizers', 'jinja2', "
    heavy += "'gigatoken', 'awkward', 'PIL'}"
    program = f"import sys, tokenloom.loaders; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_wheel_holds_every_module_and_the_quickstart(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in files:
        source = ROOT / name
        if source.is_symlink() or not source.is_file():
            continue
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes(source.read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(tmp_path),
        str(checkout),
    ]
    subprocess.run(command, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"tokenloom/{path.relative_to(ROOT)}".replace("tokenloom/tokenloom", "tokenloom") for path in SOURCES}
    assert (
        expected
        | {"tokenloom/py.typed", "tokenloom/pipelines/quickstart.yaml", "tokenloom/pipelines/samples/quickstart.jsonl"}
        <= held
    )
    assert not any(name.startswith(("tokenloom/tests", "tokenloom/docs")) for name in held)


def test_links_lead_readers_and_type_checkers_to_every_part() -> None:
    assert [link.resolve() for link in LINKS] == [ROOT / name for name in SHELVES[1:]]


STAGE_ROOMS = (
    "stage",
    "raw",
    "schema",
    "columns",
    "prompts",
    "tokenizer",
    "tokens",
    "sequences",
    "building",
    "dagster",
)


@pytest.mark.parametrize("stage", STAGE_ROOMS)
def test_a_stage_imports_only_stages_before_it(stage: str) -> None:
    later = STAGE_ROOMS[STAGE_ROOMS.index(stage) + 1 :]
    for path in (ROOT / "assets" / stage).rglob("*.py"):
        found = {module.split(".")[2] for module in imports(path) if module.startswith("tokenloom.assets.")}
        assert not found & set(later), path
