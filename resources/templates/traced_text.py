"""Text that knows, part by part, which columns it was made from, and templates that write it.

`TracedSandbox` runs a template over such values. They behave as the plain values they equal, so the template writes the
same text. What joins, cuts or trims them keeps their parts; what else is made from them is one part, made from all of
their columns.

Values know the columns that they come from. What remains is to follow constants that columns choose,
and to decide node by node: if a part of an output node depends on a trained column, the whole node does. Text
that a macro or a block has written keeps the parts that its own output nodes have given it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType
from typing import Any, NamedTuple, SupportsIndex

import jinja2.nodes as n
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from tokenloom.resources.templates.sandbox import OPERATORS, MeteredContext, Sandbox, is_iterator

_NONE: frozenset[str] = frozenset()


class TracedPart(NamedTuple):
    """A part of a text.

    Args:
        text: the text.
        columns: the columns that it was made from or chosen by.
        is_value: whether it holds text of these columns; else it is the template's own text.
        line: the template's line that writes it, or 0.
        is_text: whether what the template wrote here was a text, a number or a boolean.
    """

    text: str
    columns: frozenset[str] = _NONE
    is_value: bool = False
    line: int = 0
    is_text: bool = True


class Traced(str):
    """A text with its parts."""

    parts: tuple[TracedPart, ...]

    def __new__(cls, parts: Iterable[TracedPart]) -> Traced:
        parts = tuple(parts)
        made = super().__new__(cls, "".join([part.text for part in parts]))
        made.parts = parts
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return Traced(self.parts + parts_of(other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Traced(parts_of(other) + self.parts) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        if isinstance(key, slice) and key.step in (None, 1):
            return self.cut(*key.indices(len(self))[:2])
        return traced(str.__getitem__(self, key), columns_of(self))

    def __iter__(self) -> Iterator[Traced]:
        return (Traced([part._replace(text=char)]) for part in self.parts for char in part.text)

    def cut(self, start: int, stop: int) -> Traced:
        """Return the characters from `start` to `stop`."""
        kept, at = [], 0
        for part in self.parts:
            text = part.text[max(start - at, 0) : max(stop - at, 0)]
            kept += [part._replace(text=text)] * bool(text)
            at += len(part.text)
        return Traced(kept or [TracedPart("", columns_of(self), True)])

    def made_from(self, columns: frozenset[str], line: int = 0) -> Traced:
        """Return the text with more columns for each part."""
        parts = self.parts or (TracedPart(""),)
        return Traced([part._replace(columns=part.columns | columns, line=line or part.line) for part in parts])


class _Integer(int):
    columns: frozenset[str]

    def __str__(self) -> str:
        return Traced([TracedPart(int.__repr__(self), self.columns, bool(self.columns))])


class _Float(float):
    columns: frozenset[str]

    def __str__(self) -> str:
        return Traced([TracedPart(float.__repr__(self), self.columns, bool(self.columns))])


def parts_of(text: str) -> tuple[TracedPart, ...]:
    """Return the parts of a text; one without any is the template's own."""
    return text.parts if isinstance(text, Traced) else (TracedPart(text),)


def columns_of(value: Any) -> frozenset[str]:
    """Return the columns that a value was made from, as far as it is text, a number, or a list or object of them."""
    if isinstance(value, Traced):
        return frozenset().union(*(part.columns for part in value.parts))
    if isinstance(value, _Integer | _Float):
        return value.columns
    if isinstance(value, dict):
        return frozenset().union(*map(columns_of, value), *map(columns_of, value.values()))
    return frozenset().union(*map(columns_of, value)) if isinstance(value, list | tuple) else _NONE


def traced(value: Any, columns: frozenset[str]) -> Any:
    """Return an equal value whose texts and numbers come from these columns, unless they are traced already.

    Args:
        columns: none for the template's own text.
    """
    kind = type(value)
    if isinstance(value, Traced):
        return value
    if isinstance(value, str):
        return Traced([TracedPart(str.__str__(value), columns, bool(columns))])
    if kind is int or kind is float:
        number = (_Integer if kind is int else _Float)(value)
        number.columns = columns
        return number
    if kind is list or kind is tuple:
        return kind([traced(item, columns) for item in value])
    if kind is dict:
        return {traced(name, columns): traced(item, columns) for name, item in value.items()}
    return (traced(item, columns) for item in value) if is_iterator(value) else value


