"""The sandbox that templates run in: it limits what a template can reach and how much work it can do.

Chat templates are downloaded with tokenizers, so they are untrusted. A template can reach its data, the methods and
filters that read data, and its own macros; everything else raises `SecurityError`. Its work is counted: `work_meter`
counts steps and operators, and `_run` counts calls. A call costs the size of what it reads, what `_price` adds for what
it can make from that, and the size of what it returns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, Namespace, _PassArg, pass_context
from markupsafe import Markup

from tokenloom.resources.templates import work_meter
from tokenloom.resources.templates.work_meter import CALL, ITEM, OPERATORS, MeteredContext, is_iterator

_REFUSED = ("pprint", "random", "urlize", "xmlattr")
"""Filters for HTML and debugging, and `random`, whose result is not reproducible."""
_SHALLOW = frozenset(
    "attr batch copy d default first get items keys last length list map reject rejectattr reverse select selectattr "  # noqa: SIM905
    "slice values".split()
)
"""Functions that do not read the contents of the items of their first argument."""
_CONSUMING = frozenset("dict groupby join max min sort sum unique".split())  # noqa: SIM905
"""Functions that read all items, also of an iterator."""
_BY_ATTRIBUTE = _CONSUMING | {"map", "rejectattr", "selectattr"}
"""Filters that can walk an attribute path for each item."""
_FORMATTING = frozenset(("%", "divisibleby", "even", "format", "odd"))
"""Functions that compute `%`, which formats a text."""
_SLOW = frozenset(("groupby", "striptags", "title", "urlencode", "wordcount", "wordwrap"))
"""Functions that take 16 units for each unit of what they read."""
_MULTIPLIED = frozenset(
    "batch center expandtabs indent join ljust lstrip rfind rindex rjust round rpartition rsplit rstrip slice strip "  # noqa: SIM905
    "tojson trim wordwrap zfill".split()
)
"""Functions whose cost is at most the product of the first argument's size with the others'."""
_PRICED = _CONSUMING | _FORMATTING | _SLOW
"""Functions that can cost more than what they read without arguments."""
_PRICED_WITH_ARGUMENTS = _PRICED | _BY_ATTRIBUTE | _MULTIPLIED | {"replace"}
_FREE_TESTS = frozenset(
    "boolean callable defined escaped false float integer iterable mapping none number sameas sequence string true "  # noqa: SIM905
    "undefined".split()
)
"""Tests that only look at a value's type or identity."""
_OF_TEXT = frozenset(
    "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii "  # noqa: SIM905
    "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip "
    "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines "
    "startswith strip swapcase title upper zfill".split()
)
_METHODS: Mapping[type, frozenset[str]] = {
    str: _OF_TEXT,
    Markup: _OF_TEXT - {"format", "format_map"},
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    float: frozenset(("is_integer",)),
}
"""The methods that templates can call."""
_MOST_PARTS = 8
_OF_DICT = frozenset(dir(dict))
_CONVERSION = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")


def _length(value: Any) -> int:
    """Return the number of items, or 0 for iterators, whose items are counted as they are read."""
    return len(value) if hasattr(type(value), "__len__") else 0


def _extent(value: Any) -> int:
    """Return how much longer a value can make another: a number's value, a text's length, and a list's of both."""
    if isinstance(value, int):
        return abs(value)
    return _length(value) + (sum(map(_extent, value)) if isinstance(value, list | tuple) else 0)


def _price(context: MeteredContext, name: str, args: Any, kwargs: Mapping[str, Any]) -> float:
    """Count what a function reads, and return what it costs beyond that.

    Raises:
        SecurityError: an argument is not allowed.
    """
    value, *others = (*args, *kwargs.values()) or ((),)
    size = _length(value) if name in _SHALLOW else context.weigh(value)
    read = size + sum(map(context.weigh, others))
    if name not in _PRICED_WITH_ARGUMENTS:
        return CALL
    if name in _BY_ATTRIBUTE and any(isinstance(v, str) and v.count(".") + v.count(",") > _MOST_PARTS for v in others):
        raise SecurityError(f"an attribute path has more than {_MOST_PARTS} dots and commas")
    if name == "sum" and any(isinstance(v, list | tuple) for v in others):
        raise SecurityError("sum only adds numbers")
    cost = float(CALL + CALL * _length(value) * (name in _CONSUMING) + 16 * read * (name in _SLOW))
    if name in _MULTIPLIED:
        cost += (size + 1) * sum(map(_extent, others))
    if name in ("striptags", "wordwrap"):  # with some arguments, these copy the rest of a text again and again
        cost += size * size / 64
    elif name == "replace":
        old, new = (kwargs[key] if key in kwargs else others[at] for at, key in enumerate(("old", "new")))
        cost += (size / max(len(str(old)), 1) + 1) * len(str(new))
    elif name in _FORMATTING and isinstance(value, str):
        if re.search(r"%\([^()]*\(", value):
            raise SecurityError("a name in a format has parentheses")
        parts = _CONVERSION.findall(value)
        cost += read * len(parts)
        cost += sum(_extent(others) if width == "*" else float(width or 0) for part in parts for width in part)
    return cost


