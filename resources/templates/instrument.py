"""Inserts the counting of work into a parsed template: into loops and macros, and around operators.

Operators become filters of `work_meter`, by names that no template can write.
"""

from __future__ import annotations

from typing import Any

import jinja2.nodes as n
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

STEP = 8
"""Units of work of a node of the syntax tree."""
_STEPS = dict.fromkeys((n.Getattr, n.Getitem, n.Compare, n.Filter, n.Test, n.Call), 4) | dict.fromkeys(
    (n.For, n.Macro, n.CallBlock, n.FilterBlock, n.AssignBlock), 16
)
"""Steps of nodes that take more time or memory than others."""
_MOST_TERMS = 8
_OTHER_TEMPLATES = (n.Extends, n.Include, n.Import, n.FromImport, n.Block)


def operator(name: str, node: Any, *others: Any) -> Any:
    """Return an expression that applies an operator of `work_meter`."""
    return n.Filter(node, f"work of {name}", list(others), [], None, None, lineno=node.lineno)


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
        step = operator("stepped", n.Const(_work_of([*node.body, getattr(node, "test", None)]), lineno=node.lineno))
        self.generic_visit(node)
        node.body.insert(0, n.ExprStmt(step, lineno=node.lineno))
        if getattr(node, "test", None):
            node.test = n.And(step, node.test, lineno=node.lineno)
        return node

    visit_Macro = visit_CallBlock = visit_For

    def visit_Output(self, node: Any) -> Any:
        self.generic_visit(node)
        for index, part in enumerate(node.nodes):
            made = part.name if isinstance(part, n.Filter) else ""
            if made == "work of added":
                part.name = "work of added and written"
            elif made != "work of joined" and not _literal(part):
                node.nodes[index] = operator("weighed", part)
        return node

    def visit_Concat(self, node: Any) -> Any:
        self.generic_visit(node)
        return operator("joined", *node.nodes)

    def visit_Add(self, node: Any) -> Any:
        terms: list[Any] = []
        while isinstance(node, n.Add) and len(terms) < _MOST_TERMS:
            terms.insert(0, self.visit(node.right))
            node = node.left
        return operator("added", self.visit(node), *terms)

    def visit_Compare(self, node: Any) -> Any:
        """Weigh the operands; a comparison with a constant reads at most the constant's length."""
        self.generic_visit(node)
        operands: list[Any] = [node, *node.ops]
        weighs = len(operands) > 2 or not any(_constant(operand.expr) for operand in operands)
        for operand in operands:
            searches = getattr(operand, "op", None) in ("in", "notin")
            if (weighs or searches) and not _constant(operand.expr):
                operand.expr = operator("searched" if searches else "weighed", operand.expr)
        return node

    def visit_Getitem(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node.arg, n.Slice):
            return operator("counted", node)
        node.arg = node.arg if isinstance(node.arg, n.Const) else operator("weighed", node.arg)
        return node

    def visit_Pair(self, node: Any) -> Any:
        self.generic_visit(node)
        node.key = node.key if isinstance(node.key, n.Const) else operator("weighed", node.key)
        return node


def _constant(node: Any) -> bool:
    """Return whether the node is a constant, a list of constants, or a condition."""
    if isinstance(node, n.List | n.Tuple):
        return all(map(_constant, node.items))
    return isinstance(node, n.Const | n.Compare | n.Test | n.Not)


def _literal(node: Any) -> int:
    """Return the length of literal text, or 0 for other nodes."""
    text = node.data if isinstance(node, n.TemplateData) else node.value if isinstance(node, n.Const) else None
    return len(text) if isinstance(text, str) else 0


def _work_of(nodes: list[Any]) -> int:
    """Return the work of nodes and of literal text, except within inner loops and macros, which count themselves."""
    work, pending = STEP, nodes
    while pending:
        node = pending.pop()
        if node is not None:
            work += STEP * _STEPS.get(type(node), 1) + _literal(node)
            inner = ("body", "test") if isinstance(node, n.For | n.Macro | n.CallBlock) else ()
            pending.extend(node.iter_child_nodes(exclude=inner))
    return work
