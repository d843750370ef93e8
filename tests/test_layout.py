"""The layout: which folders are packages, what imports what, and that no name shadows another."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from support.paths import ROOT, TESTS

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PYPROJECT["tool"]["setuptools"]["packages"]
LINKED = ("assets", "loaders", "resources", "trainer")
"""Folders of the package that are at the repository's root; `tokenloom/` has a link to each."""

SOURCES = [
    path
    for folder in ("tokenloom", *LINKED)
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(path.is_relative_to(ROOT / "tokenloom" / name) for name in LINKED)
]

LAYERS = {"errors": 0, "config": 1, "resources": 2, "loaders": 3, "trainer": 4, "assets": 5, "pipeline": 6, "cli": 7}
"""Imports only go down. All other modules of `tokenloom` are above these."""

TOP = 9
STAGES = (
    "stage",
    "raw",
    "schema",
    "columns",
    "decontaminate",
    "fingerprints",
    "dedup",
    "prompts",
    "tokenizer",
    "tokens",
    "sequences",
    "shown_rows",
    "building",
    "dagster",
)
"""Folders of `assets`. Each imports only from itself and from those before it."""

ONE_SHELF = {
    "tokenloom.assets.prompts.few_shot": "tokenloom.assets.prompts",
    "tokenloom.assets.dagster.checks": "tokenloom.assets.dagster",
}
"""Folders that count as part of another folder in the search for circles between folders."""

SCRIPTS = ("benchmarks", "docs", "examples", "scripts")
"""Folders of scripts that are run from a checkout and not installed."""

Graph = dict[str, set[str]]


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "tokenloom" else ("tokenloom", *parts)
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(path): path for path in SOURCES}
TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def imports(tree: ast.Module) -> set[str]:
    """All names that a module imports: at its top, inside functions, and for the type checker.

    `from a import b` gives `a.b` where that is a module of the package, otherwise `a`. A string that is the name of a
    module counts as an import, since lazy imports go by name.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "relative imports are not resolved here; write the full name"
            targets = {f"{node.module}.{name.name}" for name in node.names}
            names |= {target if target in MODULES else node.module for target in targets}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            names |= {node.value} & MODULES.keys()
    return names


IMPORTS: Graph = {module: imports(tree) for module, tree in TREES.items()}
INSIDE: Graph = {module: names & MODULES.keys() for module, names in IMPORTS.items()}


def circle(graph: Graph) -> list[str]:
    """The nodes of one circle in order, or an empty list if there is none."""
    rest = {node: targets & graph.keys() - {node} for node, targets in graph.items()}
    while ends := {node for node, targets in rest.items() if not targets}:
        rest = {node: targets - ends for node, targets in rest.items() if node not in ends}
    if not rest:
        return []
    path = [min(rest)]
    while path[-1] not in path[:-1]:
        path.append(min(rest[path[-1]]))
    return path[path.index(path[-1]) :]


def is_facade(module: str) -> bool:
    """Whether a module is an `__init__.py` that only defines names of other modules."""
    defines = (ast.FunctionDef, ast.ClassDef)
    named = MODULES[module].name == "__init__.py"
    return named and not any(
        isinstance(node, defines) and not node.name.startswith("__") for node in TREES[module].body
    )


def folder_of(module: str) -> str:
    """The folder that a module is in. Facades, and the modules directly in `tokenloom/`, are on their own."""
    path = MODULES[module]
    if is_facade(module) and module not in ONE_SHELF:
        return f"{module}/__init__.py"
    if path.parent == ROOT / "tokenloom":
        return module
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return ONE_SHELF.get(folder, folder)


def layer(module: str) -> int:
    return LAYERS.get(module.split(".")[1], TOP) if "." in module else TOP


def test_every_folder_of_code_is_a_declared_package() -> None:
    assert {module_of(path.parent / "__init__.py") for path in SOURCES} == set(PACKAGES)


def test_links_lead_to_the_real_folders() -> None:
    assert [(ROOT / "tokenloom" / name).resolve() for name in LINKED] == [ROOT / name for name in LINKED]


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_go_down(module: str) -> None:
    if layer(module) < TOP:
        part = module.split(".")[1]
        above = {name for name in INSIDE[module] if layer(name) >= layer(module) and name.split(".")[1:2] != [part]}
        assert not above, f"{module} imports {above}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_only_stages_before_it(stage: str) -> None:
    later = tuple(f"tokenloom.assets.{name}." for name in STAGES[STAGES.index(stage) + 1 :])
    for module, names in INSIDE.items():
        if f"{module}.".startswith(f"tokenloom.assets.{stage}."):
            assert not [name for name in names if f"{name}.".startswith(later)], module


def test_modules_do_not_import_in_circles() -> None:
    found = circle(INSIDE)
    assert not found, " imports ".join(found)


def test_folders_do_not_import_in_circles() -> None:
    folders: Graph = defaultdict(set)
    reasons: dict[tuple[str, str], str] = {}
    for module, names in INSIDE.items():
        for name in names:
            start, end = folder_of(module), folder_of(name)
            folders[start].add(end)
            reasons.setdefault((start, end), f"{module} imports {name}")
    found = circle(folders)
    assert not found, "; ".join(reasons[step] for step in pairwise(found))


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b", "a"}, "b": {"c", "d"}, "c": {"b"}, "d": {"e"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": {"elsewhere"}}) == []


def test_only_dagsters_modules_import_dagster() -> None:
    named = {module for module, names in IMPORTS.items() if any(name.split(".")[0] == "dagster" for name in names)}
    outside = {name for name in named if not name.startswith(("tokenloom.assets.dagster.", "tokenloom.dagster"))}
    assert outside == {"tokenloom.definitions"}


def test_importing_the_loaders_stays_light() -> None:
    heavy = "{'dagster', 'datasets', 'transformers', 'pandera', 'polars', 'pydantic', 'yaml', 'tokenizers', 'jinja2', "
    heavy += "'gigatoken', 'awkward', 'PIL'}"
    program = f"import sys, tokenloom.loaders; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_imports_a_test(path: Path) -> None:
    """What several tests need is in `tests/support`."""
    for name in imports(ast.parse(path.read_text())):
        assert not any(part.startswith("test_") or part == "conftest" for part in name.split(".")), name


def test_repository_folders_are_not_part_of_the_package() -> None:
    """With the working directory and the package in place, as in a checkout that is installed in editable mode."""
    program = """