def join_traced(texts: Iterable[str]) -> str:
    """Join texts, as `"".join` does, and keep their parts."""
    texts = list(texts)
    if any(isinstance(text, Traced) for text in texts):
        return Traced([part for text in texts for part in parts_of(text)])
    return "".join(texts)


class TracedSandbox(Sandbox):
    """The sandbox for templates over traced values."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    concat = staticmethod(join_traced)  # pyright: ignore[reportAssignmentType]

    def meter(self) -> None:
        super().meter()
        self.filters |= {
            name: pass_context(functools.partial(_filtered, name, run))
            for name, run in self.filters.items()
            if name not in OPERATORS
        }

    def call(self, context: MeteredContext, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore
        kwargs.pop("_loop_vars", None)  # Jinja hands what a loop has set to all calls in it
        of = function.__self__ if type(function) is BuiltinMethodType else None
        if isinstance(of, dict):
            return _chosen(super().call(context, function, *args, **kwargs), *args[:1])
        if not isinstance(of, str):
            return super().call(context, function, *args, **kwargs)
        name = function.__name__
        if name == "join" and args:
            args = (list(args[0]) if is_iterator(args[0]) else args[0], *args[1:])
        result = super().call(context, getattr(str.__str__(of), name), *args, **kwargs)
        given = (args[0], of) if name == "join" and args else (of, *args)
        return _made("" if name == "format" else name, result, given, kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        result = super().call_binop(context, operator, left, right)
        if operator == "%" and isinstance(left, str):
            return _made("format", result, (left, *right) if isinstance(right, tuple) else (left, right), {})
        return result if isinstance(result, list | tuple) else _made("", result, (left, right), {})

    def getitem(self, obj: Any, argument: Any) -> Any:
        return _chosen(super().getitem(obj, argument), argument)


def _filtered(name: str, run: Callable[..., Any], context: MeteredContext, /, *args: Any, **kwargs: Any) -> Any:
    if name == "join" and args and is_iterator(args[0]):
        args = (list(args[0]), *args[1:])
    return _made(name, run(context, *args, **kwargs), args, kwargs)


def _chosen(value: Any, *by: Any) -> Any:
    """Return an item of a list or object. It counts as made from the columns of the key that chose it, too."""
    columns = columns_of(by)
    if columns and isinstance(value, str):
        return Traced(parts_of(value)).made_from(columns)
    return value


def _made(name: str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace the result of a filter, method or operator to the columns of its arguments."""
    if isinstance(result, Traced) or name in ("default", "d"):
        return result
    if isinstance(result, str):
        kept = _with_parts(name, result, args, kwargs)
        if kept is not None and kept == result:
            return kept
    given = (*args, *kwargs.values())
    columns = columns_of(given)
    is_traced = bool(columns) or any(isinstance(value, Traced | _Integer | _Float) for value in given)
    return traced(result, columns) if is_traced else result


def _with_parts(name: str, result: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Return the result of trimming, joining or formatting, with the parts kept apart; None for other functions."""
    value, *others = args
    if name in ("trim", "strip", "lstrip", "rstrip") and isinstance(value, Traced):
        left = 0 if name == "rstrip" else len(value) - len(value.lstrip(*others, *kwargs.values()))
        return value.cut(left, left + len(result))
    if name == "join" and len(others) < 2 and "attribute" not in kwargs:
        separator = parts_of(str(others[0] if others else kwargs.get("d", "")))
        texts = [parts_of(str(item)) for item in value]
        return Traced([part for text in texts for part in (*separator, *text)][len(separator) :])
    if name == "format" and not kwargs and re.fullmatch(r"(?:[^%]|%s|%%)*", value):
        given, parts = iter(others), []
        for text in re.split("(%s|%%)", str.__str__(value)):
            parts += parts_of(str(next(given))) if text == "%s" else [TracedPart("%" if text == "%%" else text)]
        return Traced(parts) if not columns_of(value) else None
    return None


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
            text = Traced([TracedPart(text, columns, bool(columns))])
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
