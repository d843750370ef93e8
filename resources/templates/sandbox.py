"""The sandbox that templates run in: it limits what a template can reach and how much work it can do.

Chat templates are downloaded with tokenizers, so they are untrusted. A template can reach its data, the methods and
filters that read data, and its own macros; everything else raises `SecurityError`. Its work is counted step by step:
`instrument` inserts the counting into the parsed template, and `work_meter` stops a template that exceeds its limit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, Namespace, _PassArg, pass_context
from markupsafe import Markup

from tokenloom.resources.templates import costs, instrument
from tokenloom.resources.templates.work_meter import MOST_DEPTH, OPERATIONS, MeteredContext, is_iterator, searched

MOST_RANGE = 100_000

_OF_DICT = frozenset(dir(dict))
_CLASSES = (dict, Namespace, Cycler, Joiner)


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    call, cost, deep = _with_context(function), costs.FILTERS.get(name), name not in costs.SHALLOW
    costly, consuming = name in costs.COSTLY, name in costs.CONSUMING

    @functools.wraps(function)
    def run(context: MeteredContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        if consuming and is_iterator(value):
            value = list(value)
        if deep:
            context.weigh(value)
        if args or kwargs:
            for argument in (*args, *kwargs.values()):
                context.weigh(argument)
            costs.check_path(name, args, kwargs)
        if cost is not None and (costly or args or kwargs):
            context.spend(cost(value, *args, **kwargs))
        return context.counted(call(context, value, *args, **kwargs))

    return pass_context(run)


def _quick_trim(trim: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `trim` filter with a fast path for its most common use, a plain string without arguments."""

    @functools.wraps(trim)
    def run(context: MeteredContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        if value.__class__ is not str or args or kwargs:
            return trim(context, value, *args, **kwargs)
        context.left -= len(value)
        if context.left < 0:
            context.exhausted()
        return value.strip()

    return run


def _metered_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    call = _with_context(function)

    @functools.wraps(function)
    def run(context: MeteredContext, *args: Any) -> Any:
        for value in args:
            searched(context, value)
        if name in costs.REMAINDER_TESTS and isinstance(args[0], str):
            raise SecurityError(f"{name} only tests numbers")
        return call(context, *args)

    return pass_context(run)


def _with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter or test so that it always takes the context as its first argument."""
    calls: dict[_PassArg | None, Callable[..., Any]] = {
        None: lambda context, *args, **kwargs: function(*args, **kwargs),
        _PassArg.context: function,
        _PassArg.eval_context: lambda context, *args, **kwargs: function(context.eval_ctx, *args, **kwargs),
        _PassArg.environment: lambda context, *args, **kwargs: function(context.environment, *args, **kwargs),
    }
    return calls[_PassArg.from_obj(function)]


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MOST_RANGE:
        raise SecurityError(f"a range has more than {MOST_RANGE:,} numbers")
    return numbers


def _lipsum(*_: Any, **__: Any) -> str:
    raise SecurityError("lipsum is not reproducible")


@dataclass(frozen=True)
class _Format:
    """The method `format` or `format_map` of a string."""

    text: str
    by_name: bool


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    def __init__(self, context: MeteredContext):
        super().__init__(context.environment)
        self._context = context

    def format_field(self, value: Any, format_spec: str) -> str:
        self._context.weigh(value)
        self._context.spend(sum(map(costs.digits, re.findall(r"\d+", format_spec))))
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._context.weigh(value)
        return super().convert_field(value, conversion)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The Jinja environment of all templates; templates can call the functions in its globals."""

    context_class = MeteredContext
    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))
    """Operators that Jinja must not fold into constants when it compiles a template."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        for name in costs.REFUSED:
            del self.filters[name]
        self.globals.update(range=_range, lipsum=_lipsum)
        self.eval_context = jinja2.nodes.EvalContext(self)

    def meter(self) -> None:
        """Make all filters and tests count their work. Call it once, after the last one is added."""
        self.filters = {name: _metered_filter(name, function) for name, function in self.filters.items()} | OPERATIONS
        self.filters["trim"] = _quick_trim(self.filters["trim"])
        self.tests = {
            name: function if name in costs.CHEAP_TESTS else _metered_test(name, function)
            for name, function in self.tests.items()
        }

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(instrument.metered(source), *args, **kwargs)

    def call_filter(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        if name in OPERATIONS:
            raise TemplateRuntimeError(f"No filter named {name!r}.")
        return super().call_filter(name, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or item as Jinja's sandbox does, with a fast path for the most common types."""
        kind = obj.__class__
        if kind is dict and attribute not in _OF_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in costs.TEXT_METHODS) or (kind is LoopContext and attribute[0] != "_"):
            value = getattr(obj, attribute, obj)
            return value if value is not obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"{attribute} of a {type(obj).__name__} is not accessible")

    def wrap_str_format(self, value: Any) -> Any:
        if not isinstance(value, BuiltinMethodType | MethodType) or value.__name__ not in ("format", "format_map"):
            return None
        return _Format(value.__self__, value.__name__ == "format_map") if isinstance(value.__self__, str) else None

    def call(self, context: MeteredContext, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore
        """Call a macro, a loop, a method of data or a function in the globals.

        Raises:
            SecurityError: the function is none of these, or does too much work.
        """
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        kind = type(function)
        if kind is Macro or kind is LoopContext:
            return self._nested(context, function, args, kwargs)
        if kind is BuiltinMethodType or (kind is MethodType and isinstance(function.__self__, Markup)):
            return self._method(context, function, args, kwargs)
        if kind is _Format:
            return self._formatted(context, function, args, kwargs)
        if kind is MethodType and isinstance(function.__self__, jinja2.ext.Extension):
            return self._nested(context, functools.partial(function, context), args, kwargs)
        own = kind is MethodType and isinstance(function.__self__, LoopContext | Cycler)
        if own or kind is Joiner or function in _CLASSES or (kind is FunctionType and function in self._functions):
            for value in args if function not in _CLASSES[1:] else ():
                context.weigh(value)
            context.spend(len(kwargs) + sum(1 + costs.length(value) for value in args))
            return context.counted(function(*args, **kwargs))
        if isinstance(function, Undefined):
            return function()
        raise SecurityError(f"a {kind.__name__} cannot be called")

    @functools.cached_property
    def _functions(self) -> list[Any]:
        return [function for function in self.globals.values() if isinstance(function, FunctionType)]

    def _nested(self, context: MeteredContext, function: Any, args: Any, kwargs: Any) -> Any:
        context.spend(1 + len(args) + len(kwargs))
        context.depth += 1
        if context.depth > MOST_DEPTH:
            raise SecurityError(f"macros or loops call themselves more than {MOST_DEPTH} levels deep")
        try:
            return function(*args, **kwargs)
        finally:
            context.depth -= 1

    def _method(self, context: MeteredContext, method: Any, args: Any, kwargs: Any) -> Any:
        name, of = method.__name__, method.__self__
        if isinstance(of, str) and name in costs.TEXT_METHODS:
            if name == "join" and args and is_iterator(args[0]):
                args = (list(args[0]),)
            for value in (of, *args, *kwargs.values()):
                context.weigh(value)
            context.spend(costs.TEXT_METHODS[name](of, *args, **kwargs))
        elif name in costs.OTHER_METHODS.get(type(of), ()):
            for value in args if isinstance(of, dict) else (of, *args):
                context.weigh(value)
        else:
            raise SecurityError(f"{name} of a {type(of).__name__} cannot be called")
        return context.counted(method(*args, **kwargs))

    def _formatted(self, context: MeteredContext, method: _Format, args: Any, kwargs: Any) -> str:
        if type(method.text) is not str:
            raise SecurityError("a string marked as safe cannot be formatted")
        context.weigh(method.text)
        if method.by_name:
            (kwargs,), args = args, ()
        return context.counted(_Formatter(context).vformat(method.text, args, kwargs))
