"""Decides from a template's syntax whether it only places contents: writes, trims and joins them with other text.

The output of such a template follows from where it places each content, for any text, as long as no content is white
space only. The template can test whether a content is empty, but cannot look further into it. Every expression gets a
kind; an expression that looks into a content, or that this analysis does not know, makes the template opaque.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import jinja2.nodes as n

from tokenloom.errors import TemplateError


class Kind(IntEnum):
    """What an expression can contain, in increasing order."""

    PLAIN = 0
    """No content: literals, roles, names, tools, counters."""
    CONTENT = 1
    """One content, possibly trimmed."""
    TEXT = 2
    """Contents joined with each other or with other text."""
    MESSAGE = 3
    """A message of a conversation."""
    MESSAGES = 4
    """A list of messages."""


class Opaque(TemplateError):
    """The template does more with contents than place them; the message names the line and the expression."""


TRIMS = ("strip", "lstrip", "rstrip")
_MESSAGE_FILTERS = {
    "list": Kind.MESSAGES,
    "first": Kind.MESSAGE,
    "last": Kind.MESSAGE,
    "length": Kind.PLAIN,
    "count": Kind.PLAIN,
}
_SELECTING = ("selectattr", "rejectattr")
_CONSTANTS = ("role", "name", "tool_calls")
"""Message fields by which a template can select messages."""
_VALUES = ("content", "reasoning_content", "reasoning", "thinking")
"""Message fields that are contents."""
_FILTERS = frozenset(
    "abs batch capitalize center count d default dictsort first float format indent int items join last length list "  # noqa: SIM905
    "lower map max min reject rejectattr replace reverse round select selectattr slice sort string sum title tojson "
    "trim truncate unique upper urlencode wordcount wordwrap".split()
)
"""Deterministic filters whose result does not escape text that is joined to it."""
_LOOP = ("index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "cycle", "changed")
_RESERVED = ("loop", "namespace", "raise_exception", "lipsum", "caller", "_marks_generation")
_CONTENT_TESTS = ("string", "defined", "undefined", "none", "mapping", "iterable", "sequence", "number", "boolean")
_PASSES = 8


def check_places_only(tree: n.Template, kinds: Mapping[str, Kind]) -> None:
    """Check that a parsed template only places contents.

    Args:
        kinds: the kinds of its variables; default for each: `Kind.PLAIN`.

    Raises:
        Opaque: the template does something else with a content.
    """
    _Analysis(dict(kinds)).run(tree)


@dataclass
class _Analysis:
    """The kind of each variable: the largest over all its assignments, so that it holds in any order of execution."""

    variables: dict[str, Kind]
    macros: dict[str, n.Macro] = field(default_factory=dict)
    calling: list[str] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)

    def run(self, tree: n.Template) -> None:
        for macro in tree.find_all(n.Macro):
            if macro.name in (*self.macros, *_RESERVED):
                self.refuse(macro, f"{macro.name} has several meanings")
            self.check_unmarked(macro)
            self.macros[macro.name] = macro
        self.namespaces |= {created[0] for node in tree.find_all(n.Assign) if (created := _new_namespace(node))}
        for node in tree.find_all(n.Filter):
            if node.name not in _FILTERS or (node.name == "map" and (node.args or node.dyn_args)):
                self.refuse(node, f"the filter {node.name} is not supported")
        for name, kind in list(self.variables.items()):
            self.assign(n.Name(name, "store"), kind)
        for _ in range(_PASSES):
            before = dict(self.variables)
            self.body(tree.body)
            if self.variables == before:
                return
        raise Opaque("its variables cannot be analyzed")

    def body(self, nodes: Iterable[n.Node]) -> Kind:
        return max((self.statement(node) for node in nodes), default=Kind.PLAIN)

    def statement(self, node: n.Node) -> Kind:
        """Return the kind of the text that a statement writes."""
        match node:
            case n.Output():
                return self.written(node.nodes)
            case n.TemplateData() | n.Continue() | n.Break():
                return Kind.PLAIN
            case n.If():
                self.condition(node.test)
                return max(self.body(node.body), self.body(node.elif_), self.body(node.else_))
            case n.For() if not node.recursive:
                return self.loop(node)
            case n.Assign():
                if created := _new_namespace(node):
                    self.namespace(*created)
                else:
                    self.assign(node.target, self.kind(node.node))
                return Kind.PLAIN
            case n.AssignBlock():
                self.check_unmarked(node)
                block = self.body(node.body)
                if block and node.filter is not None:
                    self.refuse(node, "a block with content is filtered")
                self.assign(node.target, Kind.TEXT if block else Kind.PLAIN)
                return Kind.PLAIN
            case n.CallBlock() if isinstance(node.call.node, n.ExtensionAttribute):
                return self.body(node.body)
            case n.Macro():
                return Kind.PLAIN
            case n.Scope():
                return self.body(node.body)
            case n.ExprStmt():
                self.kind(node.node)
                return Kind.PLAIN
            case n.With():
                for target, value in zip(node.targets, node.values, strict=True):
                    self.assign(target, self.kind(value))
                return self.body(node.body)
        return self.refuse(node, f"{type(node).__name__.lower()} is not supported")

    def written(self, nodes: Iterable[n.Node]) -> Kind:
        largest = Kind.PLAIN
        for node in nodes:
            kind = Kind.PLAIN if isinstance(node, n.TemplateData) else self.kind(node)
            if kind >= Kind.MESSAGE:
                self.refuse(node, "a whole message is written")
            largest = max(largest, kind)
        return largest

    def loop(self, node: n.For) -> Kind:
        over = self.kind(node.iter)
        if over in (Kind.CONTENT, Kind.TEXT, Kind.MESSAGE):
            self.refuse(node, "a content or message is looped over")
        each = Kind.MESSAGE if over == Kind.MESSAGES else Kind.PLAIN
        self.assign(node.target, each)
        self.set_kind(node, "loop.item", each)
        if node.test is not None:
            self.condition(node.test)
        return max(self.body(node.body), self.body(node.else_))

    def check_unmarked(self, node: n.Node) -> None:
        """Refuse generation marks in text that the template stores, because it could read the marks as text."""
        if node.find(n.CallBlock) is not None:
            self.refuse(node, "text that is stored before it is written contains generation marks")

    def namespace(self, name: str, call: n.Call) -> None:
        if call.args or call.dyn_args or call.dyn_kwargs:
            self.refuse(call, "a namespace takes more than named values")
        for keyword in call.kwargs:
            self.set_kind(call, f"{name}.{keyword.key}", self.kind(keyword.value))

    def assign(self, target: n.Node, kind: Kind) -> None:
        match target:
            case n.Name(name=name) if name not in (*_RESERVED, *self.macros, *self.namespaces):
                self.set_kind(target, name, kind)
            case n.NSRef(name=space, attr=attribute) if space in self.namespaces:
                self.set_kind(target, f"{space}.{attribute}", kind)
            case n.Name() | n.NSRef():
                self.refuse(target, f"{target.name} has several meanings")
            case n.Tuple() if not kind:
                for item in target.items:
                    self.assign(item, kind)
            case _:
                self.refuse(target, "several variables are assigned at once")

    def set_kind(self, node: n.Node, name: str, kind: Kind) -> None:
        known = self.variables.get(name, Kind.PLAIN)
        if known != kind and max(known, kind) >= Kind.MESSAGE and min(known, kind) != Kind.PLAIN:
            self.refuse(node, f"{name} is sometimes a text, sometimes a message")
        self.variables[name] = max(known, kind)

    def condition(self, node: n.Node) -> None:
        """Check an expression that is only used as true or false."""
        match node:
            case n.And() | n.Or():
                self.condition(node.left)
                self.condition(node.right)
            case n.Not():
                self.condition(node.node)
            case _:
                self.kind(node)

    def kinds(self, nodes: Iterable[n.Node | None]) -> Kind:
        return max((self.kind(node) for node in nodes if node is not None), default=Kind.PLAIN)

    def kind(self, node: n.Node) -> Kind:
        """Return the kind of an expression."""
        match node:
            case n.Const() | n.TemplateData():
                return Kind.PLAIN
            case n.Name(name=name):
                if name in (*_RESERVED, *self.macros, *self.namespaces):
                    return self.refuse(node, f"{name} is used as a value")
                return self.variables.get(name, Kind.PLAIN)
            case n.Getattr(node=owner, attr=key):
                return self.member(node, owner, key)
            case n.Getitem(node=owner, arg=n.Const(value=str(key))):
                return self.member(node, owner, key)
            case n.Getitem():
                return self.item(node)
            case n.Filter():
                return self.filtered(node)
            case n.Call():
                return self.called(node)
            case n.Test():
                return self.tested(node)
            case n.Compare():
                return self.compared(node)
            case n.And() | n.Or():
                return self.joined(node, [node.left, node.right])
            case n.CondExpr():
                self.condition(node.test)
                return self.joined(node, [node.expr1, *([node.expr2] if node.expr2 else [])])
            case n.Not():
                self.condition(node.node)
                return Kind.PLAIN
            case n.Concat():
                return self.text(node, node.nodes)
            case n.Add():
                both = self.kind(node.left), self.kind(node.right)
                if max(both) == Kind.MESSAGES:
                    return self.refuse(node, "lists of messages are concatenated")
                return self.text(node, [node.left, node.right])
            case n.List() | n.Tuple() | n.Dict() | n.Pair() | n.Slice() | n.Neg() | n.Pos() | n.BinExpr():
                if any(self.kind(inner) for inner in node.iter_child_nodes()):
                    return self.refuse(node, f"a content is used in a {type(node).__name__.lower()}")
                return Kind.PLAIN
        return self.refuse(node, f"{type(node).__name__.lower()} is not supported")

    def member(self, node: n.Node, owner: n.Node, key: str) -> Kind:
        if isinstance(owner, n.Name) and owner.name in self.namespaces:
            return self.variables.get(f"{owner.name}.{key}", Kind.PLAIN)
        if isinstance(owner, n.Name) and owner.name == "loop":
            if key in ("previtem", "nextitem"):
                return self.variables.get("loop.item", Kind.PLAIN)
            return Kind.PLAIN if key in _LOOP else self.refuse(node, f"loop.{key} is not supported")
        of = self.kind(owner)
        if of == Kind.MESSAGE and not hasattr(dict, key):
            return Kind.CONTENT if key in _VALUES else Kind.PLAIN
        return self.refuse(node, f"{key} of a content or message is read") if of else Kind.PLAIN

    def item(self, node: n.Getitem) -> Kind:
        of = self.kind(node.node)
        if self.kinds(node.arg.iter_child_nodes() if isinstance(node.arg, n.Slice) else [node.arg]):
            return self.refuse(node, "a content is used as an index")
        if of == Kind.MESSAGES:
            return Kind.MESSAGES if isinstance(node.arg, n.Slice) else Kind.MESSAGE
        return self.refuse(node, "a part of a content is read") if of else Kind.PLAIN

    def filtered(self, node: n.Filter) -> Kind:
        if node.node is None:
            return self.refuse(node, "filter blocks are not supported")
        of, name = self.kind(node.node), node.name
        if self.kinds(self.arguments(node)):
            return self.refuse(node, f"a content is an argument of {name}")
        if of == Kind.PLAIN:
            return of
        if of == Kind.MESSAGES and (name in _MESSAGE_FILTERS or name in _SELECTING):
            attribute = node.args[0] if node.args else None
            if name in _SELECTING and (not isinstance(attribute, n.Const) or attribute.value not in _CONSTANTS):
                return self.refuse(node, "messages are selected by more than role, name or tool calls")
            return _MESSAGE_FILTERS.get(name, Kind.MESSAGES)
        if of in (Kind.CONTENT, Kind.TEXT) and name == "trim" and self.trims_space(node):
            return of
        if of in (Kind.CONTENT, Kind.TEXT) and name in ("string", "default", "d"):
            return of
        return self.refuse(node, f"the filter {name} is applied to a content")

    def called(self, node: n.Call) -> Kind:
        arguments = self.kinds(self.arguments(node))
        match node.node:
            case n.Name(name="raise_exception"):
                return Kind.PLAIN
            case n.Name(name=name) if name in self.macros:
                return self.macro(node, self.macros[name])
            case n.Getattr(node=owner, attr=key) if key in TRIMS and self.trims_space(node):
                of = self.kind(owner)
                if of in (Kind.CONTENT, Kind.TEXT):
                    return of
        if arguments or self.kind(node.node):
            return self.refuse(node, "a function is called with a content")
        return Kind.PLAIN

    def macro(self, node: n.Call, macro: n.Macro) -> Kind:
        names, keywords = [name.name for name in macro.args], [keyword.key for keyword in node.kwargs]
        extra = len(node.args) > len(names) or not set(keywords) <= set(names) or node.dyn_args or node.dyn_kwargs
        if extra or macro.name in self.calling:
            return self.refuse(node, f"the macro {macro.name} takes other arguments, or calls itself")
        given = [*zip(names, node.args, strict=False), *((keyword.key, keyword.value) for keyword in node.kwargs)]
        given += zip(names[len(names) - len(macro.defaults) :], macro.defaults, strict=True)
        for name in names:
            self.assign(n.Name(name, "store", lineno=macro.lineno), Kind.PLAIN)
        for name, value in given:
            self.assign(n.Name(name, "store", lineno=node.lineno), self.kind(value))
        self.calling.append(macro.name)
        written = self.body(macro.body)
        self.calling.pop()
        return Kind.TEXT if written else Kind.PLAIN

    def tested(self, node: n.Test) -> Kind:
        of = self.kind(node.node)
        if self.kinds(self.arguments(node)) or (of and node.name not in _CONTENT_TESTS):
            return self.refuse(node, f"a content is tested: {node.name}")
        return Kind.PLAIN

    def compared(self, node: n.Compare) -> Kind:
        left, others = self.kind(node.expr), [(operand.op, operand.expr) for operand in node.ops]
        for op, other in others:
            right = self.kind(other)
            empty = isinstance(other, n.Const) and other.value in ("", None) and left == Kind.CONTENT
            has_field = op in ("in", "notin") and right == Kind.MESSAGE and isinstance(node.expr, n.Const)
            if (left or right) and not (len(others) == 1 and (has_field or (empty and op in ("eq", "ne")))):
                return self.refuse(node, "a content is compared")
        return Kind.PLAIN

    def joined(self, node: n.Node, nodes: Sequence[n.Node]) -> Kind:
        """Return the kind of an expression that is one of several values."""
        kinds = [self.kind(inner) for inner in nodes]
        if max(kinds) >= Kind.MESSAGE and min(kinds) != max(kinds):
            return self.refuse(node, "an expression is either a message or something else")
        return max(kinds)

    def text(self, node: n.Node, nodes: Sequence[n.Node]) -> Kind:
        largest = self.kinds(nodes)
        if largest >= Kind.MESSAGE:
            return self.refuse(node, "a whole message is joined with text")
        return Kind.TEXT if largest else Kind.PLAIN

    def arguments(self, node: n.Filter | n.Call | n.Test) -> Iterator[n.Node | None]:
        yield from node.args
        yield from (keyword.value for keyword in node.kwargs)
        yield from (node.dyn_args, node.dyn_kwargs)

    def trims_space(self, node: n.Filter | n.Call) -> bool:
        """Return whether a trim removes only white space: all of it, or newlines."""
        chars = node.args[0] if len(node.args) == 1 else None
        at_most_one = not (node.kwargs or node.dyn_args or node.dyn_kwargs)
        return at_most_one and (not node.args or (isinstance(chars, n.Const) and chars.value in (None, "\n")))

    def refuse(self, node: n.Node, reason: str) -> Kind:
        raise Opaque(f"line {node.lineno}: {reason}" if node.lineno else reason)


def _new_namespace(node: n.Assign) -> tuple[str, n.Call] | None:
    """Return the name and the `namespace(...)` call of an assignment that creates a namespace, else None."""
    match node:
        case n.Assign(target=n.Name(name=name), node=n.Call(node=n.Name(name="namespace")) as call):
            return name, call
    return None
