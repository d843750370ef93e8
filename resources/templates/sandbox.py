"""The sandbox that templates run in: it limits what a template can reach and how much work it can do.

Chat templates are downloaded with tokenizers, so they are untrusted. A template can reach its data, the methods and
filters that read data, and its own macros; everything else raises `SecurityError`. Its work is counted: `instrument`
inserts the counting of steps and operators into the parsed template, and this module counts calls. A call costs the
size of what it reads and of what it returns; `_cost` adds what the tables below name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, Namespace, _PassArg, pass_context
from markupsafe import Markup

from tokenloom.resources.templates.instrument import Instrument
from tokenloom.resources.templates.work_meter import (
    CALL,
    ITEM,
    MOST_DEPTH,
    OPERATORS,
    MeteredContext,
    check_bits,
    is_iterator,
    weighed,
)

_REFUSED = ("pprint", "random", "urlize", "xmlattr")
"""Filters for HTML and debugging, and `random`, whose result is not reproducible."""
_SHALLOW = frozenset(
    "attr batch count d default first items last length list map reject rejectattr reverse select selectattr "  # noqa: SIM905
    "slice".split()
)
"""Filters that do not read the contents of the items."""
_CONSUMING = frozenset("dict groupby join max min sort sum unique".split())  # noqa: SIM905
"""Functions that read all items, also of an iterator."""
_BY_ATTRIBUTE = _CONSUMING | {"map", "rejectattr", "selectattr"}
"""Filters that can walk an attribute path for each item."""
_MULTIPLIED = frozenset(
    "batch center expandtabs indent join ljust lstrip rjust rstrip slice strip tojson trim wordwrap zfill".split()  # noqa: SIM905
)
"""Functions whose cost is at most the product of the first argument's size with the others'."""
_SLOW = {"groupby": 16, "striptags": 4, "title": 8, "urlencode": 16, "wordcount": 8, "wordwrap": 16}
"""Units for each unit of what these functions read."""
_FREE_TESTS = frozenset(
    "boolean callable defined escaped false float integer iterable mapping none number sameas sequence string true "  # noqa: SIM905
    "undefined".split()
)
"""Tests that only look at a value's type or identity."""
_OF_NUMBERS = frozenset(("divisibleby", "even", "odd"))
"""Tests that compute `%`, which formats a text."""
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii "  # noqa: SIM905
        "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip "
        "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines "
        "startswith strip swapcase title upper zfill".split()
    ),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    float: frozenset(("is_integer",)),
}
"""The methods that templates can call."""
_MOST_PRECISION = 308
_MOST_PARTS = 8
_OF_DICT = frozenset(dir(dict))
_CONVERSION = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")


def _cost(name: str, size: int, text: Any, others: list[Any], kwargs: Mapping[str, Any]) -> float:
    """Return what a call costs beyond the sizes of its arguments.

    Args:
        size: the first argument's size.
        others: the other arguments.

    Raises:
        SecurityError: an argument is not allowed.
    """
    if name in _BY_ATTRIBUTE and any(isinstance(v, str) and v.count(".") + v.count(",") > _MOST_PARTS for v in others):
        raise SecurityError(f"an attribute path has more than {_MOST_PARTS} dots and commas")
    if name == "sum" and any(not isinstance(value, int | float | str | None) for value in others):
        raise SecurityError("sum only adds numbers")
    if name == "round" and any(isinstance(value, int) and abs(value) > _MOST_PRECISION for value in others):
        raise SecurityError(f"round allows at most {_MOST_PRECISION} digits")
    if name in _OF_NUMBERS and isinstance(text, str):
        raise SecurityError(f"{name} only tests numbers")
    cost = (size + 1) * sum(map(_extent, others)) if name in _MULTIPLIED else 0.0
    if name == "replace":
        old, new = (kwargs[key] if key in kwargs else others[at] for at, key in enumerate(("old", "new")))
        cost += str(text).count(str(old)) * len(str(new))
    elif name == "striptags":
        cost += size * str(text).count("<") / 8
    elif name == "wordwrap":
        width = min((value for value in others if type(value) is int), default=79)
        cost += size * max(map(len, str(text).split()), default=0) / max(width, 1)
    elif name == "format":
        cost += _formatted(str(text), kwargs or tuple(others), size + len(str(kwargs)))
    return cost


