"""Finds the output nodes of a template that depend on what is trained, and makes the template trace what it writes.

The analysis follows columns through `set`, blocks, macros, loops, namespaces and filters. It decides two things before
any row is rendered: which nodes mix a trained column with others in one expression, and which nodes the trained columns
choose or change. A condition alone trains nothing, but a constant that an expression chooses by a column depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, product
from typing import Any

import jinja2.nodes as n
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from tokenloom.resources.templates.static_analysis import TRIMS, new_namespace
from tokenloom.resources.templates.traced_text import Part, Traced, columns_of, join_traced, parts_of

GENERATION = "{% generation %}"
"""Counts as a column: all that generation blocks write is made from it."""

Text = frozenset[frozenset[str]]
"""The columns of each part of a text; a part that is not a column's value as it is also contains `_CHANGED`."""
Value = frozenset[Text]
"""The texts that an expression can have."""

_CHANGED = ""
_PLAIN: Value = frozenset([frozenset()])
_KEPT = ("trim", "string", "default", "d", "list", "first", "last", "safe", "join")
_ITERATED = ("reverse", "sort", "unique", "batch", "slice", "select", "reject", "selectattr", "rejectattr")
_NUMBERS = ("abs", "count", "float", "int", "length", "round", "sum", "wordcount")
_MOST, _PASSES = 32, 8


@dataclass(frozen=True)
class Site:
    """An expression that a template writes.

    Args:
        line: its line.
        columns: the columns that it can depend on.
        mixed: columns that it mixes with trained ones in any case, sorted; empty if none.
        depends: the trained columns that it depends on in any case.
        changes: whether it changes a trained column's value, or is chosen by it.
    """

    line: int
    columns: frozenset[str]
    mixed: tuple[str, ...]
    depends: frozenset[str]
    changes: bool


def trained_sites(tree: n.Template, columns: Iterable[str], trained: frozenset[str]) -> list[Site]:
    """Return what the template writes, in the order in which `trace` numbers it."""
    analysis = _Analysis({name: frozenset([frozenset([frozenset([name])])]) for name in columns})
    analysis.run(tree)
    sites = []
    for node in _written(tree):
        texts = analysis.seen.get(id(node), _PLAIN)
        flat = [frozenset().union(*text) - {_CHANGED} for text in texts]
        captured = _captures(tree, node)
        mixes = [
            next((part for part in (text if captured else [columns]) if _mixes(part, trained)), None)
            for text, columns in zip(texts, flat, strict=True)
        ]
        mixed = mixes[0] if mixes and all(mixes) else None
        depends = trained.intersection(*flat) if flat else frozenset()
        changes = any(part & trained and _CHANGED in part for text in texts for part in text)
        columns_written = frozenset().union(*flat)
        sites.append(Site(node.lineno, columns_written, tuple(sorted((mixed or set()) - {_CHANGED})), depends, changes))
    return sites


def trace(tree: n.Template, sites: Sequence[Site], trained: frozenset[str], environment: Any) -> None:
    """Make a parsed template, in place, write traced texts.

    What an output node writes depends as a whole on a trained column, if a part of it does: constants within it, too.
    Text that macros and blocks have written keeps the parts that it has from there.
    """

    def written(_: Any, value: Any, number: int) -> Traced:
        site, text = sites[number], str(value)
        if not isinstance(text, Traced):
            known = columns_of(value)
            text = Traced([Part(text, known or site.columns, bool(known))])
        lost = not columns_of(text) & site.depends
        known = columns_of(text)
        whole = known if known & trained and not any(part.line for part in text.parts) else frozenset()
        text = text.made_from((site.depends if lost else frozenset()) | whole, site.line)
        is_text = not isinstance(value, list | tuple | dict | bytes)
        return text if is_text else Traced([part._replace(is_text=False) for part in text.parts])

    def joined(context: Any, *values: Any) -> str:
        return join_traced(str(context.weighed(value)) for value in values)

    def own(_: Any, text: str) -> Traced:
        return Traced(parts_of(text))

    operators = {f"work of {known.__name__}": pass_context(known) for known in (written, joined, own)}
    environment.filters |= operators
    numbers = {id(node): number for number, node in enumerate(_written(tree))}
    _Tracer(numbers).visit(tree)


def _mixes(columns: frozenset[str], trained: frozenset[str]) -> bool:
    return bool(columns & trained and columns - trained - {_CHANGED})


def _captures(tree: n.Template, node: n.Node) -> bool:
    """Return whether an expression can hand on text that a macro or a block has written."""
    blocks = [name.name for block in tree.find_all(n.AssignBlock) for name in _names(block.target)]
    written = {"caller", *blocks, *(macro.name for macro in tree.find_all(n.Macro))}
    while True:  # variables that are set to such text
        more = {
            name.name
            for set_ in tree.find_all(n.Assign)
            if written.intersection(used.name for used in _names(set_.node))
            for name in _names(set_.target)
        }
        if more <= written:
            return any(name.name in written for name in _names(node))
        written |= more


