"""The layout: which folders are packages, what imports what, and that no name shadows another.

A rule is a function that returns every fault it finds, so that one run names them all.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from packaging.utils import canonicalize_name
from packaging.version import Version

from support.marked_cases import kinds_of_machines, smoke_cases
from support.paths import ROOT, TESTS
from support.processes import run
from support.soak import Kind

LINKED = ("assets", "loaders", "resources", "trainer")
"""Folders of the package that are at the repository's root; `tokenloom/` has a link to each."""

ORDER = (("errors",), ("config",), ("resources",), ("loaders",), ("trainer",), ("assets",))
ORDER += (("starter", "importers", "exporters"), ("pipeline",), ("cli",))
LAYERS = {name: place for place, names in enumerate(ORDER) for name in names}
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
}
"""Folders that count as part of another folder in the search for circles between folders."""

LIMITS = {
    "product files": 306, "product lines": 74_400, "lines of a file": 600, "core": 31_150, "wings": 12_020,
    "importers": 1_190, "exporters": 1_015, "starter": 905, "dagster": 1_160, "sessions": 970, "images": 1_320,
    "selection": 1_110, "token_files": 340, "collation": 940, "any_dataset": 345, "on_the_fly": 820, "ray": 250,
    "trainer": 1_720,
}  # fmt: skip
"""What the product can grow to: files, lines, and lines of code of the core, of all wings, and of each wing. Lower a
number when the code falls; raise one only in a commit of its own that says why."""

LONGER = {"resources/store/artifact_store.py": 630}
"""Files that are longer than `LIMITS` allows, with the lines that they can have."""

TABLES = {
    "tokenloom": "public names",
    "tokenloom.assets.columns.canonical": "dialects of conversations",
    "tokenloom.assets.raw.chunks": "file formats: of token ids",
    "tokenloom.assets.raw.formats.record_file": "file formats: sessions",
    "tokenloom.assets.stage.definition": "stages",
    "tokenloom.cli.main": "commands",
    "tokenloom.exporters": "layouts",
    "tokenloom.importers": "tools",
    "tokenloom.loaders": "public names of the loaders",
    "tokenloom.pipeline": "what `DataPipeline` opens",
    "tokenloom.resources.engines.engine": "engines",
}
"""The places where a wing is named: by a string, or by an import that runs when the wing is used."""

FROM_THE_CORE = {
    # The tokens of an image are values in a tokenizer's files, which these functions look up.
    ("tokenloom.assets.prompts", "images"): 2,
    ("tokenloom.assets.shown_rows", "images"): 1,
    ("tokenloom.assets.tokenizer", "images"): 1,
    ("tokenloom.assets.tokens", "images"): 2,
    ("tokenloom.resources.tokenizers", "images"): 3,
    # Batches of rows with images are made where all batches are made.
    ("tokenloom.loaders", "images"): 1,
    ("tokenloom.loaders.datasets", "images"): 2,
    ("tokenloom.loaders.reading", "images"): 1,
}
"""Exceptions: how many imports from a core folder to a wing are still there. Only to be lowered."""

LOADED_AT_ONCE = "tokenloom.loaders"
"""The table that loads what it names: its wings are small beside torch, which all of them need."""

BETWEEN_WINGS = {
    "any_dataset": {"collation", "on_the_fly"},
    "collation": {"images"},
    "dagster": {"images", "selection", "starter", "trainer"},
    "starter": {"images", "on_the_fly", "sessions"},
    "trainer": {"collation", "images"},
}
"""The wings that a wing imports."""

SCRIPTS = ("benchmarks", "docs", "examples", "scripts")
"""Folders of scripts that are run from a checkout and not installed."""

SUPPORT = TESTS / "support"
READS_VARIABLES = SUPPORT / "soak.py"
VARIABLES = re.compile("TOKENLOOM_(SOAK|REAL_DATA)")
"""Environment variables that choose which cases a run takes."""

Graph = dict[str, set[str]]


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "tokenloom" else ("tokenloom", *parts)
    return ".".join(part for part in parts if part != "__init__")


