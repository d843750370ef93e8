"""The marks of a test file, read from its source: the machines that its cases start, and the cases marked `smoke`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeGuard

Constants = dict[str, ast.expr]


def kinds_of_machines(tree: ast.AST) -> set[str]:
    """Return the values that are given to `machine` anywhere; for an expression, its source."""
    return _kinds(ast.walk(tree))


def smoke_cases(tree: ast.Module) -> list[tuple[str, set[str]]]:
    """Return the name and the kinds of machines of each case marked `smoke`, without sweeps and cases on real data.

    A case is a test function, or a `pytest.param` of one with a mark of its own. Marks are those of a function, of its
    class and of the file, also by the name of a constant of the file.
    """
    constants = _constants(tree)
    whole = [constants["pytestmark"]] if "pytestmark" in constants else []
    cases: list[tuple[str, set[str]]] = []
    for test, given in _tests(tree.body, whole):
        nodes = list(_parts(given, constants))
        if _has(nodes, "sweep") or "real_data" in _fixtures(test, tree):
            continue
        if _has(nodes, "smoke"):
            cases.append((test.name, _kinds(nodes)))
            continue
        for parameter in (node for node in nodes if _is_call(node, "param")):
            marks = list(_parts([keyword.value for keyword in parameter.keywords if keyword.arg == "marks"], constants))
            if _has(marks, "smoke") and not _has(marks, "sweep"):
                cases.append((test.name, _kinds(nodes) | _kinds(marks)))
    return cases


def _constants(tree: ast.Module) -> Constants:
    found: Constants = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def _tests(body: list[ast.stmt], marks: list[ast.expr]) -> Iterator[tuple[ast.FunctionDef, list[ast.expr]]]:
    """Yield each test function with the expressions that mark it."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, [*marks, *node.decorator_list])
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node, [*marks, *node.decorator_list]


def _parts(nodes: Iterable[ast.AST], constants: Constants, known: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """Yield nodes and all that they consist of, but not what is in a `pytest.param`: those are other cases."""
    for node in nodes:
        yield node
        if isinstance(node, ast.Name) and node.id in constants and node.id not in known:
            yield from _parts([constants[node.id]], constants, known | {node.id})
        if not _is_call(node, "param"):
            yield from _parts(ast.iter_child_nodes(node), constants, known)


def _fixtures(test: ast.FunctionDef, tree: ast.Module) -> set[str]:
    """Return the names of the fixtures of a test, and of those that they need in the same file."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found, open_ = set[str](), [test]
    while open_:
        arguments = {argument.arg for argument in open_.pop().args.args} - found
        found |= arguments
        open_ += [functions[name] for name in arguments & functions.keys()]
    return found


def _kinds(nodes: Iterable[ast.AST]) -> set[str]:
    given = [value for node in nodes if _is_call(node, "machine") for value in node.args]
    return {str(value.value) if isinstance(value, ast.Constant) else ast.unparse(value) for value in given}


def _has(nodes: Iterable[ast.AST], mark: str) -> bool:
    return any(isinstance(node, ast.Name | ast.Attribute) and _last_name(node) == mark for node in nodes)


def _is_call(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and _last_name(node.func) == name


def _last_name(node: ast.expr) -> str:
    """Return a name, or the name of an attribute."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
