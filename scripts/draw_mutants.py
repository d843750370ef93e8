"""Draw small faults from the product's code, and find the first case of the tests that catches each.

python scripts/draw_mutants.py draw     write tests/drawn_mutants.toml; what is known of the same faults stays
python scripts/draw_mutants.py enter    run all tests, and note which of them enter the places of the faults
python scripts/draw_mutants.py catch    run the cases that enter a fault's place until one fails; can be interrupted
python scripts/draw_mutants.py catch --only NAME …

A fault is a changed comparison, constant or return value, a dropped statement, or two swapped arguments. A file has
one, more if it has many branches. The draw depends on the file alone. `catch` runs the cases of `make test` first, then
those that start machines, then sweeps, the fastest first, and writes what it finds into the table.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from mutants import (
    COLLECTION,
    DRAWN,
    ROOT,
    SECONDS,
    WORKERS,
    Runner,
    copied,
    one_of,
    place_of,
    product_files,
    read,
    runners,
)

ENTERED = ROOT / "build" / "entered_mutants.json"
BRANCHES = 120
"""A file has one fault, and one more for each so many branches, at most `MOST`."""

MOST = 3
SMALLEST = 40
"""Files with fewer statements than this have no fault of their own."""

HEADER = """\
# Faults drawn from the code by scripts/draw_mutants.py, each with the first case that catches it; `make mutants` plants
# a sample of them. `suite` is the command that catches a fault: test, machines or soak. `harmless` says why a fault
# changes nothing that a user could see.
"""
OPERATORS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ANY_ORDER = {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "max", "min", "print", "cast", "zip"}
"""Functions whose arguments are not swapped: the result is the same, or an error at once."""


@dataclass(frozen=True)
class Edit:
    """Bytes of a file to replace, within a statement of one of its functions."""

    kind: str
    start: int
    end: int
    new: str
    statement: ast.stmt
    function: str


class Source:
    """The code of a file, with the bytes that its nodes are at."""

    def __init__(self, text: str):
        self.text = text
        self.data = text.encode()
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def edits(self) -> Iterator[Edit]:
        """Yield every fault that could be planted in the functions of the file."""
        for name, function in functions(self.tree):
            for statement in statements(function.body):
                yield from (Edit(*edit, statement, name) for edit in self.of_statement(statement))
                for node in expressions(statement):
                    yield from (Edit(*edit, statement, name) for edit in self.of_expression(node))

    def of_statement(self, node: ast.stmt) -> Iterator[tuple[str, int, int, str]]:
        start, end = self.span(node)
        if isinstance(node, ast.Return) and node.value is not None and not is_number(node.value):
            truth = isinstance(node.value, ast.Compare | ast.BoolOp) or is_not(node.value)
            yield "return value", start, end, f"return not ({self.code(node.value)})" if truth else "return None"
        call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        place = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        guard = isinstance(node, ast.If) and not node.orelse and len(node.body) == 1
        if call or place or guard or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue):
            yield "dropped statement", start, end, "pass"

    def of_expression(self, node: ast.expr) -> Iterator[tuple[str, int, int, str]]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            old, new = OPERATORS[type(node.ops[0])]
            yield from self.between(node.left, node.comparators[0], old, new)
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from self.between(node.values[0], node.values[1], old, new)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            start, end = self.span(node)
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            yield "constant", start, end, new
        elif isinstance(node, ast.Call) and name_of(node.func) not in ANY_ORDER:
            first = node.args[:2]
            if len(first) == 2 and not any(isinstance(one, ast.Starred) for one in first):
                (start, middle), (second, end) = map(self.span, first)
                swapped = self.data[second:end] + self.data[middle:second] + self.data[start:middle]
                if swapped != self.data[start:end]:
                    yield "swapped arguments", start, end, swapped.decode()

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[tuple[str, int, int, str]]:
        start, end = self.span(left)[1], self.span(right)[0]
        word = old.replace(" ", r"\s+")
        if found := re.search(rf"(?<![\w<>=!]){word}(?![\w<>=!])", self.data[start:end].decode()):
            yield "comparison", start + found.start(), start + found.end(), new

    def snippets(self, edit: Edit, everywhere: str) -> tuple[str, str] | None:
        """Return the lines of an edit before and after it, with as many above them as make them unique in the code."""
        text = (self.data[: edit.start] + edit.new.encode() + self.data[edit.end :]).decode()
        lines = self.text.splitlines(keepends=True)
        first = self.data[: edit.start].count(b"\n")
        last = self.data[: edit.end].count(b"\n")
        for top in range(first, max(first - 12, -1), -1):
            old = "".join(lines[top : last + 1])
            if everywhere.count(old) == 1:
                rest = sum(map(len, lines[last + 1 :]))
                return old, text[sum(map(len, lines[:top])) : len(text) - rest]
        return None


def name_of(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def is_number(node: ast.expr) -> bool:
    """Whether a returned value is None, or a number or flag, which faults of constants change."""
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, int))


def is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif not isinstance(node, ast.expr):
            yield from functions(node, prefix)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function and those inside them, without those of the functions and classes in it."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assert | ast.Pass):
            continue
        yield statement
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            for part in getattr(statement, inside, []):
                yield from statements([part] if isinstance(part, ast.stmt) else part.body)


def expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement alone: neither those of statements in it, nor annotations, nor messages."""
    if isinstance(statement, ast.Raise):
        return
    for name, value in ast.iter_fields(statement):
        for node in value if isinstance(value, list) else [value]:
            if (isinstance(node, ast.expr) and name != "annotation") or isinstance(node, ast.withitem):
                yield from (part for part in ast.walk(node) if isinstance(part, ast.expr))