@cache
def modules() -> dict[str, Path]:
    """The files of the package by module, without those that a link leads to."""
    files = [path for folder in ("tokenloom", *LINKED) for path in sorted((ROOT / folder).rglob("*.py"))]
    linked = [ROOT / "tokenloom" / name for name in LINKED]
    return {module_of(path): path for path in files if not any(map(path.is_relative_to, linked))}


@cache
def files_of_tests() -> dict[str, Path]:
    """The Python files of the tests, by their path in `tests/`."""
    return {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(tree: ast.Module) -> set[str]:
    """All names that a module imports: at its top, inside functions, and for the type checker.

    `from a import b` gives `a.b` where that is a module of the package, otherwise `a`; relative imports keep their
    dots. A string that is the name of a module counts as an import, since lazy imports go by name.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            targets = {f"{start}.{name.name}" for name in node.names}
            names |= {target if target in modules() else start for target in targets}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            names |= {node.value} & modules().keys()
    return names


@cache
def imported() -> Graph:
    """All names that each module of the package imports."""
    return {module: imports(parsed(path)) for module, path in modules().items()}


@cache
def inside() -> Graph:
    """The modules of the package that each module imports."""
    return {module: names & modules().keys() for module, names in imported().items()}


@cache
def imported_by_tests() -> Graph:
    return {name: imports(parsed(path)) for name, path in files_of_tests().items()}


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
    path = modules()[module]
    return path.name == "__init__.py" and not any(
        isinstance(node, defines) and not node.name.startswith("__") for node in parsed(path).body
    )


def folder_of(module: str) -> str:
    """The folder that a module is in. Facades, and the modules directly in `tokenloom/`, are on their own."""
    path = modules()[module]
    if is_facade(module) and module not in ONE_SHELF:
        return f"{module}/__init__.py"
    if path.parent == ROOT / "tokenloom":
        return module
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return ONE_SHELF.get(folder, folder)


@cache
def size() -> ModuleType:
    """Load `scripts/size.py`, which knows the rooms and counts lines."""
    spec = importlib.util.spec_from_file_location("size", ROOT / "scripts" / "size.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def wings() -> dict[str, list[str]]:
    """The starts of the paths of each wing."""
    return size().rooms(ROOT)


@cache
def room_of(module: str) -> str:
    """The wing of a module, or `core`."""
    return size().room_of(modules()[module].relative_to(ROOT).as_posix(), wings())


def into_wings(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the imports that lead from a room to a wing that is another one."""
    for module, names in graph.items():
        for name in sorted(names):
            if room_of(name) not in ("core", room_of(module)):
                yield module, name


def at_import(tree: ast.Module) -> set[str]:
    """The names that a module imports while it is imported itself: neither inside a function nor for a type checker."""
    statements: list[ast.stmt] = []
    for statement in tree.body:
        is_checking = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        if isinstance(statement, ast.Import | ast.ImportFrom) or (isinstance(statement, ast.Try) and not is_checking):
            statements.append(statement)
    return imports(ast.Module(statements, []))


def loaded_by_tables(graph: Graph) -> list[str]:
    """Wings that are loaded when a table is, though it only names them."""
    return [
        f"{module} loads {name}" for module, name in into_wings(graph) if module in TABLES and module != LOADED_AT_ONCE
    ]


def folder_of_core(module: str) -> str:
    return module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]


def imports_from_the_core(graph: Graph) -> dict[tuple[str, str], list[str]]:
    """The imports of wings in core modules that are no tables, by folder and wing."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, name in into_wings(graph):
        if room_of(module) == "core" and module not in TABLES:
            found[folder_of_core(module), room_of(name)].append(f"{module} imports {name}")
    return found


def exceeded(sizes: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    return [f"{name}: {count:,}, more than {limits[name]:,}" for name, count in sizes.items() if count > limits[name]]


def layer(module: str) -> int:
    return LAYERS.get(module.split(".")[1], TOP) if "." in module else TOP


def relative_imports(graph: Graph) -> list[str]:
    """Imports that the other rules do not resolve."""
    return [f"{module} imports {name}" for module, names in graph.items() for name in sorted(names) if name[0] == "."]


def upward_imports(graph: Graph) -> list[str]:
    """Imports from a layer that is not below the module's own; within a part of the package, all are allowed."""
    return [
        f"{module} imports {name}"
        for module, names in graph.items()
        for name in sorted(names)
        if TOP > layer(module) <= layer(name) and module.split(".")[1:2] != name.split(".")[1:2]
    ]


