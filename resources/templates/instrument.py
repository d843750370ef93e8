"""Inserts work counting into a parsed template: into loops and macros, and around operations that make or read text.

Operations become filters whose names no template can write. The filters receive the context, which keeps the count.
This also keeps Jinja from folding constants at compile time, where `10 ** 10 ** 10` would never finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2.nodes as n
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

STEP, WRITTEN, JOINED, ADDED, WEIGHED, SEARCHED, SLICED = (
    f"work of {name}" for name in ("a step", "writing", "~", "+", "comparing", "searching", "slicing")
)
ARITHMETIC = {n.Sub: "work of -", n.Mul: "work of *", n.Pow: "work of **", n.Mod: "work of %"}
"""The filter that replaces each operator."""

_ALONE = (n.Extends, n.Include, n.Import, n.FromImport, n.Block)
_ESCAPES = (n.EvalContextModifier, n.ScopedEvalContextModifier)


def metered(tree: n.Template) -> n.Template:
    """Add work counting to the tree, in place, and return it.

    Raises:
        TemplateSyntaxError: the template uses other templates or HTML escaping.
    """
    return _Meter().visit(tree)


class _Meter(NodeTransformer):
    def generic_visit(self, node: n.Node, *args: Any, **kwargs: Any) -> n.Node:
        if isinstance(node, _ALONE):
            name = type(node).__name__.lower()
            raise TemplateSyntaxError(f"{name} is not available: a template cannot use other templates", _line(node))
        if isinstance(node, _ESCAPES):
            raise TemplateSyntaxError("autoescape is not available: prompts are not HTML", _line(node))
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: n.For) -> n.Node:
        work = _work_of([*node.body, node.test])
        self.generic_visit(node)
        if node.test is not None:
            node.test = n.And(_step(node.test, work), node.test, lineno=node.lineno)
        return _counted(node, work)

    def visit_Macro(self, node: n.Macro) -> n.Node:
        work = _work_of(node.body)
        self.generic_visit(node)
        return _counted(node, work)

    visit_CallBlock = visit_Macro

    def visit_Output(self, node: n.Output) -> n.Node:
        self.generic_visit(node)
        node.nodes = [part if isinstance(part, n.TemplateData) else _as(WRITTEN, part) for part in node.nodes]
        return node

    def visit_Concat(self, node: n.Concat) -> n.Node:
        self.generic_visit(node)
        return _as(JOINED, *node.nodes)

    def visit_Add(self, node: n.Add) -> n.Node:
        terms: list[Any] = []
        left: n.Node = node
        while isinstance(left, n.Add):
            terms.insert(0, self.visit(left.right))
            left = left.left
        return _as(ADDED, self.visit(left), *terms)

    def visit_Mul(self, node: n.BinExpr) -> n.Node:
        self.generic_visit(node)
        return _as(ARITHMETIC[type(node)], node.left, node.right)

    visit_Sub = visit_Pow = visit_Mod = visit_Mul

    def visit_Compare(self, node: n.Compare) -> n.Node:
        """Weigh the operands, except in comparisons with a constant, which read at most the constant's length."""
        constant = [_constant(node.expr), *(_constant(operand.expr) for operand in node.ops)]
        self.generic_visit(node)
        for index, operand in enumerate(node.ops):
            left, right = constant[index : index + 2]
            if operand.op in ("in", "notin"):
                operand.expr = operand.expr if right else _as(SEARCHED, operand.expr)
                weighs = not left, False
            else:
                weighs = (not (left or right),) * 2
            if weighs[1]:
                operand.expr = _as(WEIGHED, operand.expr)
            if weighs[0] and index:
                node.ops[index - 1].expr = _as(WEIGHED, node.ops[index - 1].expr)
            elif weighs[0]:
                node.expr = _as(WEIGHED, node.expr)
        return node

    def visit_Getitem(self, node: n.Getitem) -> n.Node:
        self.generic_visit(node)
        if isinstance(node.arg, n.Slice):
            return _as(SLICED, node)
        node.arg = node.arg if isinstance(node.arg, n.Const) else _as(WEIGHED, node.arg)
        return node

    def visit_Pair(self, node: n.Pair) -> n.Node:
        self.generic_visit(node)
        node.key = node.key if isinstance(node.key, n.Const) else _as(WEIGHED, node.key)
        return node


def _as(name: str, node: Any, *others: Any) -> Any:
    return n.Filter(node, name, list(others), [], None, None, lineno=node.lineno)


def _step(node: n.Node, work: int) -> Any:
    return _as(STEP, n.Const(work, lineno=node.lineno))


def _counted(node: Any, work: int) -> n.Node:
    """Return a loop, macro or call block whose body first counts its work."""
    node.body.insert(0, n.ExprStmt(_step(node, work), lineno=node.lineno))
    return node


def _constant(node: n.Node) -> bool:
    """Return whether the node is a constant or a list of constants."""
    return isinstance(node, n.Const) or (isinstance(node, n.List | n.Tuple) and all(map(_constant, node.items)))


def _work_of(nodes: Sequence[n.Node | None]) -> int:
    """Count nodes and characters of literal text, except within inner loops and macros, which count themselves."""
    work, pending = 1, [node for node in nodes if node is not None]
    while pending:
        node = pending.pop()
        work += 1 + (len(node.data) if isinstance(node, n.TemplateData) else 0)
        inner = ("body", "test") if isinstance(node, n.For | n.Macro | n.CallBlock) else ()
        pending.extend(node.iter_child_nodes(exclude=inner))
    return work


def _line(node: n.Node) -> int:
    return node.lineno or 1
