"""Makes a template write traced texts, so that each output node is known to depend on a trained column or not.

Values know the columns that they come from (`traced_text`). What remains is to follow constants that columns choose,
and to decide node by node: if a part of an output node depends on a trained column, the whole node does. Text
that a macro or a block has written keeps the parts that its own output nodes have given it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jinja2.nodes as n
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from tokenloom.resources.templates.traced_text import Part, Traced, columns_of, join_traced, parts_of, traced

GENERATION = "{% generation %}"
"""Counts as a column: all that generation blocks write is made from it."""


Read = Iterable[tuple[str, Any]]
"""The variables that an expression reads, with their values."""


def trace(tree: n.Template, columns: Iterable[str], trained: frozenset[str], environment: Any) -> None:
    """Make a parsed template, in place, write traced texts.

    Args:
        columns: all columns.
        trained: those that are trained.
    """
    kept = set(columns) - {name.name for name in tree.find_all(n.Name) if name.ctx != "load"}

    def columns_read(read: Read) -> frozenset[str]:
        """Return the columns of variables: of a truth value, which cannot know them, by its name."""
        known = (
            columns_of(value) or frozenset([name] if name in kept and isinstance(value, bool | None) else [])
            for name, value in read
        )
        return frozenset().union(*known)

    def written(_: Any, value: Any, line: int, read: Read) -> Traced:
        """Return what an output node writes; `read` are the variables that its expression reads."""
        text = str(value)
        if not isinstance(text, Traced):  # a constant, or a truth value that an expression has computed
            columns = columns_of(value) or columns_read(read)
            text = Traced([Part(text, columns, bool(columns))])
        columns = columns_of(text)
        if columns & trained and not any(part.line for part in text.parts):
            text = text.made_from(columns)
        is_text = not isinstance(value, list | tuple | dict | bytes)
        return Traced([part._replace(line=part.line or line, is_text=part.is_text and is_text) for part in text.parts])

    def chosen(_: Any, value: Any, *read: Read) -> Any:
        """Return a value that depends, if it is a constant, on the first variables that depend on columns."""
        found = [columns for variables in read if (columns := columns_read(variables))]
        if not found or columns_of(value):
            return value
        return Traced(parts_of(value)).made_from(found[0]) if isinstance(value, str) else traced(value, found[0])

    def joined(context: Any, *values: Any) -> str:
        return join_traced(str(context.weighed(value)) for value in values)

    def own(_: Any, text: str) -> Traced:
        return Traced(parts_of(text))

    operators = (written, chosen, joined, own)
    environment.filters |= {f"work of {known.__name__}": pass_context(known) for known in operators}
    _Tracer(tree).visit(tree)


class _Tracer(NodeTransformer):
    def __init__(self, tree: n.Template):
        self._macros = {"caller", *(macro.name for macro in tree.find_all(n.Macro))}
        self._tests: list[n.Node] = []
        """The conditions of the branches around a node."""

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, n.If):
            self._tests.append(node.test)
        read = [self._read([part]) for part in node.nodes] if isinstance(node, n.Output) else []
        choice = (node.expr2, node.expr1, node.test) if isinstance(node, n.CondExpr) else ()
        branches = [self._read([part]) for part in choice]
        self.generic_visit(node)
        match node:
            case n.If():
                self._tests.pop()
            case n.Output():
                node.nodes = [
                    part if isinstance(part, n.TemplateData) else self._written(part, reads)
                    for part, reads in zip(node.nodes, read, strict=True)
                ]
            case n.FilterBlock():
                node.filter = self._written(node.filter, n.List([]))
            case n.Assign() if self._tests and not isinstance(node.node, n.Call):
                node.node = _operator("chosen", node.node, [self._read(self._tests)])
            case n.CondExpr():
                other, one, test = branches
                node.expr1 = _operator("chosen", node.expr1, [other, test])
                node.expr2 = node.expr2 and _operator("chosen", node.expr2, [one, test])
            case n.Concat():
                return _operator("joined", node.nodes[0], node.nodes[1:])
            case n.List() | n.Tuple(ctx="load"):
                node.items = [_owned(item) for item in node.items]
            case n.Pair():
                node.key, node.value = _owned(node.key), _owned(node.value)
            case n.Call():
                node.args = [_owned(item) for item in node.args]
            case n.Keyword():
                node.value = _owned(node.value)
        return node

    def _written(self, node: n.Node, read: n.List) -> n.Filter:
        return _operator("written", node, [n.Const(node.lineno), read])

    def _read(self, nodes: Iterable[n.Node | None]) -> n.List:
        """Return the variables that expressions read, as an expression; none for what a macro writes."""
        names: dict[str, n.Node] = {}
        for node in nodes:
            inner = node
            while isinstance(inner, n.Filter) and inner.name == "trim":
                inner = inner.node
            if inner is None or (isinstance(inner, n.Call) and _name(inner.node) in self._macros):
                continue
            found = [inner, *inner.find_all(n.Name)]
            names |= {part.name: n.Name(part.name, "load") for part in found if isinstance(part, n.Name)}
        pairs = (n.Tuple([n.Const(key), name], "load") for key, name in names.items() if key not in self._macros)
        return n.List(list(pairs))


def _name(node: n.Node) -> str | None:
    return node.name if isinstance(node, n.Name) else None


def _operator(name: str, node: Any, args: list[Any]) -> Any:
    return n.Filter(node, f"work of {name}", args, [], None, None, lineno=node.lineno)


def _owned(node: Any) -> Any:
    """Mark a literal text that is stored next to values as the template's own."""
    return _operator("own", node, []) if isinstance(node, n.Const) and isinstance(node.value, str) else node