def _extent(value: Any) -> int:
    """Return how much longer a value can make another: a number's value, a text's length, and a list's of both."""
    if isinstance(value, int):
        return abs(value)
    return len(value) + (sum(map(_extent, value)) if isinstance(value, list | tuple) else 0) if value else 0


def _formatted(pattern: str, arguments: Any, weight: int) -> float:
    """Return the cost of `pattern % arguments`: widths, precisions, and `weight` per part with named arguments."""
    if re.search(r"%\([^()]*\(", pattern):
        raise SecurityError("a name in a format has parentheses")
    parts = _CONVERSION.findall(pattern)
    numbers = [abs(number) for number in arguments if isinstance(number, int)] if isinstance(arguments, tuple) else []
    widths = [sum(numbers) if width == "*" else float(width or 0) for part in parts for width in part]
    return sum(widths) + (weight * len(parts) if isinstance(arguments, Mapping) else 0)


def _charge(context: MeteredContext, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Count what a function reads and can make, and return its arguments, as lists where it reads whole iterators."""
    if name in _CONSUMING:
        args = tuple(list(value) if is_iterator(value) else value for value in args)
        context.spend(CALL * sum(map(_length, args)))
    others = [*args[1:], *kwargs.values()]
    size = _length(args[0]) if name in _SHALLOW else context.weigh(args[0])
    read = size + sum(map(context.weigh, others))
    context.spend(CALL + _SLOW.get(name, 0) * read + _cost(name, size, args[0], others, kwargs))
    return args


def _length(value: Any) -> int:
    """Return the number of items, or 0 for iterators, whose items are counted as they are read."""
    return len(value) if hasattr(type(value), "__len__") else 0


def _made(context: MeteredContext, value: Any, source: Any) -> Any:
    """Count the result of a filter or method; items made of a text's characters are new strings."""
    if value.__class__ in (str, bool):
        return weighed(context, value)
    return context.counted(value, 4 * ITEM if isinstance(source, str) else ITEM)


def _metered(environment: Sandbox, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter or test that counts its work."""
    kind = _PassArg.from_obj(function)
    passed: dict[Any, Any] = {_PassArg.eval_context: environment.eval_context, _PassArg.environment: environment}
    bound = (passed[kind],) if kind in passed else ()
    is_linear = name not in _SLOW.keys() | _CONSUMING | _OF_NUMBERS

    @functools.wraps(function)
    def run(context: MeteredContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        first = (context,) if kind is _PassArg.context else bound
        if value.__class__ is str and not args and not kwargs and is_linear:
            context.left -= CALL + len(value)
            return _made(context, function(*first, value), value)
        value, *others = _charge(context, name, (value, *args), kwargs)
        return _made(context, function(*first, value, *others, **kwargs), value)

    return pass_context(run)


def _lipsum(*_: Any, **__: Any) -> str:
    raise SecurityError("lipsum is not reproducible")


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    def __init__(self, context: MeteredContext):
        super().__init__(context.environment)
        self._context = context

    def format_field(self, value: Any, format_spec: str) -> str:
        self._context.weigh(value)
        self._context.spend(sum(map(float, re.findall(r"\d+", format_spec))))
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._context.weigh(value)
        return super().convert_field(value, conversion)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The Jinja environment of all templates; templates can call the functions in its globals."""

    context_class = MeteredContext
    intercepted_binops = frozenset(("-", "*", "**", "%"))

    def __init__(self, **options: Any):
        super().__init__(optimized=False, **options)  # no constants are folded: `10 ** 10 ** 10` would never finish
        for name in _REFUSED:
            del self.filters[name]
        self.globals["lipsum"] = _lipsum
        self.eval_context = jinja2.nodes.EvalContext(self)

    def meter(self) -> None:
        """Make all filters and tests count their work. Call it once, after the last one is added."""
        self.filters = {name: _metered(self, name, function) for name, function in self.filters.items()} | OPERATORS
        self.tests |= {name: _metered(self, name, self.tests[name]) for name in self.tests.keys() - _FREE_TESTS}

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(Instrument().visit(source), *args, **kwargs)

    def call_filter(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        if name in OPERATORS:
            raise TemplateRuntimeError(f"No filter named {name!r}.")
        return super().call_filter(name, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and left.__class__ is int:
            return left % right
        if operator == "%" and isinstance(left, str):
            context.spend(2 * CALL + len(left) + _formatted(left, right, context.weigh(right)))
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length())
        elif operator == "*":
            items, count = (left, right) if isinstance(right, int) else (right, left)
            each = 1 if isinstance(items, str) else ITEM
            context.spend(each * _length(items) * max(count, 0) if isinstance(count, int) else 0)
        return context.counted(self.binop_table[operator](left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or item as Jinja's sandbox does, with a fast path for the most common types."""
        kind = obj.__class__
        if kind is dict and attribute not in _OF_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in _METHODS[str]) or (kind is LoopContext and attribute[0] != "_"):
            value = getattr(obj, attribute, obj)
            return value if value is not obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"{attribute} of a {type(obj).__name__} is not accessible")

    def wrap_str_format(self, value: Any) -> None:
        """Leave `format` as it is: `call` runs it in the sandbox."""

    def call(self, context: MeteredContext, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore
        """Call a macro, a loop, a method of data or a function in the globals.

        Raises:
            SecurityError: the function is none of these, or does too much work.
        """
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        kind, of = type(function), getattr(function, "__self__", None)
        if kind is BuiltinMethodType or (kind is MethodType and isinstance(of, Markup)):
            return self._method(context, function, of, args, kwargs)
        context.spend(CALL + ITEM * (len(args) + len(kwargs)))
        if kind is Macro or kind is LoopContext:
            return self._nested(context, function, args, kwargs)
        if kind is MethodType and isinstance(of, jinja2.ext.Extension):
            return self._nested(context, function, (context, *args), kwargs)
        if function is dict or function is Namespace:
            args = _charge(context, "dict", args or ((),), {})
            context.spend(4 * CALL)
        elif (
            any(function is known for known in self.globals.values())
            or kind is Joiner
            or (kind is MethodType and isinstance(of, LoopContext | Cycler))
        ):
            for value in args:
                context.weigh(value)
        elif not isinstance(function, Undefined):
            raise SecurityError(f"a {kind.__name__} cannot be called")
        return context.counted(function(*args, **kwargs))

    def _nested(self, context: MeteredContext, function: Any, args: Any, kwargs: Any) -> Any:
        context.depth += 1
        if context.depth > MOST_DEPTH:
            raise SecurityError(f"macros or loops call themselves more than {MOST_DEPTH} levels deep")
        try:
            return function(*args, **kwargs)
        finally:
            context.depth -= 1

    def _method(self, context: MeteredContext, method: Any, of: Any, args: Any, kwargs: Any) -> Any:
        name, kind = method.__name__, str if isinstance(of, str) else type(of)
        if name not in _METHODS.get(kind, ()):
            raise SecurityError(f"{name} of a {type(of).__name__} cannot be called")
        if name in ("format", "format_map"):
            if type(of) is not str:
                raise SecurityError("a string marked as safe cannot be formatted")
            context.spend(CALL + 8 * len(of))
            fields = args[0] if name == "format_map" else kwargs
            return context.counted(_Formatter(context).vformat(of, args, fields))
        if kind is dict:
            context.spend(CALL + sum(map(context.weigh, args)))
        elif args or kwargs or kind is not str:
            args = _charge(context, "" if name == "count" else name, (of, *args), kwargs)[1:]
        else:
            context.left -= CALL + len(of)
        return _made(context, method(*args, **kwargs), of)