def _run(name: str, function: Any, bound: Any, context: MeteredContext, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function; count what it reads before the call, and what it returns after it.

    Args:
        bound: arguments before the others; None for the context.
    """
    is_text = bool(args) and isinstance(args[0], str)
    if is_text and len(args) == 1 and not kwargs and name not in _PRICED:
        context.left -= CALL + len(args[0])
    else:
        if name in _CONSUMING:
            args = tuple(list(value) if is_iterator(value) else value for value in args)
        context.spend(_price(context, name, args, kwargs))
    result = function(*((context,) if bound is None else bound), *args, **kwargs)
    return context.made(result, 4 * ITEM if is_text else ITEM)  # items made of a text's characters are new strings


def _lipsum(*_: Any, **__: Any) -> str:
    raise SecurityError("lipsum is not reproducible")


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    def __init__(self, context: MeteredContext):
        super().__init__(context.environment)
        self._context = context

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._context.weigh(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        self._context.spend(sum(map(float, re.findall(r"\d+", format_spec))))
        return super().format_field(value, format_spec)


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
        bound: dict[Any, tuple[Any, ...] | None] = {
            _PassArg.context: None,
            _PassArg.eval_context: (self.eval_context,),
            _PassArg.environment: (self,),
        }

        def metered(name: str, function: Any) -> Any:
            return pass_context(functools.partial(_run, name, function, bound.get(_PassArg.from_obj(function), ())))

        self.filters = {name: metered(name, function) for name, function in self.filters.items()} | OPERATORS
        self.filters["count"] = self.filters["length"]
        self.tests |= {name: metered(name, self.tests[name]) for name in self.tests.keys() - _FREE_TESTS}

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(work_meter.Instrument().visit(source), *args, **kwargs)

    def call_filter(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        if name in OPERATORS:
            raise TemplateRuntimeError(f"No filter named {name!r}.")
        return super().call_filter(name, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            context.spend(_price(context, "%", (left, right), {}))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            context.spend(CALL * left.bit_length() * max(right, 0))
        elif operator == "*":
            for items, count in ((left, right), (right, left)):
                each = 1 if isinstance(items, str) else ITEM
                context.spend(each * _length(items) * max(count, 0) if isinstance(count, int) else 0)
        return context.made(self.binop_table[operator](left, right))

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
        kind = type(function)
        of: Any = function.__self__ if kind is MethodType or kind is BuiltinMethodType else None
        if kind is BuiltinMethodType or isinstance(of, Markup):
            name = function.__name__
            if name not in _METHODS.get(type(of), ()):
                raise SecurityError(f"{name} of a {type(of).__name__} cannot be called")
            if name in ("format", "format_map"):
                context.spend(CALL + 8 * len(of))
                return context.made(_Formatter(context).vformat(of, args, args[0] if name == "format_map" else kwargs))
            return _run(name, getattr(type(of), name), (), context, of, *args, **kwargs)
        context.spend(CALL + ITEM * (len(args) + len(kwargs)))
        if isinstance(of, jinja2.ext.Extension):
            args = (context, *args)
        elif kind is not Macro and kind is not LoopContext:
            reads = isinstance(of, LoopContext | Cycler) or kind is Joiner or isinstance(function, Undefined)
            if not reads and not any(function is known for known in self.globals.values()):
                raise SecurityError(f"a {kind.__name__} cannot be called")
            name = "dict" if function is dict or function is Namespace else "call"
            return _run(name, functools.partial(function, **kwargs), (), context, *args)
        context.depth += 1
        if context.depth > work_meter.MOST_DEPTH:
            raise SecurityError(f"macros or loops call themselves more than {work_meter.MOST_DEPTH} levels deep")
        try:
            return function(*args, **kwargs)
        finally:
            context.depth -= 1
