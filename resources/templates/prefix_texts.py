"""The texts that a template writes for the beginnings of a list, found in the text for the whole list.

A template that goes through the list once, item by item, and looks at no later item, writes for the first items what it
writes for all of them, up to there. What follows its loop must not depend on the items; `mark_items` checks both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import jinja2.nodes as n

ITEM_MARK = "\ue0d4"
"""Private-use character that is written before each item, and after the last."""

_BACKWARD = ("index", "index0", "first", "previtem")
"""Attributes of `loop` that do not depend on later items."""


@dataclass(frozen=True)
class PrefixTexts:
    """The texts for the beginnings of a list.

    Args:
        text: the text for the whole list.
        parts: the text before the loop, of each item, and after the loop.
        count: the number of items of the list.
    """

    text: str
    parts: list[str]
    count: int

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.parts[:-1])))

    def of(self, count: int) -> str | None:
        """Return the text for the first items, at least one; None if unknown."""
        end = self.end(count)
        return None if end is None else self.text[:end] + self.parts[-1]

    def end(self, count: int) -> int | None:
        """Return how much of the whole text the text for the first items begins with, before the last part."""
        looped = len(self._ends) - 1 - self.count + count  # the loop can skip the first items
        return self._ends[looped] if count > 0 and looped >= 0 else None


def mark_items(tree: n.Template, name: str) -> bool:
    """Make a parsed template mark the items of a list, and return whether it writes them one by one.

    Args:
        name: the variable that holds the list.
    """
    names, assigned = _aliases(tree, name)
    loops = [node for node in tree.find_all(n.For) if isinstance(node.iter, n.Name) and node.iter.name in names]
    stored = [node.name for node in tree.find_all(n.Name) if node.ctx != "load" and node.name in names]
    if len(loops) != 1 or len(stored) != len(assigned) or tree.find(n.Break) is not None:
        return False
    (loop,) = loops
    if loop not in tree.body or loop.test is not None or loop.else_ or loop.recursive:
        return False
    # all other reads of the list, such as its length, could tell the template how it ends
    allowed = {id(loop.iter), *(id(value) for value in assigned)}
    for item in tree.find_all(n.Getitem):
        if isinstance(item.arg, n.Const) and item.arg.value == 0 and _is_name(item.node, name):
            allowed.add(id(item.node))
    allowed |= {id(both.left) for both in tree.find_all(n.And) if _is_name(both.left, name)}  # there is an item
    if any(node.name in names and node.ctx == "load" and id(node) not in allowed for node in tree.find_all(n.Name)):
        return False
    place = tree.body.index(loop)
    if any(_looks_ahead(node) for node in loop.body) or not _is_constant(tree, tree.body[place + 1 :]):
        return False
    for body, at in ((loop.body, 0), (tree.body, place + 1)):
        body.insert(at, n.Output([n.TemplateData(ITEM_MARK)], lineno=loop.lineno))
    return True


def _aliases(tree: n.Template, name: str) -> tuple[set[str], list[n.Name]]:
    """Return the names of a list and of its ends, and the nodes that are assigned to them."""
    names, assigned = {name}, []
    for node in tree.find_all(n.Assign):
        value = node.node
        match value:
            case n.Getitem(node=whole, arg=n.Slice(start=n.Const(value=1), stop=None, step=None)):
                value = whole
        if isinstance(node.target, n.Name) and _is_name(value, name):
            names.add(node.target.name)
            assigned.append(value)
    return names, assigned


def _is_name(node: n.Node, name: str) -> bool:
    return isinstance(node, n.Name) and node.name == name


def _is_constant(tree: n.Template, nodes: list[n.Node]) -> bool:
    """Return whether nodes write the same text everywhere: they read only variables that the template does not set."""
    macros = {macro.name for macro in tree.find_all(n.Macro)}
    stored = {node.name for node in tree.find_all(n.Name) if node.ctx != "load"} | macros | {"loop"}
    found = [name for node in nodes for name in (node, *node.find_all(n.Name)) if isinstance(name, n.Name)]
    kinds = n.Assign | n.AssignBlock | n.For | n.Macro | n.With
    if any(isinstance(inner, kinds) for node in nodes for inner in (node, *node.find_all(n.Stmt))):
        return False
    return not any(name.name in stored for name in found)


def _looks_ahead(node: n.Node) -> bool:
    """Return whether a node in a loop's body reads what depends on later items, such as `loop.last`."""
    match node:
        case n.For():
            # in the body of an inner loop, `loop` is that one
            return any(map(_looks_ahead, [node.iter, *filter(None, [node.test]), *node.else_]))
        case n.Getattr(node=n.Name(name="loop"), attr=key):
            return key not in _BACKWARD
        case n.Name(name="loop"):
            return True
    return any(map(_looks_ahead, node.iter_child_nodes()))
