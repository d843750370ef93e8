"""Costs of Jinja filters, tests and methods that grow faster than their arguments: padding, repetition, replacement."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

Cost = Callable[..., float]
"""Maps the arguments to a number of characters or steps; a negative result costs nothing."""

_CONVERSION = re.compile(r"[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")
_MOST_DIGITS = 4000
_MOST_PRECISION = 308
_MOST_PARTS = 32


def nothing(*_: Any, **__: Any) -> float:
    return 0


def length(value: Any) -> int:
    """Return the number of items, or 0 for iterators, whose items are counted as they are read."""
    return len(value) if hasattr(type(value), "__len__") else 0


def digits(text: str) -> float:
    """Return the number that digits spell, or infinity for very many digits."""
    return int(text or 0) if len(text) < _MOST_DIGITS else float("inf")


def formatted(pattern: str, arguments: Any, weight: int) -> float:
    """Return the cost of `pattern % arguments`: widths, precisions, and `weight` per part with named arguments."""
    numbers = [abs(number) for number in arguments if isinstance(number, int)] if isinstance(arguments, tuple) else []
    cost, parts = 0.0, 0
    at = pattern.find("%")
    while at >= 0:
        at = _after_name(pattern, at + 1)
        match = _CONVERSION.match(pattern, at)
        assert match is not None  # the pattern also matches the empty string
        cost += sum(sum(numbers) if width == "*" else digits(width or "") for width in match.groups())
        parts += 1
        at = pattern.find("%", match.end() + 1)
    return cost + (weight * parts if isinstance(arguments, Mapping) else 0)


def _after_name(pattern: str, at: int) -> int:
    """Return the position after `(name)`, which can contain nested parentheses."""
    depth = 0
    while at < len(pattern) and (depth or pattern[at] == "("):
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at += 1
    return at


def repeated(left: Any, right: Any) -> float:
    """Return the cost of `left * right`."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple):
            return len(sequence) * count if isinstance(count, int) else 0
    return 0


def _replace(text: Any, old: Any, new: Any, count: Any = None) -> float:
    return str(text).count(str(old)) * len(str(new))


def _indent(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> float:
    return (str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else width)


def _wordwrap(
    text: Any, width: int = 79, break_long_words: bool = True, wrapstring: str | None = None, *_: Any, **__: Any
) -> float:
    longest = max(map(len, str(text).split()), default=0)
    return len(str(text)) * (len(wrapstring or "") + longest // max(width, 1))


def _round(value: Any, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > _MOST_PRECISION:
        raise SecurityError(f"round allows at most {_MOST_PRECISION} digits")
    return 0


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> float:
    if not isinstance(start, int | float):
        raise SecurityError("sum only adds numbers")
    return 0


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> float:
    per = (len(indent) if isinstance(indent, str) else indent or 0) + sum(map(len, separators or ()))
    return per * (_size(value) + 1)


def _size(value: Any) -> int:
    """Count names, values and entries of a value that was already weighed, so that it is known to be finite."""
    if isinstance(value, Mapping):
        return 1 + sum(1 + _size(inner) for inner in value.values())
    return 1 + sum(map(_size, value)) if isinstance(value, list | tuple) else 1


FILTERS: Mapping[str, Cost] = {
    "batch": lambda value, linecount, fill_with=None: linecount + length(value),
    "center": lambda value, width=80: width,
    "format": lambda value, *args, **kwargs: formatted(str(value), kwargs or args, len(str(kwargs))),
    "indent": _indent,
    "join": lambda value, d="", attribute=None: len(value) * len(str(d)),
    "replace": _replace,
    "round": _round,
    "slice": lambda value, slices, fill_with=None: slices + length(value),
    "striptags": lambda value: len(str(value)) * str(value).count("<"),
    "sum": _sum,
    "tojson": _tojson,
    "trim": lambda value, chars=None: len(str(value)) * len(chars or ""),
    "wordwrap": _wordwrap,
}
COSTLY = ("striptags", "wordwrap")
"""Filters that cost more than the size of their input even without arguments."""
SHALLOW = frozenset(
    "attr batch count d default first items last length list map reject rejectattr reverse select selectattr "  # noqa: SIM905
    "slice".split()
)
"""Filters that do not read the items' contents."""
CONSUMING = ("groupby", "join", "max", "min", "sort", "sum", "unique")
"""Filters that read all items, also of an iterator."""
REFUSED = ("pprint", "random", "urlize", "xmlattr")
"""Filters for HTML and debugging, and `random`, whose result is not reproducible."""
_ATTRIBUTE = {
    "groupby": 0,
    "join": 1,
    "max": 1,
    "min": 1,
    "rejectattr": 0,
    "selectattr": 0,
    "sort": 2,
    "sum": 0,
    "unique": 1,
}
"""The position of the attribute path among a filter's arguments; the path is walked for each item."""


def check_path(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """
    Raises:
        SecurityError: a filter's attribute path has too many parts.
    """
    at = _ATTRIBUTE.get(name, len(args))
    path = kwargs.get("attribute", args[at] if at < len(args) else None)
    if isinstance(path, str) and path.count(".") + path.count(",") > _MOST_PARTS:
        raise SecurityError(f"an attribute path has more than {_MOST_PARTS} dots and commas")


CHEAP_TESTS = frozenset(
    "boolean callable defined escaped false float integer iterable mapping none number sameas sequence string true "  # noqa: SIM905
    "undefined".split()
)
"""Tests that only look at a value's type or identity."""
REMAINDER_TESTS = ("divisibleby", "even", "odd")
"""Tests that compute `%`, which formats when the value is a string."""


def _strip(text: str, chars: str | None = None) -> float:
    return len(text) * len(chars or "")


def _pad(text: str, width: int, fill: str = " ") -> float:
    return width


TEXT_METHODS: Mapping[str, Cost] = {
    **dict.fromkeys(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower "  # noqa: SIM905
        "isnumeric isprintable isspace istitle isupper lower partition removeprefix removesuffix rfind rindex "
        "rpartition rsplit split splitlines startswith swapcase title upper".split(),
        nothing,
    ),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pad),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _strip),
    "expandtabs": lambda text, tabsize=8: text.count("\t") * tabsize,
    "join": lambda text, items: len(text) * len(items),
    "replace": lambda text, old, new, count=-1: text.count(old) * len(new),
}
"""The string methods that templates can call."""
OTHER_METHODS: Mapping[type, tuple[str, ...]] = {
    dict: ("copy", "get", "items", "keys", "values"),
    list: ("copy", "count", "index"),
    tuple: ("count", "index"),
    float: ("is_integer",),
}
"""The methods of other types that templates can call."""
