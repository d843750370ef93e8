"""What filters, tests and methods cost beyond the size of what they are given: widths, repetitions, nested scans."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

Cost = Callable[..., float]
"""From the arguments to characters or steps; a negative number or none at all costs nothing."""

_CONVERSION = re.compile(r"[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")
_MOST_DIGITS = 4000
_MOST_PRECISION = 308
_MOST_PARTS = 32


def nothing(*_: Any, **__: Any) -> float:
    return 0


def length(value: Any) -> int:
    """Items of what has a length; others are counted as they come."""
    return len(value) if hasattr(type(value), "__len__") else 0


def digits(text: str) -> float:
    """The number that digits spell."""
    return int(text or 0) if len(text) < _MOST_DIGITS else float("inf")


def formatted(pattern: str, arguments: Any, weight: int) -> float:
    """Cost of `pattern % arguments`: its widths and precisions, and named arguments as often as they may be written."""
    numbers = [abs(number) for number in arguments if isinstance(number, int)] if isinstance(arguments, tuple) else []
    cost, parts = 0.0, 0
    at = pattern.find("%")
    while at >= 0:
        at = _behind_name(pattern, at + 1)
        match = _CONVERSION.match(pattern, at)
        assert match is not None  # it may be empty
        cost += sum(sum(numbers) if found == "*" else digits(found or "") for found in match.groups())
        parts += 1
        at = pattern.find("%", match.end() + 1)
    return cost + (weight * parts if isinstance(arguments, Mapping) else 0)


def _behind_name(pattern: str, at: int) -> int:
    """The place behind `(name)`, whose parentheses may be nested."""
    depth = 0
    while at < len(pattern) and (depth or pattern[at] == "("):
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at += 1
    return at


def repeated(left: Any, right: Any) -> float:
    """Cost of `left * right`."""
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
        raise SecurityError(f"a precision of more than {_MOST_PRECISION} digits")
    return 0


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> float:
    if not isinstance(start, int | float):
        raise SecurityError("sum is for numbers")
    return 0


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> float:
    per = (len(indent) if isinstance(indent, str) else indent or 0) + sum(map(len, separators or ()))
    return per * (_size(value) + 1)


def _size(value: Any) -> int:
    """Names, values and entries; what is weighed is known to be finite."""
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
"""Those that cost more than the size of what they are given even without arguments."""
SHALLOW = frozenset(
    "attr batch count d default first items last length list map reject rejectattr reverse select selectattr "  # noqa: SIM905
    "slice".split()
)
"""Filters that look at no more than how many items there are."""
CONSUMING = ("groupby", "join", "max", "min", "sort", "sum", "unique")
"""Filters that go through all items, of an iterator too."""
REFUSED = ("pprint", "random", "urlize", "xmlattr")
"""Filters for HTML pages and debugging, and one that is not the same every time."""
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
"""Which argument is the path of an attribute, which is walked for each item."""


def check_path(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """
    Raises:
        SecurityError: a filter is given a path of very many parts.
    """
    at = _ATTRIBUTE.get(name, len(args))
    path = kwargs.get("attribute", args[at] if at < len(args) else None)
    if isinstance(path, str) and path.count(".") + path.count(",") > _MOST_PARTS:
        raise SecurityError("an attribute's path is too long")


CHEAP_TESTS = frozenset(
    "boolean callable defined escaped false float integer iterable mapping none number sameas sequence string true "  # noqa: SIM905
    "undefined".split()
)
"""Tests that look at no more than what kind of thing a value is."""
REMAINDER_TESTS = ("divisibleby", "even", "odd")
"""Tests that compute a remainder, which of a text is formatting."""


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
"""The methods of texts that may be called."""
OTHER_METHODS: Mapping[type, tuple[str, ...]] = {
    dict: ("copy", "get", "items", "keys", "values"),
    list: ("copy", "count", "index"),
    tuple: ("count", "index"),
    float: ("is_integer",),
}
"""The methods of other data that may be called."""