def place_among_stages(module: str) -> int:
    """The position of a module's folder in `STAGES`, or -1."""
    return max((at for at, stage in enumerate(STAGES) if is_in(module, f"tokenloom.assets.{stage}")), default=-1)


def is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def imports_of_later_stages(graph: Graph) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, names in graph.items()
        for name in sorted(names)
        if -1 < place_among_stages(module) < place_among_stages(name)
    ]


def imports_of_tests(graph: Graph) -> list[str]:
    return [
        f"{file} imports {name}"
        for file, names in graph.items()
        for name in sorted(names)
        if any(part.startswith("test_") or part == "conftest" for part in name.split("."))
    ]


def test_every_folder_of_code_is_a_declared_package() -> None:
    found = {module_of(path.parent / "__init__.py") for path in modules().values()}
    assert found == set(pyproject()["tool"]["setuptools"]["packages"])


def test_links_lead_to_the_real_folders() -> None:
    assert [(ROOT / "tokenloom" / name).resolve() for name in LINKED] == [ROOT / name for name in LINKED]


def test_imports_are_absolute() -> None:
    faults = relative_imports(imported()) + relative_imports(imported_by_tests())
    assert not faults, "\n".join(faults)


def test_imports_only_go_down() -> None:
    faults = upward_imports(inside())
    assert not faults, "\n".join(faults)


def test_a_stage_imports_only_stages_before_it() -> None:
    faults = imports_of_later_stages(inside())
    assert not faults, "\n".join(faults)


def test_no_test_imports_a_test() -> None:
    """What several tests need is in `tests/support`."""
    faults = imports_of_tests(imported_by_tests())
    assert not faults, "\n".join(faults)


def test_every_import_that_breaks_a_rule_is_found() -> None:
    relative = "from . import a\nfrom .b import c\nimport d\nfrom d import e"
    assert relative_imports({"x": imports(ast.parse(relative))}) == ["x imports .", "x imports .b"]
    graph = {
        "tokenloom.config.a": {"tokenloom.errors", "tokenloom.config.b", "tokenloom.loaders.c", "tokenloom.dagster"},
        "tokenloom.errors": {"tokenloom.cli.main"},
        "tokenloom.dagster": {"tokenloom.cli.main", "tokenloom"},
    }
    assert upward_imports(graph) == [
        "tokenloom.config.a imports tokenloom.dagster",
        "tokenloom.config.a imports tokenloom.loaders.c",
        "tokenloom.errors imports tokenloom.cli.main",
    ]
    graph = {
        "tokenloom.assets.raw.a": {"tokenloom.assets.stage.b", "tokenloom.assets.raw.c", "tokenloom.assets.tokens"},
        "tokenloom.assets.prompts": {"tokenloom.assets.raw", "tokenloom.assets.tokens.d", "tokenloom.assets.tokenizer"},
        "tokenloom.loaders.e": {"tokenloom.assets.raw"},
    }
    assert imports_of_later_stages(graph) == [
        "tokenloom.assets.raw.a imports tokenloom.assets.tokens",
        "tokenloom.assets.prompts imports tokenloom.assets.tokenizer",
        "tokenloom.assets.prompts imports tokenloom.assets.tokens.d",
    ]
    assert imports_of_tests({"a.py": {"tests.test_b", "conftest", "support.tested"}, "c.py": {"cli.test_d.e"}}) == [
        "a.py imports conftest",
        "a.py imports tests.test_b",
        "c.py imports cli.test_d.e",
    ]


def without_tables(graph: Graph) -> Graph:
    """A graph without what tables name: it is found by its name, and imports the table's module."""
    named = {*into_wings(graph)}
    return {
        module: {name for name in names if module not in TABLES or (module, name) not in named}
        for module, names in graph.items()
    }


