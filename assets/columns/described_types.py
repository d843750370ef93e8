"""Parses the text of Arrow types in the schema's facts, to check what a path leads to before any row is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LEAF = re.compile(r"[a-z0-9_]+(?:\[[^\]]*\]|\([^)]*\))?")
_LISTS = re.compile(r"(?:list|large_list|list_view|large_list_view|fixed_size_list)<")
_SIZE = re.compile(r"\[\d+\]")


@dataclass(frozen=True)
class Kind:
    """One type.

    Args:
        name: list, struct, binary, null, or Arrow's name of another type; "" if it is not known.
        fields: the fields of a struct.
        item: the item type of a list.
    """

    name: str
    fields: Mapping[str, Kind] = field(default_factory=dict)
    item: Kind | None = None

    @property
    def is_text(self) -> bool:
        """Whether values can be converted to text; True for a null or unknown type."""
        return self.name not in ("list", "struct", "binary")


UNKNOWN = Kind("")


def kinds_of(described: str) -> list[Kind]:
    """Parse one or more types joined by " | "."""
    kinds, at = [], 0
    while at < len(described):
        try:
            kind, at = _parse(described, at)
        except ValueError:
            return [UNKNOWN]
        kinds.append(kind)
        if at < len(described):
            if not described.startswith(" | ", at):
                return [UNKNOWN]
            at += 3
    return kinds or [UNKNOWN]


def follow(kinds: Sequence[Kind], steps: Sequence[str | int]) -> list[Kind]:
    """Return the types that the steps lead to, for the types that have them."""
    reached = list(kinds)
    for step in steps:
        reached = [inner for kind in reached if (inner := _step(kind, step)) is not None]
    return reached


def fields_of(kinds: Sequence[Kind]) -> list[str]:
    """Return the names of the fields that the next step can take."""
    names: dict[str, None] = {}
    for kind in kinds:
        inner = kind
        while inner.name == "list" and inner.item:
            inner = inner.item
        names.update(dict.fromkeys(inner.fields))
    return list(names)


def _step(kind: Kind, step: str | int) -> Kind | None:
    if kind.name in ("", "null"):
        return kind
    if isinstance(step, int):
        return kind.item if kind.name == "list" else None
    if kind.name == "list" and kind.item is not None:
        inner = _step(kind.item, step)
        return inner and Kind("list", item=inner)
    return kind.fields.get(step)


def _parse(text: str, at: int) -> tuple[Kind, int]:
    """Parse the type at a position; return it and the position after it."""
    if found := _LISTS.match(text, at):
        _, item, at = _named(text, found.end())
        at = _expect(text, at, ">")
        size = _SIZE.match(text, at)
        return Kind("list", item=item), size.end() if size else at
    if text.startswith("struct<", at):
        fields, at = {}, at + len("struct<")
        while not text.startswith(">", at):
            if fields:
                at = _expect(text, at, ", ")
            name, kind, at = _named(text, at)
            fields[name] = kind
        return Kind("struct", fields), at + 1
    if text.startswith("map<", at):
        key, at = _parse(text, at + len("map<"))
        value, at = _parse(text, _expect(text, at, ", "))
        return Kind("list", item=Kind("struct", {"key": key, "value": value})), _expect(text, at, ">")
    if text.startswith("dictionary<values=", at):
        kind, at = _parse(text, at + len("dictionary<values="))
        return kind, text.index(">", at) + 1
    if not (found := _LEAF.match(text, at)):
        raise ValueError(text[at:])
    name = found.group()
    if name == "json":
        return UNKNOWN, found.end()
    return Kind("binary" if "binary" in name else name), found.end()


def _named(text: str, at: int) -> tuple[str, Kind, int]:
    """Parse `name: type`, optionally followed by `not null`."""
    colon = text.index(": ", at)
    kind, end = _parse(text, colon + 2)
    return text[at:colon], kind, end + len(" not null") * text.startswith(" not null", end)


def _expect(text: str, at: int, token: str) -> int:
    if not text.startswith(token, at):
        raise ValueError(text[at:])
    return at + len(token)
