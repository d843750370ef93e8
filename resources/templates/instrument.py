"""Inserts the counting of work into a parsed template: steps of loops and macros, and the sizes of operands.

What counts are filters of `work_meter`, by names that no template can write.
"""

from __future__ import annotations

from typing import Any

import jinja2.nodes as n
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

STEP = 16
"""Units of work of each node of the syntax tree."""
_REPEATED = (n.For, n.Macro, n.CallBlock)


class Instrument(NodeTransformer):
    """Adds work counting to a tree, in place.

    Raises:
        TemplateSyntaxError: the template uses other templates or HTML escaping.
    """

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        work = sum(STEP + _literal(inner) for inner in node.find_all(n.Node)) if isinstance(node, _REPEATED) else 0
        self.generic_visit(node)
        match node:
            case n.For() | n.Macro() | n.CallBlock():
                step = _counted("stepped", n.Const(work, lineno=node.lineno))
                node.body.insert(0, n.ExprStmt(step, lineno=node.lineno))
                if getattr(node, "test", None):
                    node.test = n.And(step, node.test, lineno=node.lineno)
            case n.Output() | n.Concat():
                node.nodes = [_weighed(part) for part in node.nodes]
            case n.Add():
                node.left, node.right = (
                    part if isinstance(part, n.Add) or _is_free(part) else _counted("made", part)
                    for part in (node.left, node.right)
                )
            case n.Compare() if not all(_is_free(operand.expr) for operand in node.ops):
                for operand in (node, *node.ops):
                    searches = getattr(operand, "op", None) in ("in", "notin")
                    operand.expr = _weighed(operand.expr, "searched" if searches else "weighed")
            case n.Getitem(arg=n.Slice()):
                return _counted("made", node)
            case n.Getitem():
                node.arg = _weighed(node.arg)
            case n.Pair():
                node.key = _weighed(node.key)
            case n.EvalContextModifier():
                raise TemplateSyntaxError("autoescape is not available: prompts are not HTML", node.lineno or 1)
            case n.Extends() | n.Include() | n.Import() | n.FromImport() | n.Block():
                message = f"{type(node).__name__.lower()} is not available: a template cannot use other templates"
                raise TemplateSyntaxError(message, node.lineno)
        return node


def _counted(name: str, node: Any) -> Any:
    """Return an expression that applies an operator of `work_meter`."""
    return n.Filter(node, f"work of {name}", [], [], None, None, lineno=node.lineno)


def _weighed(node: Any, operator: str = "weighed") -> Any:
    return node if _is_free(node) else _counted(operator, node)


def _is_free(node: Any) -> bool:
    """Return whether the size of an expression is a constant, or is counted with its parts."""
    match node:
        case n.List() | n.Tuple():
            return all(map(_is_free, node.items))
        case n.Add():  # of text or numbers, if a term is
            return any(isinstance(part, n.Const | n.Concat | n.Add) and _is_free(part) for part in (node.left, node.right))
    return isinstance(node, n.Const | n.TemplateData | n.Concat | n.Compare | n.Test | n.Not)


def _literal(node: Any) -> int:
    """Return the length of literal text, or 0 for other nodes."""
    text = node.data if isinstance(node, n.TemplateData) else node.value if isinstance(node, n.Const) else None
    return len(text) if isinstance(text, str) else 0