def _names(node: n.Node) -> list[n.Name]:
    return [node] if isinstance(node, n.Name) else list(node.find_all(n.Name))


def _written(tree: n.Template) -> list[n.Node]:
    """Return the expressions and filter blocks that a template writes."""
    nodes = chain.from_iterable(output.nodes for output in tree.find_all(n.Output))
    blocks = [block.filter for block in tree.find_all(n.FilterBlock)]
    return [*(node for node in nodes if not isinstance(node, n.TemplateData)), *blocks]


class _Tracer(NodeTransformer):
    def __init__(self, numbers: dict[int, int]):
        self._numbers = numbers

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        number = self._numbers.get(id(node))
        self.generic_visit(node)
        match node:
            case n.Concat():
                node = _operator("joined", node.nodes[0], node.nodes[1:])
            case n.List() | n.Tuple(ctx="load"):
                node.items = [_owned(item) for item in node.items]
            case n.Pair():
                node.key, node.value = _owned(node.key), _owned(node.value)
            case n.Call():
                node.args = [_owned(item) for item in node.args]
            case n.Keyword():
                node.value = _owned(node.value)
        return node if number is None else _operator("written", node, [n.Const(number, lineno=node.lineno)])


def _operator(name: str, node: Any, args: list[Any]) -> Any:
    return n.Filter(node, f"work of {name}", args, [], None, None, lineno=node.lineno)


def _owned(node: Any) -> Any:
    """Mark a literal text that is stored beside values as the template's own."""
    return _operator("own", node, []) if isinstance(node, n.Const) and isinstance(node.value, str) else node


def _is_number(node: n.Node) -> bool:
    match node:
        case n.Const():
            return not isinstance(node.value, str)
    return isinstance(node, n.Filter) and node.name in _NUMBERS


def _capped(texts: frozenset[Text]) -> Value:
    return texts if len(texts) <= _MOST else frozenset([frozenset(), frozenset().union(*texts)])


def _either(values: Iterable[Value]) -> Value:
    return _capped(frozenset().union(*values) or _PLAIN)


def _concat(values: Iterable[Value]) -> Value:
    return reduce(lambda one, other: _capped(frozenset(a | b for a, b in product(one, other))), values, _PLAIN)


def _changed(values: Iterable[Value]) -> Value:
    """Return the texts that are made from all of these values."""
    found = (frozenset().union(*text) for text in _concat(values))
    return frozenset(frozenset([columns | {_CHANGED}]) if columns else frozenset() for columns in found)


