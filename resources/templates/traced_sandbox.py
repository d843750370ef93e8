"""Runs templates over traced values: what filters, methods and operators do to them, and what they ask.

`trace_looks` prepares a template over contents and fields. `trace` prepares one over columns, of which values know the
columns that they come from. What remains is to follow constants that columns choose, and to decide node by node: if a
part of an output node depends on a trained column, the whole node does. Text that a macro or a block has written keeps
the parts that its own output nodes have given it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from types import BuiltinMethodType
from typing import Any

import jinja2.nodes as n
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from tokenloom.resources.templates.sandbox import OPERATORS, MeteredContext, Sandbox, is_iterator, operator
from tokenloom.resources.templates.trace import (
    Number,
    Safe,
    Traced,
    TracedObject,
    TracedPart,
    columns_of,
    has_whole,
    join_traced,
    note,
    number,
    parts_of,
    traced,
    wholes,
)


class TracedSandbox(Sandbox):
    """The sandbox for templates over traced values."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    concat = staticmethod(join_traced)  # pyright: ignore[reportAssignmentType]

    def meter(self) -> None:
        self.filters["tojson"] = tojson
        super().meter()
        tracing = (self.filters, _filtered, self.filters.keys() - OPERATORS), (self.tests, _tested, _LOOKING_TESTS)
        for functions, run, names in tracing:
            functions |= {name: pass_context(functools.partial(run, name, functions[name])) for name in names}

    def getattr(self, obj: Any, attribute: str) -> Any:
        return super().getattr(_opened(obj) if type(obj) in _OPENED else obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        by = (argument.start, argument.stop, argument.step) if isinstance(argument, slice) else argument
        note("a value chooses a part of another one", by)
        return _chosen(super().getitem(_opened(obj), argument), argument)

    def call(self, context: MeteredContext, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore
        kwargs.pop("_loop_vars", None)  # Jinja hands what a loop has set to all calls in it
        of = function.__self__ if type(function) is BuiltinMethodType else None
        if isinstance(of, dict):
            return _chosen(super().call(context, function, *args, **kwargs), *args[:1])
        if not isinstance(of, str):
            if any(function is self.globals[name] for name in ("range", "strftime_now")):
                note("a function is called with a value", *args, *kwargs.values())
            return super().call(context, function, *args, **kwargs)
        name = function.__name__
        of = of.marked() if isinstance(of, Safe) else of
        if name == "join" and args:
            args = (list(args[0]) if is_iterator(args[0]) else args[0], *args[1:])
        result = super().call(context, getattr(of if type(of) is Markup else str.__str__(of), name), *args, **kwargs)
        given = (args[0], of) if name == "join" and args else (of, *args)
        return _made("" if name == "format" else name, result, given, kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        result = super().call_binop(context, operator, left, right)
        if _UNTRACED.issuperset((type(left), type(right))):
            return result
        if operator == "%" and isinstance(left, str):
            return _made("format", result, (left, *right) if isinstance(right, tuple) else (left, right), {})
        return result if isinstance(result, list | tuple) else _made("", result, (left, right), {})


_LOOKING_TESTS = ("divisibleby", "even", "in", "lower", "odd", "upper")
"""Tests that look at values other than by comparing them."""

_OF_LISTS = frozenset(
    "attr batch count dictsort first items last length list map reject rejectattr reverse select selectattr "  # noqa: SIM905
    "slice".split()
)
"""Filters that look at the items of a list or object only by comparing them; `dictsort` looks at keys."""

_PLAIN = ("format", "join", "replace", "trim")
"""Filters that call methods of the texts that they get; what they do is known."""


_OPENED = frozenset((TracedObject, Safe))
"""The types of values that a template gets as other ones."""


def _opened(value: Any) -> Any:
    """Return a value as a template that reads it gets it."""
    if type(value) not in _OPENED:
        return value
    return value.opened if isinstance(value, TracedObject) else value.marked()


def _tested(name: str, run: Callable[..., Any], context: MeteredContext, /, *args: Any, **kwargs: Any) -> Any:
    if name == "in" and not isinstance(args[1], str):
        return run(context, args[0], _opened(args[1]))
    note(f"a value is tested: {name}", *args)
    return run(context, *args, **kwargs)


def _filtered(name: str, run: Callable[..., Any], context: MeteredContext, /, *args: Any, **kwargs: Any) -> Any:
    if name == "join" and args and is_iterator(args[0]):
        # its items are read twice: by the filter, and for their parts
        args = (list(args[0]), *args[1:])
    if name == "safe" and isinstance(args[0], Traced):
        return Safe(args[0].parts)
    if name not in ("tojson", "default", "d"):
        args = tuple(map(_opened, args))
    plain = args
    if name in _PLAIN:
        plain = tuple(str.__str__(value) if isinstance(value, Traced) else value for value in args)
    return _made(name, run(context, *plain, **kwargs), args, kwargs)


def _chosen(value: Any, *by: Any) -> Any:
    """Return an item of a list or object. It counts as made from the columns of the key that chose it, too."""
    columns = columns_of(by)
    if columns and isinstance(value, str):
        return Traced(parts_of(value)).made_from(columns)
    return value


_UNTRACED = frozenset((str, int, float, bool, type(None)))
"""The types of plain values, which most operations of a template have."""


def _made(name: str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a filter, method or operator with the parts or the columns of its arguments."""
    given = (*args, *kwargs.values())
    if isinstance(result, Traced) or name in ("default", "d") or _UNTRACED.issuperset(map(type, given)):
        return result
    if isinstance(result, str):
        # the parts only count if they join to what Jinja made: that decides what the text is
        kept = _with_parts(name, result, args, kwargs)
        if kept is not None and str.__eq__(kept, result):
            return kept
    if has_whole(given):
        return _looked_at(name, result, given)
    columns = columns_of(given)
    is_traced = bool(columns) or any(isinstance(value, Traced | Number) for value in given)
    return traced(result, columns) if is_traced else result


def _looked_at(name: str, result: Any, given: tuple[Any, ...]) -> Any:
    """Note what a filter, method or operator asks of values, and return its result, with their parts if it has any."""
    text, *others = given
    does = f"{name or 'an operator'} is applied to a value"
    if not any(isinstance(value, Traced | Number) and has_whole(value) for value in given):
        if name not in _OF_LISTS or (name == "dictsort" and "value" in others):
            note(does, *given)
        return result
    sought = others[0] if others else None
    if not isinstance(text, Traced) or wholes(others):
        note(does, *given)
        return result
    if name in ("startswith", "endswith") and len(others) == 1:
        for one in sought if isinstance(sought, tuple) else (str(sought),):
            text.asked(name, one, getattr(str, name)(text, one))
        return result
    if name in ("length", "count") and not others and text.whole is not None:
        return number(result, measured=text.whole)
    if name not in _SEARCHES or not isinstance(sought, str) or not text.free_of(sought):
        note(does, text)
    return _located(result, text)


_SEARCHES = ("split", "rsplit", "partition", "rpartition", "replace", "count")
"""Methods that only ask whether a text has another one, if no value has it."""


def _located(result: Any, source: Traced) -> Any:
    """Return texts that were cut from another one with their parts of it; what is not found in it is returned as is."""
    if isinstance(result, str):
        at = str.find(source, result) if result else -1
        return source.cut(at, at + len(result)) if at >= 0 else result
    if not isinstance(result, list | tuple):
        return result
    found, at = [], 0
    for piece in result:
        place = str.find(source, piece, at) if isinstance(piece, str) and piece else -1
        found.append(source.cut(place, place + len(piece)) if place >= 0 else piece)
        at = place + len(piece) if place >= 0 else at
    return type(result)(found)


def _with_parts(name: str, result: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
    """Return the result of trimming, joining or formatting, with the parts kept apart; None for other functions."""
    value, *others = args
    if name in _STRIPPED and isinstance(value, Traced):
        chars = (*others, *kwargs.values(), None)[0]
        if wholes(chars):
            return None
        return value.strip_sides(_STRIPPED[name], None if chars is None else str.__str__(chars))
    if name == "join" and len(others) < 2 and "attribute" not in kwargs:
        separator = parts_of(str(others[0] if others else kwargs.get("d", "")))
        texts = [parts_of(str(item)) for item in value]
        return Traced([part for text in texts for part in (*separator, *text)][len(separator) :])
    if name == "format" and not kwargs and re.fullmatch(r"(?:[^%]|%s|%%)*", str.__str__(value)):
        given, parts = iter(others), []
        for text in re.split("(%s|%%)", str.__str__(value)):
            parts += parts_of(str(next(given))) if text == "%s" else [TracedPart("%" if text == "%%" else text)]
        return Traced(parts) if not columns_of(value) and not wholes(value) else None
    return None


_STRIPPED = {"trim": ("left", "right"), "strip": ("left", "right"), "lstrip": ("left",), "rstrip": ("right",)}
"""The sides that a filter or method strips."""


def tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write a value as JSON as `transformers` does; whole values in it keep their parts, escaped."""
    options: dict[str, Any] = {"ensure_ascii": ensure_ascii, "indent": indent}
    options |= {"separators": separators, "sort_keys": sort_keys}
    text = json.dumps(value, **options)
    if not has_whole(value):
        return text
    sign, found = "tokenloom:", list[Any]()
    while sign in text:
        sign += ":"

    def swapped(inner: Any) -> Any:
        if isinstance(inner, Traced | TracedObject | Number) and wholes(inner):
            found.append(inner)
            return f"{sign}{len(found) - 1};"
        if isinstance(inner, dict):
            return {name: swapped(item) for name, item in inner.items()}
        return [swapped(item) for item in inner] if isinstance(inner, list | tuple) else inner

    parts: list[TracedPart] = []
    for at, own in enumerate(re.split(f'"{sign}([0-9]+);"', json.dumps(swapped(value), **options))):
        if at % 2 == 0:
            parts.append(TracedPart(own))
        elif isinstance(of := found[int(own)], TracedObject):
            parts.append(of.written(options, parts[-1].text))
        elif isinstance(of, str):
            texts = ((part, json.dumps(part.text, ensure_ascii=ensure_ascii)[1:-1]) for part in parts_of(of))
            escaped = (part.changed(text, ("json", ensure_ascii)) for part, text in texts)
            parts += [TracedPart('"'), *escaped, TracedPart('"')]
        else:
            parts += parts_of(str(of))
    made = Traced(parts)
    if not str.__eq__(made, text):
        note("tojson is applied to a value", value)
        return text
    return made


Read = Iterable[tuple[str, Any]]
"""The variables that an expression reads, with their values."""


def trace_looks(tree: n.Template, environment: Any) -> None:
    """Make a parsed template, in place, keep the parts of what it joins, and look at what it searches with `in`."""
    environment.filters |= {f"work of {known.__name__}": pass_context(known) for known in (_joined, _searched)}
    _Joins().visit(tree)


class _Joins(NodeTransformer):
    def visit_Concat(self, node: n.Concat) -> n.Node:
        self.generic_visit(node)
        return operator("_joined", node.nodes[0], node.nodes[1:])

    def visit_Compare(self, node: n.Compare) -> n.Node:
        self.generic_visit(node)
        for operand in node.ops:
            if operand.op in ("in", "notin"):
                operand.expr = operator("_searched", operand.expr, [])
        return node


def _joined(context: Any, *values: Any) -> str:
    return join_traced(str(context.weighed(value)) for value in values)


def _searched(_: Any, value: Any) -> Any:
    """Return a text so that it notes whether a value is searched for in it: Python asks only the text."""
    return Traced([TracedPart(value)]) if type(value) is str else _opened(value)


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

    def own(_: Any, text: str) -> Traced:
        return Traced(parts_of(text))

    operators = (written, chosen, _joined, own)
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
                pairs = zip(node.nodes, read, strict=True)
                node.nodes = [one if isinstance(one, n.TemplateData) else self._written(one, of) for one, of in pairs]
            case n.FilterBlock():
                node.filter = self._written(node.filter, n.List([]))
            case n.Assign() if self._tests and not isinstance(node.node, n.Call):
                node.node = operator("chosen", node.node, [self._read(self._tests)])
            case n.CondExpr():
                other, one, test = branches
                node.expr1 = operator("chosen", node.expr1, [other, test])
                node.expr2 = node.expr2 and operator("chosen", node.expr2, [one, test])
            case n.Concat():
                return operator("_joined", node.nodes[0], node.nodes[1:])
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
        return operator("written", node, [n.Const(node.lineno), read])

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


def _owned(node: Any) -> Any:
    """Mark a literal text that is stored next to values as the template's own."""
    return operator("own", node, []) if isinstance(node, n.Const) and isinstance(node.value, str) else node