def test_every_wing_has_files_and_a_page() -> None:
    rooms = {room_of(module) for module in modules()}
    assert rooms == {"core", *wings()}
    folders = {name: [Path(ROOT, start.rpartition("/")[0]) for start in starts] for name, starts in wings().items()}
    faults = [name for name, places in folders.items() if not any((place / "README.md").is_file() for place in places)]
    assert not faults, f"wings without a README.md: {', '.join(faults)}"


def test_the_core_imports_no_wing() -> None:
    """Except where `TABLES` says that a module names wings. `FROM_THE_CORE` has what is still to be mended."""
    found = imports_from_the_core(inside())
    counts = {pair: (len(found.get(pair, ())), FROM_THE_CORE.get(pair, 0)) for pair in {*found, *FROM_THE_CORE}}
    faults = [
        f"{' imports '.join(pair)} {here} times, not {listed}: {', '.join(found.get(pair, ()))}"
        for pair, (here, listed) in sorted(counts.items())
        if here != listed
    ]
    assert not faults, "\n".join(faults)


def test_tables_name_wings_without_loading_them() -> None:
    loaded = {module: at_import(parsed(modules()[module])) & modules().keys() for module in TABLES}
    faults = loaded_by_tables(loaded)
    assert not faults, "\n".join(faults)


def test_wings_import_only_what_is_listed() -> None:
    found: Graph = defaultdict(set)
    for module, name in into_wings(inside()):
        if room_of(module) != "core":
            found[room_of(module)].add(room_of(name))
    assert found == BETWEEN_WINGS
    assert circle(BETWEEN_WINGS) == []


def test_every_import_of_a_wing_is_found() -> None:
    core, wing, other = "tokenloom.assets.building.build", "tokenloom.assets.dedup.stage", "tokenloom.trainer.log"
    graph = {core: {wing, other}, wing: {core}, other: {wing, other}, "tokenloom.pipeline": {wing}, "tokenloom": {core}}
    assert imports_from_the_core(graph) == {
        ("tokenloom.assets.building", "selection"): [f"{core} imports {wing}"],
        ("tokenloom.assets.building", "trainer"): [f"{core} imports {other}"],
    }
    assert loaded_by_tables(graph) == [f"tokenloom.pipeline loads {wing}"]
    assert [*into_wings({other: {wing, other, core}})] == [(other, wing)]
    program = f"""
import {core}
if TYPE_CHECKING:
    import {wing}
def f():
    import {wing}
HOMES = {{"x": "{wing}"}}
"""
    assert at_import(ast.parse(program)) == {core}
    assert at_import(ast.parse(f"{program}\nfrom {other} import x")) == {core, other}


def test_the_product_stays_within_its_limits() -> None:
    texts = {module: path.read_text(encoding="utf-8") for module, path in modules().items()}
    code = Counter[str]()
    for module, text in texts.items():
        code[room_of(module)] += size().code_lines(text)
    lines = {modules()[module].relative_to(ROOT).as_posix(): text.count("\n") for module, text in texts.items()}
    sizes = {"product files": len(texts), "product lines": sum(lines.values()), **code}
    faults = exceeded({**sizes, "wings": code.total() - code["core"]}, LIMITS)
    longest = dict.fromkeys(lines, LIMITS["lines of a file"]) | LONGER
    faults += exceeded(lines, longest)
    faults += [f"{name} need not be in LONGER" for name in LONGER if lines.get(name, 0) <= LIMITS["lines of a file"]]
    assert not faults, "\n".join(faults)


def test_every_exceeded_limit_is_found() -> None:
    assert exceeded({"a": 10, "b": 11, "c": 1200}, {"a": 10, "b": 10, "c": 600}) == [
        "b: 11, more than 10",
        "c: 1,200, more than 600",
    ]
    assert {*LIMITS} == {"product files", "product lines", "lines of a file", "core", "wings", *wings()}


def test_modules_do_not_import_in_circles() -> None:
    found = circle(without_tables(inside()))
    assert not found, " imports ".join(found)