import importlib, sys
from pathlib import Path

sys.path.insert(0, "")
for name in ("tokenloom.tests", "tokenloom.docs", "tokenloom.benchmarks", "tokenloom.examples", "config", "cli"):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    places = [module.__file__, *getattr(module, "__path__", [])]
    print([name, *(place for place in places if place and Path(place).resolve().is_relative_to(Path.cwd()))])
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


def lowest_versions() -> dict[str, str]:
    """The lower bounds of all libraries that `pyproject.toml` declares for users."""
    project = PYPROJECT["project"]
    extras = [group for name, group in project["optional-dependencies"].items() if name != "dev"]
    declared = [library.split(">=") for group in (project["dependencies"], *extras) for library in group]
    return {canonicalize_name(name.partition("[")[0]): bound for name, bound in declared}


def pinned(file: str) -> dict[str, str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_lowest_versions_are_those_that_are_tested() -> None:
    """Except for torch: no older CPU build can be installed from PyPI."""
    tested, declared = pinned("constraints-lowest.txt"), lowest_versions()
    assert [name for name, bound in declared.items() if Version(tested[name]) != Version(bound)] == ["torch"]


def test_every_declared_library_is_pinned() -> None:
    tools = PYPROJECT["project"]["optional-dependencies"]["dev"]
    names = {canonicalize_name(re.split(r"[\[>]", tool)[0]) for tool in tools} | lowest_versions().keys()
    assert names - pinned("constraints.txt").keys() == {"tokenloom"}


def test_scripts_do_not_shadow_libraries() -> None:
    """Python puts a script's folder first on the path, so its neighbours must not have a library's name."""
    scripts = [path for folder in SCRIPTS for path in (ROOT / folder).rglob("*.py")]
    imported = {name.split(".")[0] for names in IMPORTS.values() for name in names}
    libraries = imported | {name.replace("-", "_") for name in lowest_versions()} | sys.stdlib_module_names
    assert {path.stem for path in scripts} & libraries == set()