@dataclass
class _Analysis:
    """The value of each variable over all its assignments, so that it holds in any order of execution."""

    variables: dict[str, Value]
    macros: dict[str, n.Macro] = field(default_factory=dict)
    seen: dict[int, Value] = field(default_factory=dict)
    """The values of what the template writes, by `id` of the node."""
    tests: list[Value] = field(default_factory=list)
    """The conditions that choose between the branches around a statement."""

    def run(self, tree: n.Template) -> None:
        self.macros = {macro.name: macro for macro in tree.find_all(n.Macro)}
        for _ in range(_PASSES):
            before = dict(self.variables)
            self.body(tree.body)
            if self.variables == before:
                return

    def assign(self, target: n.Node, value: Value) -> None:
        match target:
            case n.Name(name=name):
                self.set(name, value)
            case n.NSRef(name=name, attr=key):
                self.set(f"{name}.{key}", value)
            case n.Tuple():
                for item in target.items:
                    self.assign(item, value)

    def set(self, name: str, value: Value) -> None:
        self.variables[name] = _either([self.variables[name], value]) if name in self.variables else value

    def body(self, nodes: Iterable[n.Node]) -> Value:
        return _concat([self.statement(node) for node in nodes])

    def statement(self, node: n.Node) -> Value:
        """Return the text that a statement writes."""
        match node:
            case n.Output():
                return _concat([self.output(child) for child in node.nodes])
            case n.If():
                chooses = bool(node.else_ or node.elif_)
                self.tests += [self.value(node.test)] * chooses
                texts = [self.body(node.body), self.body(node.else_), *map(self.statement, node.elif_)]
                del self.tests[len(self.tests) - chooses :]
                return _either(texts)
            case n.For():
                self.loop(node)
                return _either([self.body(node.body), self.body(node.else_)])
            case n.Assign():
                if created := new_namespace(node):
                    for keyword in created[1].kwargs:
                        self.set(f"{created[0]}.{keyword.key}", self.value(keyword.value))
                else:
                    self.assign(node.target, self.branched(self.value(node.node)))
            case n.AssignBlock():
                text = self.branched(self.body(node.body))
                self.assign(node.target, text if node.filter is None else self.filtered(node.filter, text))
            case n.Macro() | n.CallBlock():
                return self.defined(node)
            case n.FilterBlock():
                self.seen[id(node.filter)] = self.filtered(node.filter, self.body(node.body))
                return self.seen[id(node.filter)]
            case n.With():
                for target, value in zip(node.targets, node.values, strict=True):
                    self.assign(target, self.value(value))
                return self.body(node.body)
            case n.Scope():
                return self.body(node.body)
            case n.ExprStmt():
                self.value(node.node)
        return _PLAIN

    def output(self, node: n.Node) -> Value:
        if isinstance(node, n.TemplateData):
            return _PLAIN
        self.seen[id(node)] = self.value(node)
        return self.seen[id(node)]

    def branched(self, value: Value) -> Value:
        """Return the value that a branch sets: a constant depends on the condition that chooses the branch."""
        return _changed(self.tests) if value == _PLAIN and self.tests else value

    def loop(self, node: n.For) -> None:
        items = node.iter.items if isinstance(node.iter, n.List | n.Tuple) else []
        rows = [item.items for item in items if isinstance(item, n.List | n.Tuple)]
        if isinstance(node.target, n.Tuple) and rows and len(rows) == len(items):
            for index, target in enumerate(node.target.items):
                self.assign(target, _either([self.value(row[index]) for row in rows if index < len(row)]))
        else:
            self.assign(node.target, self.value(node.iter))

    def defined(self, node: n.Macro | n.CallBlock) -> Value:
        for target, default in zip(node.args[len(node.args) - len(node.defaults) :], node.defaults, strict=True):
            self.assign(target, self.value(default))
        text = self.body(node.body)
        if isinstance(node, n.Macro):
            self.set(f"{node.name}()", text)
            return _PLAIN
        if isinstance(node.call.node, n.ExtensionAttribute):
            return frozenset(frozenset(part | {GENERATION} for part in (*parts, frozenset())) for parts in text)
        self.set("caller()", text)
        for target in node.args:
            self.assign(target, self.variables.get("caller", _PLAIN))
        return self.value(node.call)

    def filtered(self, node: Any, of: Value | None = None) -> Value:
        value = self.value(node.node) if of is None else of
        others = [*map(self.value, node.args), *(self.value(keyword.value) for keyword in node.kwargs)]
        if node.name == "format" and not node.kwargs:
            pattern = node.node.value if isinstance(node.node, n.Const) else None
            if isinstance(pattern, str) and pattern.count("%") == pattern.count("%s") == len(node.args):
                return _concat(others)
        if node.name == "join" and isinstance(node.node, n.List | n.Tuple):
            return _concat([*map(self.value, node.node.items), *others])
        if node.name in _ITERATED and not others:
            return frozenset(frozenset(part | {_CHANGED} for part in text) for text in value)
        if node.name in _KEPT:
            return _either([value, *others]) if node.name in ("default", "d") else _concat([value, *others])
        return _changed([value, *others])

    def called(self, node: n.Call) -> Value:
        named = {keyword.key: self.value(keyword.value) for keyword in node.kwargs}
        given = [*map(self.value, node.args), *named.values()]
        match node.node:
            case n.Name(name=name) if name in self.macros:
                for target, value in zip(self.macros[name].args, given[: len(node.args)], strict=False):
                    self.assign(target, value)
                for key, value in named.items():
                    self.set(key, value)
                self.set("varargs", _either(given))
                return self.variables.get(f"{name}()", _PLAIN)
            case n.Name(name="caller"):
                self.set("caller", _either(given))
                return self.variables.get("caller()", _PLAIN)
            case n.Name(name="dict" | "namespace" | "loop"):
                return _either(given)
            case n.Getattr(node=owner, attr=key) if key in TRIMS or key == "join":
                return _concat([self.value(owner), *given])
            case n.Getattr(node=owner, attr="items" | "values" | "get"):
                return _either([self.value(owner), *given])
        return _changed([self.value(node.node), *given])

    def value(self, node: Any) -> Value:
        """Return the texts that an expression can have."""
        match node:
            case n.Name(name=name):
                return self.variables.get(name, _PLAIN)
            case n.Getattr(node=n.Name(name=name), attr=key) if f"{name}.{key}" in self.variables:
                return self.variables[f"{name}.{key}"]
            case n.Getattr() | n.Getitem(arg=n.Const()):
                return self.value(node.node)
            case n.Filter():
                return self.filtered(node)
            case n.Call():
                return self.called(node)
            case n.CondExpr():
                branches = _either([self.value(node.expr1), self.value(node.expr2) if node.expr2 else _PLAIN])
                return _changed([self.value(node.test)]) if branches == _PLAIN else branches
            case n.And() | n.Or():
                return _either([self.value(node.left), self.value(node.right)])
            case n.Concat():
                return _concat(map(self.value, node.nodes))
            case n.Add() if not any(_is_number(term) for term in (node.left, node.right)):
                return _concat([self.value(node.left), self.value(node.right)])
            case n.Mod(right=n.Tuple(items=items)):
                return _concat([self.value(node.left), *map(self.value, items)])
            case n.List() | n.Tuple():
                return _either(map(self.value, node.items))
            case n.Dict():
                return _either(self.value(pair.value) for pair in node.items)
            case n.Node():
                return _changed([self.value(child) for child in node.iter_child_nodes()])
        return _PLAIN