def test_folders_do_not_import_in_circles() -> None:
    folders: Graph = defaultdict(set)
    reasons: dict[tuple[str, str], str] = {}
    for module, names in without_tables(inside()).items():
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
    named = {module for module, names in imported().items() if any(name.split(".")[0] == "dagster" for name in names)}
    outside = {name for name in named if not name.startswith(("tokenloom.assets.dagster.", "tokenloom.dagster"))}
    assert outside == {"tokenloom.definitions"}


def test_importing_the_loaders_stays_light() -> None:
    heavy = "{'dagster', 'datasets', 'transformers', 'pandera', 'polars', 'pydantic', 'yaml', 'tokenizers', 'jinja2', "
    heavy += "'gigatoken', 'awkward', 'PIL'}"
    program = f"import sys, tokenloom.loaders; print(sorted({heavy} & set(sys.modules)))"
    assert run([sys.executable, "-c", program], check=True).stdout == "[]\n"


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
    assert run([sys.executable, "-c", program], cwd=ROOT, check=True).stdout == ""


def lowest_versions() -> dict[str, str]:
    """The lower bounds of all libraries that `pyproject.toml` declares for users."""
    project = pyproject()["project"]
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
    tools = pyproject()["project"]["optional-dependencies"]["dev"]
    names = {canonicalize_name(re.split(r"[\[>]", tool)[0]) for tool in tools} | lowest_versions().keys()
    assert names - pinned("constraints.txt").keys() == {"tokenloom"}


def test_scripts_do_not_shadow_libraries() -> None:
    """Python puts a script's folder first on the path, so its neighbours must not have a library's name."""
    scripts = [path for folder in SCRIPTS for path in (ROOT / folder).rglob("*.py")]
    libraries = {name.split(".")[0] for names in imported().values() for name in names} | sys.stdlib_module_names
    libraries |= {name.replace("-", "_") for name in lowest_versions()}
    assert {path.stem for path in scripts} & libraries == set()


def strings(tree: ast.Module) -> Iterator[str]:
    """The strings of a module, without docstrings and other strings that are statements of their own."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node.value


def readers_of_variables(trees: Mapping[str, ast.Module]) -> list[str]:
    """The files whose code names a variable that chooses cases."""
    return [
        f"{name} names {variable}"
        for name, tree in trees.items()
        for variable in sorted({found[0] for text in strings(tree) for found in VARIABLES.finditer(text)})
    ]


def test_one_file_of_the_tests_reads_what_chooses_cases() -> None:
    texts = {name: path for name, path in files_of_tests().items() if path != READS_VARIABLES}
    trees = {name: parsed(path) for name, path in texts.items() if VARIABLES.search(path.read_text())}
    faults = [f"{fault}: import it from support.soak" for fault in readers_of_variables(trees)]
    assert not faults, "\n".join(faults)


def test_every_reader_of_a_variable_is_found() -> None:
    soak, data = "TOKENLOOM_" + "SOAK", "TOKENLOOM_" + "REAL_DATA"
    trees = {
        "a.py": ast.parse(f"import os\nX = os.environ['{soak}']\ndef f(): return f'{data}={{X}}' + '{data}'"),
        "b.py": ast.parse(f"'{soak}'\ndef f():\n    '''Set {data}.'''\n    return 'TOKENLOOM'"),
        "c.py": ast.parse(f"run('''python -c \"{soak}\"''')"),
    }
    assert readers_of_variables(trees) == [f"a.py names {data}", f"a.py names {soak}", f"c.py names {soak}"]


def wrong_kinds(trees: Mapping[str, ast.Module]) -> list[str]:
    """The values given to `machine` that are not kinds."""
    return [
        f"{name}: machine({kind!r})"
        for name, tree in trees.items()
        for kind in sorted(kinds_of_machines(tree).difference(get_args(Kind)))
    ]


def kinds_without_their_case(trees: Mapping[str, ast.Module]) -> list[str]:
    """The kinds of machines in use that have no `smoke` case, or several."""
    smoke: dict[str, list[str]] = {kind: [] for tree in trees.values() for kind in sorted(kinds_of_machines(tree))}
    for name, tree in trees.items():
        for test, kinds in smoke_cases(tree):
            for kind in sorted(kinds):
                smoke[kind].append(f"{name}::{test}")
    return [f"{kind}: {', '.join(cases) or 'no case'}" for kind, cases in smoke.items() if len(cases) != 1]


def trees_with_machines() -> dict[str, ast.Module]:
    """The test files in which a case is marked with the machine that it starts."""
    tests = {name: path for name, path in files_of_tests().items() if path.name.startswith("test_")}
    return {name: parsed(path) for name, path in tests.items() if kinds_of_machines(parsed(path))}


def test_machines_are_of_known_kinds() -> None:
    faults = wrong_kinds(trees_with_machines())
    assert not faults, "\n".join(faults)


def test_each_kind_of_machine_has_one_smoke_case() -> None:
    faults = kinds_without_their_case(trees_with_machines())
    assert not faults, "\n".join(faults)


MARKED = {
    "test_a.py": """