def drawn() -> dict[str, dict[str, Any]]:
    """Draw the faults of every file; each kind is as probable as the others."""
    sources = {path: Source(path.read_text(encoding="utf-8")) for path in product_files(ROOT)}
    everywhere = "\0".join(source.text for source in sources.values())
    mutants: dict[str, dict[str, Any]] = {}
    for path, source in sources.items():
        where = path.relative_to(ROOT).as_posix()
        edits: dict[str, list[Edit]] = defaultdict(list)
        for edit in source.edits():
            edits[edit.kind].append(edit)
        nodes = list(ast.walk(source.tree))
        branches = sum(isinstance(node, ast.Compare | ast.BoolOp | ast.If | ast.IfExp) for node in nodes)
        if sum(isinstance(node, ast.stmt) for node in nodes) < SMALLEST:
            continue
        chance = random.Random(where)
        count = min(MOST, 1 + branches // BRANCHES)
        while count and any(edits.values()):
            kind = chance.choice([kind for kind, of_kind in edits.items() if of_kind])
            edit = edits[kind].pop(chance.randrange(len(edits[kind])))
            if (snippets := source.snippets(edit, everywhere)) is None:
                continue
            words = re.sub(r"\W+|_", "-", f"{path.parent.name}-{path.stem}-{edit.function.rpartition('.')[2]}").strip(
                "-"
            )
            name = f"{words}-{kind.split()[0]}"
            name = name if name not in mutants else f"{name}-{count}"
            old, new = snippets
            mutants[name] = {"fault": f"{kind} in {where}, {edit.function}", "old": old, "new": new}
            count -= 1
    return mutants


def toml_value(value: Any) -> str:
    lines = isinstance(value, str) and value.endswith("\n") and "'''" not in value
    return f"'''\n{value}'''" if lines else json.dumps(value, ensure_ascii=False)


def write(mutants: dict[str, dict[str, Any]]) -> None:
    blocks = [
        "\n".join([f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in mutant.items())])
        for name, mutant in mutants.items()
    ]
    written = DRAWN.with_suffix(".writing")
    written.write_text(HEADER + "\n" + "\n\n".join(blocks) + "\n", encoding="utf-8")
    written.replace(DRAWN)


def draw() -> None:
    known = {(mutant["old"], mutant["new"]): mutant for mutant in (read(DRAWN) if DRAWN.exists() else {}).values()}
    mutants = drawn()
    write({name: known.get((mutant["old"], mutant["new"]), mutant) | mutant for name, mutant in mutants.items()})
    print(f"{len(mutants)} faults in {DRAWN.relative_to(ROOT)}")


PROBE = """
import os

seen = set()


def entered(name):
    context = os.environ.get("MUTANT_FIXTURE") or os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if context and (name, context) not in seen:
        seen.add((name, context))
        file = os.open(f"{os.environ['MUTANT_PLACES']}/{os.getpid()}.places", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{name}\\t{context}\\n".encode())
        os.close(file)
"""
"""A module that notes which case, or which fixture that cases share, enters the place of a fault, in any process."""


class Contexts:
    """The plugin of pytest that says which shared fixture is being made, and which cases use it."""

    @staticmethod
    def pytest_collection_finish(session: pytest.Session) -> None:
        users = {item.nodeid: [*shared_fixtures(item)] for item in session.items}
        Path(os.environ["MUTANT_PLACES"], f"{os.getpid()}.users").write_text(json.dumps(users))

    @staticmethod
    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(fixturedef: Any) -> Iterator[Any]:
        before = os.environ.get("MUTANT_FIXTURE", "")
        if fixturedef.scope != "function":
            os.environ["MUTANT_FIXTURE"] = fixture_name(fixturedef)
        try:
            return (yield)
        finally:
            os.environ["MUTANT_FIXTURE"] = before


def fixture_name(fixture: Any) -> str:
    return f"fixture {fixture.argname} of {fixture.baseid}"


