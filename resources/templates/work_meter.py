"""Counts a template's work: `Instrument` inserts operators into the parsed template, which count as it runs.

Work is counted, not timed, so that every machine accepts the same rows. A character that is made or read is one unit,
an item `ITEM`, a call `CALL`, a node of the body of a loop or macro `STEP` per iteration. Nothing is given back, so a
row's limit also bounds the memory that its values take, at about 8 bytes per unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import BuiltinMethodType
from typing import Any

import jinja2.nodes as n
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.utils import Cycler, Namespace, pass_context
from jinja2.visitor import NodeTransformer

ALLOWANCE, ALLOWANCE_EACH = 8_000_000, 2_048
"""Units of work for a row, and for each unit of its data."""
MOST, MOST_EACH = 64_000_000, 32
"""Largest allowance: units for a row, and for each unit of its data, so that long texts can be copied some times."""
ITEM, CALL, STEP = 8, 64, 16
MOST_BITS = 4096
"""Largest size of an integer."""
MOST_DEPTH = 64
"""Largest nesting depth of macro calls and recursive loops, and of lists and objects in a value."""

_SCALARS = (int, float, type(None))
_CONTAINERS = (dict, list, tuple, range, type({}.keys()), type({}.values()), type({}.items()))


class MeteredContext(Context):
    """A template's variables and its units of work; what counts them raises `SecurityError` if none are left."""

    left = allowed = ALLOWANCE
    given: Mapping[str, Any] | None = None
    """The row's data until it is added to the allowance, then None: its size is only measured when needed."""
    depth = 0

    def __init__(self, environment: Any, variables: dict[str, Any], *_: Any, **__: Any):
        """Set up what Jinja's own context does, without blocks and escaping: a context is made for every row."""
        self.environment, self.parent, self.vars = environment, variables, {}
        self.eval_ctx = environment.eval_context
        self.exported_vars, self.globals_keys = set(), set()
        self.name, self.blocks = None, {}

    def spend(self, amount: float) -> None:
        """Subtract units of work, also those of an iteration of a loop or a call of a macro."""
        self.left -= amount
        if self.left < 0:
            if self.given is not None:
                size = sum(_sizes(dict(self.given)))
                allowed = min(ALLOWANCE + ALLOWANCE_EACH * size, MOST + MOST_EACH * size)
                self.left, self.allowed, self.given = self.left + allowed - ALLOWANCE, allowed, None
            if self.left < 0:
                raise SecurityError(f"more than {self.allowed:,} units of work for one row")

    def weigh(self, value: Any) -> int:
        """Subtract and return the size of a value, which is what writing, comparing or looking it up reads.

        Raises:
            SecurityError: the value is too large, nested too deeply, or not data.
        """
        weight = 0
        for size in (len(value),) if value.__class__ is str else _sizes(value):
            weight += size
            self.spend(size)
        return weight

    def made(self, value: Any, each: int = ITEM) -> Any:
        """Count a new value and return it; an iterator is wrapped so that it counts what it yields.

        Args:
            each: units for each item.
        """
        if isinstance(value, str):
            self.left -= len(value)
            if self.left < 0:
                self.spend(0)
        elif isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                raise SecurityError(f"an integer has more than {MOST_BITS} bits")
        elif isinstance(value, (list, tuple, dict)):
            self.spend(len(value) * each)
        elif isinstance(value, set):
            raise SecurityError("a set has no order")
        elif is_iterator(value):
            self.spend(CALL)
            return self._yielded(value)
        return value

    def _yielded(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(2 * CALL)
            yield self.made(item)

    def weighed(self, value: Any) -> Any:
        """Count what is read of a value and return it."""
        kind = value.__class__
        if kind is str:
            self.left -= len(value)
            if self.left < 0:
                self.spend(0)
        elif kind is int:
            self.left -= value.bit_length()
        elif kind is not bool:
            self.weigh(value)
        return value

    def searched(self, value: Any) -> Any:
        """Count what `in` reads: nothing of an object's values, and an iterator as a list."""
        if value.__class__ is dict:
            return value
        return self.weighed(list(value) if is_iterator(value) else value)


OPERATORS = {
    f"work of {known.__name__}": pass_context(known)
    for known in (MeteredContext.spend, MeteredContext.weighed, MeteredContext.searched, MeteredContext.made)
}
"""Filters that `Instrument` inserts, by names that no template can write."""


def is_iterator(value: Any) -> bool:
    """Return whether the value is an iterator, whose items are counted as they are read."""
    return hasattr(type(value), "__next__") and not isinstance(value, LoopContext | Cycler)


def _sizes(value: Any) -> Iterator[int]:
    """Yield the sizes of a value and of everything in it, field names included, without what each contains."""
    level = [value]
    for _ in range(MOST_DEPTH + 2):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                yield ITEM + len(item)
            elif isinstance(item, _SCALARS):
                yield ITEM + (item.bit_length() if isinstance(item, int) else 0)
            elif isinstance(item, _CONTAINERS):
                yield ITEM + ITEM * len(item)
                inner += () if isinstance(item, range) else item
                inner += item.values() if isinstance(item, dict) else ()
            elif isinstance(item, Namespace):
                inner.append(item._Namespace__attrs)
            elif isinstance(item, BuiltinMethodType):
                name = item.__name__
                raise SecurityError(f"{name} is a method here; write ['{name}'] for a field of that name")
            elif not isinstance(item, Undefined):
                raise SecurityError(f"a {type(item).__name__} is not data")
        if not inner:
            return
        level = inner
    raise SecurityError(f"a value is nested more than {MOST_DEPTH} levels deep")


class Instrument(NodeTransformer):
    """Adds work counting to a tree, in place.

    Raises:
        TemplateSyntaxError: the template uses other templates or HTML escaping.
    """

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        repeats = isinstance(node, n.For | n.Macro | n.CallBlock)
        work = _work_of(node) if repeats else 0
        self.generic_visit(node)
        match node:
            case n.For() | n.Macro() | n.CallBlock():
                step = _operator("spend", n.Const(work, lineno=node.lineno))
                node.body.insert(0, n.ExprStmt(step, lineno=node.lineno))
                if isinstance(node, n.For) and node.test:
                    node.test = n.And(n.Not(step), node.test, lineno=node.lineno)
            case n.Output() | n.Concat():
                node.nodes = [_counted(part) for part in node.nodes]
            case n.Add():
                node.left, node.right = (
                    part if isinstance(part, n.Add) else _counted(part, "made") for part in (node.left, node.right)
                )
            case n.Compare() if not all(_is_free(operand.expr) for operand in node.ops):
                for operand in (node, *node.ops):
                    searches = getattr(operand, "op", None) in ("in", "notin")
                    operand.expr = _counted(operand.expr, "searched" if searches else "weighed")
            case n.Getitem(arg=n.Slice()):
                return _counted(node, "made")
            case n.Getitem():
                node.arg = _counted(node.arg)
            case n.Pair():
                node.key = _counted(node.key)
            case n.EvalContextModifier():
                raise TemplateSyntaxError("autoescape is not available: prompts are not HTML", node.lineno or 1)
            case n.Extends() | n.Include() | n.Import() | n.FromImport() | n.Block():
                message = f"{type(node).__name__.lower()} is not available: a template cannot use other templates"
                raise TemplateSyntaxError(message, node.lineno)
        return node


def _operator(name: str, node: Any) -> Any:
    return n.Filter(node, f"work of {name}", [], [], None, None, lineno=node.lineno)


def _counted(node: Any, operator: str = "weighed") -> Any:
    return node if _is_free(node) else _operator(operator, node)


def _is_free(node: Any) -> bool:
    """Return whether the size of an expression is a constant, or is counted with its parts."""
    match node:
        case n.List() | n.Tuple():
            return all(map(_is_free, node.items))
        case n.Add():  # of texts or of numbers, if one term is
            return any(
                isinstance(part, n.Const | n.Concat | n.Add) and _is_free(part) for part in (node.left, node.right)
            )
    return isinstance(node, n.Const | n.TemplateData | n.Concat | n.Compare | n.Test | n.Not)


def _work_of(node: Any) -> int:
    """Return the work of an iteration of a loop or a call of a macro: of its nodes, and of literal text."""
    literal = sum(len(str(part.as_const())) for part in node.find_all((n.Const, n.TemplateData)))
    return literal + STEP * sum(1 for _ in node.find_all(n.Node))