pytestmark = machine("ranks")
CASES = ["x", param("y", marks=smoke), pytest.param("z", marks=[smoke, machine("wheels")])]
SWEPT = pytest.param("w", marks=(smoke, sweep))
@pytest.mark.parametrize("name", [*CASES, SWEPT])
def test_cases(name): ...
def test_other(): ...
""",
    "test_b.py": """
BUCKET = soak.machine("bucket")
@pytest.fixture
def model(real_data): ...
@BUCKET
class TestBucket:
    @pytest.mark.smoke
    def test_smoke(self): ...
    @smoke
    def test_on_data(self, model): ...
    @smoke
    @sweep
    def test_swept(self): ...
@smoke
@machine("hub")
@pytest.mark.parametrize("name", ["x", pytest.param("y", marks=smoke)])
def test_hub(name): ...
@machine("browser")
@machine(name)
def test_browser(): ...
""",
}


def test_every_mistake_in_marks_is_found() -> None:
    trees = {name: ast.parse(text) for name, text in MARKED.items()}
    assert wrong_kinds({**trees, "test_c.py": ast.parse("machine('x')\nmachine('hub')\nmachine('y')")}) == [
        "test_b.py: machine('name')",
        "test_c.py: machine('x')",
        "test_c.py: machine('y')",
    ]
    assert kinds_without_their_case(trees) == [
        "ranks: test_a.py::test_cases, test_a.py::test_cases",
        "browser: no case",
        "name: no case",
    ]


def names_in_page(page: str) -> list[str]:
    """The first cells of the tables of a page's part on modules."""
    return re.findall(r"^\| `([^`]+)` \|", page.partition("\n## Support modules\n")[2], re.MULTILINE)


def parts_of_support() -> list[str]:
    """The modules and folders of `tests/support`; folders end with a slash."""
    found = [path.relative_to(SUPPORT) for path in SUPPORT.rglob("*") if "__pycache__" not in path.parts]
    modules = [str(path.with_suffix("")) for path in found if path.suffix == ".py" and path.stem != "__init__"]
    return [*modules, *(f"{path}/" for path in found if (SUPPORT / path).is_dir())]


def differences(page: Collection[str], support: Collection[str]) -> list[str]:
    unlisted = [f"tests/README.md does not list {name}" for name in sorted(set(support).difference(page))]
    return unlisted + [f"tests/support has no {name}" for name in sorted(set(page).difference(support))]


def test_the_page_of_the_tests_lists_what_is_in_support() -> None:
    page = names_in_page((TESTS / "README.md").read_text())
    faults = differences(page, parts_of_support())
    faults += [f"tests/README.md lists {name} {count} times" for name, count in Counter(page).items() if count > 1]
    assert not faults, "\n".join(faults)


def test_every_difference_between_page_and_support_is_found() -> None:
    table = "| module | use |\n|---|---|\n| `a` | `b` |\n| `c/d` | e |\n| `f/` | g |\n"
    page = names_in_page(f"| mark | use |\n|---|---|\n| `m` | n |\n\n## Support modules\n\n{table}")
    assert page == ["a", "c/d", "f/"]
    assert differences(page, ["a", "h", "f/i"]) == [
        "tests/README.md does not list f/i",
        "tests/README.md does not list h",
        "tests/support has no c/d",
        "tests/support has no f/",
    ]