def shared_fixtures(item: Any) -> Iterator[str]:
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        if fixtures[-1].scope != "function":
            yield fixture_name(fixtures[-1])


def pytest_configure(config: pytest.Config) -> None:
    plugin = Contexts() if "MUTANT_PLACES" in os.environ else Suites()
    config.pluginmanager.register(plugin, "mutants")


def plant_probes(tree: Path) -> None:
    """Let the statement of each fault say that it is entered."""
    (tree / "mutant_probe.py").write_text(PROBE)
    names: dict[Path, list[tuple[str, int]]] = defaultdict(list)
    for name, mutant in read(DRAWN).items():
        place = place_of(tree, [mutant["old"]])
        assert place is not None, f"{name}: its snippet is not in the code exactly once"
        start = place[0].read_text(encoding="utf-8").index(mutant["old"])
        same = next(at for at, (old, new) in enumerate(zip(mutant["old"], mutant["new"], strict=False)) if old != new)
        names[place[0]].append((name, start + same))
    for path, places in names.items():
        text = path.read_text(encoding="utf-8")
        source = Source(text)
        for name, place in places:
            body, at = innermost(source, source.tree, len(text[:place].encode()))
            probe = ast.parse(f"__import__('mutant_probe').entered({name!r})").body[0]
            body.insert(at, probe)
        path.write_text(ast.unparse(ast.fix_missing_locations(source.tree)) + "\n", encoding="utf-8")


def innermost(source: Source, node: ast.AST, place: int) -> tuple[list[ast.stmt], int]:
    """Return the smallest statement that has a byte, as its place in the list of statements that it is in."""
    best: tuple[int, list[ast.stmt], int] | None = None
    for parent in ast.walk(node):
        for _, body in ast.iter_fields(parent):
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                for at, statement in enumerate(body):
                    if not hasattr(statement, "end_lineno") or statement.end_lineno is None:
                        continue  # a probe
                    start, end = source.span(statement)
                    if start <= place < end and (best is None or end - start < best[0]):
                        best = end - start, body, at
    assert best is not None
    return best[1], best[2]


def enter(pytest_arguments: list[str], tree: Path) -> None:
    """Run the tests on a copy with probes; write each fault's cases into `ENTERED`."""
    with tempfile.TemporaryDirectory(prefix="tokenloom-entered-") as folder:
        copy, notes = Path(folder) / "tree", Path(folder) / "notes"
        copied(tree, copy)
        plant_probes(copy)
        notes.mkdir()
        path = os.pathsep.join([str(copy), str(copy / "tests"), str(ROOT / "scripts")])
        environment = {**os.environ, "MUTANT_PLACES": str(notes), "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "draw_mutants", "-m", "", *pytest_arguments]
        subprocess.run(command, cwd=copy, env=environment)
        users: dict[str, list[str]] = defaultdict(list)
        cases = json.loads(max(notes.glob("*.users"), key=lambda path: path.stat().st_size).read_text())
        for case, fixtures in cases.items():
            for fixture in fixtures:
                users[fixture].append(case)
        found: dict[str, set[str]] = {name: set() for name in read(DRAWN)}
        for file in notes.glob("*.places"):
            for line in file.read_text().splitlines():
                name, _, context = line.partition("\t")
                found[name].update(users.get(context, [context]))
    ENTERED.parent.mkdir(exist_ok=True)
    entered = {name: sorted(of_fault) for name, of_fault in found.items()}
    ENTERED.write_text(json.dumps({"cases": sorted(cases), "entered": entered}))
    print(f"{sum(map(bool, found.values()))} of {len(found)} places are entered")


class Suites:
    """The plugin of pytest that writes which command runs each collected case."""

    @staticmethod
    def pytest_collection_finish(session: pytest.Session) -> None:
        suites: dict[str, str] = {}
        for item in session.items:
            of_machine, smoke, sweep = (item.get_closest_marker(name) for name in ("machine", "smoke", "sweep"))
            suites[item.nodeid] = "soak" if sweep else "machines" if of_machine and not smoke else "test"
        Path(os.environ["MUTANT_SUITES"]).write_text(json.dumps(suites))


def suites_of_cases() -> dict[str, str]:
    """Return the command that runs each case of this checkout: test, machines or soak."""
    with tempfile.NamedTemporaryFile() as file:
        path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "tests")])
        environment = {**os.environ, "MUTANT_SUITES": file.name, "PYTHONPATH": path}
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "", "-p", "draw_mutants"]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
        return json.loads(Path(file.name).read_text())


