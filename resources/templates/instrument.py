"""Inserts the counting of work into a parsed template: steps of loops and macros, and what operators read and make.

What counts are filters of `work_meter`, by names that no template can write.
"""

from __future__ import annotations

from typing import Any

import jinja2.nodes as n
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

STEP = 16
"""Units of work of each node of the syntax tree."""
_MOST_TERMS = 8
_OTHER_TEMPLATES = (n.Extends, n.Include, n.Import, n.FromImport, n.Block)


class Instrument(NodeTransformer):
    """Adds work counting to a tree, in place.

    Raises:
        TemplateSyntaxError: the template uses other templates or HTML escaping.
    """

    def generic_visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, _OTHER_TEMPLATES):
            name = type(node).__name__.lower()
            raise TemplateSyntaxError(f"{name} is not available: a template cannot use other templates", node.lineno)
        if isinstance(node, n.EvalContextModifier):
            raise TemplateSyntaxError("autoescape is not available: prompts are not HTML", node.lineno or 1)
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: Any) -> Any:
        work = sum(STEP + _literal(inner) for inner in node.find_all(n.Node))
        step = _operator("stepped", n.Const(work, lineno=node.lineno))
        self.generic_visit(node)
        node.body.insert(0, n.ExprStmt(step, lineno=node.lineno))
        if getattr(node, "test", None):
            node.test = n.And(step, node.test, lineno=node.lineno)
        return node

    visit_Macro = visit_CallBlock = visit_For

    def visit_Output(self, node: Any) -> Any:
        self.generic_visit(node)
        node.nodes = [_weighed(part) for part in node.nodes]
        return node

    def visit_Concat(self, node: Any) -> Any:
        self.generic_visit(node)
        return _operator("joined", *node.nodes)

    def visit_Add(self, node: Any) -> Any:
        terms: list[Any] = []
        while isinstance(node, n.Add) and len(terms) < _MOST_TERMS:
            terms.insert(0, self.visit(node.right))
            node = node.left
        return _operator("added", self.visit(node), *terms)

    def visit_Compare(self, node: Any) -> Any:
        """Weigh the operands; a comparison with constants reads at most their length."""
        self.generic_visit(node)
        if not all(_constant(operand.expr) for operand in node.ops):
            for operand in (node, *node.ops):
                searches = getattr(operand, "op", None) in ("in", "notin")
                operand.expr = _weighed(operand.expr, "searched" if searches else "weighed")
        return node

    def visit_Getitem(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node.arg, n.Slice):
            return _operator("made", node)
        node.arg = _weighed(node.arg)
        return node

    def visit_Pair(self, node: Any) -> Any:
        self.generic_visit(node)
        node.key = _weighed(node.key)
        return node


def _operator(name: str, node: Any, *others: Any) -> Any:
    """Return an expression that applies an operator of `work_meter`."""
    return n.Filter(node, f"work of {name}", list(others), [], None, None, lineno=node.lineno)


def _weighed(node: Any, operator: str = "weighed") -> Any:
    return node if _constant(node) else _operator(operator, node)


def _constant(node: Any) -> bool:
    """Return whether the node is literal, a list of literals, or a condition, which have no size to count."""
    if isinstance(node, n.List | n.Tuple):
        return all(map(_constant, node.items))
    return isinstance(node, n.Const | n.TemplateData | n.Compare | n.Test | n.Not)


def _literal(node: Any) -> int:
    """Return the length of literal text, or 0 for other nodes."""
    text = node.data if isinstance(node, n.TemplateData) else node.value if isinstance(node, n.Const) else None
    return len(text) if isinstance(text, str) else 0