class Search:
    """Which cases to run for a fault, and in which order.

    Attributes:
        suites: the command that runs each case.
        seconds: the CPU seconds of each case in an earlier run; what is not known counts as a second.
        entered: the cases that entered the place of each fault, as they were called when that was measured.
        known: all cases that ran then.
        chosen: the commands whose cases are run, one after the other.
        longest: CPU seconds of cases of each command to run for a fault, of which the fastest come first.
    """

    def __init__(self, times: Path | None, chosen: Sequence[str], longest: float):
        self.chosen, self.longest = chosen, longest
        measured = json.loads(ENTERED.read_text())
        self.suites = suites_of_cases()
        self.entered: dict[str, set[str]] = {name: set(cases) for name, cases in measured["entered"].items()}
        self.known = set(measured["cases"])
        self.seconds: dict[str, float] = {}
        for path in times.glob("*.jsonl") if times else []:
            lines = map(json.loads, path.read_text().splitlines())
            self.seconds |= {line["name"]: line["cpu"] for line in lines if line.get("what") == "case"}

    def batches(self, name: str, file: Path) -> Iterator[tuple[str, list[str]]]:
        """Yield cases that may catch a fault and their command: few fast ones first, those of its folder first."""
        entered = self.entered.get(name, set())
        functions = {case.partition("[")[0] for case in entered}
        renamed = {case for case in self.suites if case not in self.known and case.partition("[")[0] in functions}
        cases = [case for case in self.suites if case in entered or case in renamed]
        near = set(file.with_suffix("").parts)

        def cost(case: str) -> float:
            shared = len(near & set(Path(case.partition("::")[0].replace("test_", "")).with_suffix("").parts))
            return self.seconds.get(case, 1.0) / 4**shared

        for suite in self.chosen:
            rest = sorted((case for case in cases if self.suites[case] == suite), key=cost)
            spent = list(accumulate(self.seconds.get(case, 1.0) for case in rest))
            rest = rest[: 1 + bisect(spent, self.longest)]
            for most in (8, 60, 400, len(rest)):
                if batch := rest[:most]:
                    rest = rest[most:]
                    yield suite, sorted(batch, key=lambda case: case.partition("::")[0])


def catch(only: list[str], search: Search) -> None:
    """Find the first case that catches each fault of which nothing is known yet.

    A case that also fails on a copy without a fault says nothing of it: at the end, all that caught one run on the code
    as it is.
    """
    mutants, lock = read(DRAWN), Lock()
    names = only or [name for name, mutant in mutants.items() if not mutant.keys() & {"tests", "harmless", "missed"}]

    def first(runner: Runner, name: str) -> tuple[str, str] | None:
        mutant = mutants[name]
        place = place_of(runner.tree, [mutant["old"]])
        assert place is not None, f"{name}: its snippet is not in the code exactly once"
        with runner.planted(*place, mutant["new"]):
            for suite, cases in search.batches(name, place[0].relative_to(runner.tree)):
                if found := runner.run(cases).case:
                    return suite, found
        return None

    def search_for(name: str) -> None:
        with one_of(ready) as runner:
            found = first(runner, name)
        with lock:
            note(name, found)
            print(f"{found[0] if found else 'missed':8} {name}  {found[1] if found else ''}", flush=True)

    def note(name: str, found: tuple[str, str] | None) -> None:
        fault = {key: mutants[name][key] for key in ("fault", "old", "new")}
        mutants[name] = fault | ({"suite": found[0], "tests": [found[1]]} if found else {"missed": True})
        write(mutants)

    with (
        tempfile.TemporaryDirectory(prefix="tokenloom-mutants-") as folder,
        runners(ROOT, Path(folder)) as ready,
        ThreadPoolExecutor(WORKERS) as threads,
    ):
        list(threads.map(search_for, names))
        caught = {name: mutants[name]["tests"][0] for name in names if "tests" in mutants[name]}
        with one_of(ready) as runner:
            broken = set(runner.run({*caught.values()} - {COLLECTION}, 10 * SECONDS, stop=False).failed)
    missed = [name for name, mutant in mutants.items() if mutant.get("missed")]
    print(f"{len(caught)} of {len(names)} faults are caught; not caught in the table: {', '.join(missed) or 'none'}")
    if broken:
        again = [name for name, case in caught.items() if case in broken]
        print(f"fail without a fault: {', '.join(sorted(broken))}; search again, without them, for: {', '.join(again)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["draw", "enter", "catch"])
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="enter: the checkout whose tests run; default: this one"
    )
    parser.add_argument("--times", type=Path, help="catch: measurements of scripts/test_times.py --keep, for the order")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="catch: these faults")
    suites = ["test", "machines", "soak"]
    parser.add_argument(
        "--suites", nargs="+", default=suites, choices=suites, help="catch: with cases of these commands"
    )
    parser.add_argument(
        "--longest", type=float, default=60, metavar="SECONDS", help="catch: CPU time of cases per command"
    )
    options, rest = parser.parse_known_args()
    if options.step == "draw":
        draw()
    elif options.step == "enter":
        enter(rest, options.tree)
    else:
        catch(options.only, Search(options.times, options.suites, options.longest))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
