"""The sandbox that templates run in: it limits what a template can reach and how much work it can do.

The sandbox refuses rows by counted work, which is the same on every machine. This is the backstop: a thread ends a
rendering that takes `SECONDS`, and the build fails without storing a result for the chunk.

Work is counted, not timed, so that every machine accepts the same rows. A character that is made or read is one unit,
an item `ITEM`, a call `CALL`, a node of the body of a loop or macro `STEP` per iteration. Nothing is given back, so a
row's limit also bounds the memory that its values take, at about 8 bytes per unit.

Chat templates are downloaded with tokenizers, so they are untrusted. A template can reach its data, the methods and
filters that read data, and its own macros; everything else raises `SecurityError`. Its work is counted: `Instrument`
counts steps and operators, and `_run` counts calls. A call costs the size of what it reads, what `_price` adds for what
it can make from that, and the size of what it returns.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2.ext
import jinja2.nodes
import jinja2.nodes as n
import jinja2.sandbox
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, Namespace, _PassArg, pass_context
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from tokenloom.errors import DeadlineError

SECONDS = 300
"""Seconds that one rendering can take; the most work that is counted takes a few."""

_running: dict[int, object] = {}
"""What each thread renders. Whoever removes an entry decides how its rendering ends."""
_lock = threading.Lock()
_watching = False


def start(rendering: object) -> int:
    """Start the clock of a rendering, a distinct object, in this thread. Return the thread's number."""
    thread = threading.get_ident()
    _running[thread] = rendering
    if not _watching:
        _start_watch()
    return thread


def stop(thread: int) -> None:
    """Stop the clock of a rendering that has not raised a `DeadlineError`.

    Raises:
        DeadlineError: the deadline has passed.
    """
    while _running.pop(thread, None) is None:
        time.sleep(1)  # the exception is on its way


def _start_watch() -> None:
    global _watching
    with _lock:
        if not _watching:
            _watching = True
            threading.Thread(target=_watch, name="tokenloom-deadline", daemon=True).start()


def _watch() -> None:
    """Count each rendering's seconds by this thread's own, which stand still while the process is stopped."""
    ages: dict[object, int] = {}
    while True:
        time.sleep(1)
        current = dict(_running)
        ages = {rendering: ages.get(rendering, 0) + 1 for rendering in current.values()}
        for thread, rendering in current.items():
            if ages[rendering] <= SECONDS:  # the first of its seconds had begun before it
                continue
            ended = _running.pop(thread, None)
            if ended is rendering:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeadlineError))
            elif ended is not None:
                _running[thread] = ended  # the next one, which waits for this if it has ended, too


def _forget() -> None:
    """Start over in a forked process, which has no threads but its own."""
    global _watching, _lock
    _running.clear()
    _watching, _lock = False, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


ALLOWANCE, ALLOWANCE_EACH = 8_000_000, 2_048
"""Units of work for a row, and for each unit of its data."""
MOST, MOST_EACH = 64_000_000, 32
"""Largest allowance: units for a row, and for each unit of its data, so that long texts can be copied some times."""
ITEM, CALL, STEP = 8, 64, 16
MOST_BITS = 4096
"""Largest size of an integer."""
MOST_DEPTH = 64
"""Largest nesting depth of macro calls and recursive loops, and of lists and objects in a value."""

_SCALARS = (int, float, type(None))
_CONTAINERS = (dict, list, tuple, range, type({}.keys()), type({}.values()), type({}.items()))


class MeteredContext(Context):
    """A template's variables and its units of work; what counts them raises `SecurityError` if none are left."""

    left = allowed = ALLOWANCE
    given: Mapping[str, Any] | None = None
    """The row's data until it is added to the allowance, then None: its size is only measured when needed."""
    depth = 0

    def __init__(self, environment: Any, variables: dict[str, Any], *_: Any, **__: Any):
        """Set up what Jinja's own context does, without blocks and escaping: a context is made for every row."""
        self.environment, self.parent, self.vars = environment, variables, {}
        self.eval_ctx = environment.eval_context
        self.exported_vars, self.globals_keys = set(), set()
        self.name, self.blocks = None, {}

    def spend(self, amount: float) -> None:
        """Subtract units of work, also those of an iteration of a loop or a call of a macro."""
        self.left -= amount
        if self.left < 0:
            if self.given is not None:
                # measured only now: most rows never use up the allowance that every row has
                size = sum(_sizes(dict(self.given)))
                allowed = min(ALLOWANCE + ALLOWANCE_EACH * size, MOST + MOST_EACH * size)
                self.left, self.allowed, self.given = self.left + allowed - ALLOWANCE, allowed, None
            if self.left < 0:
                raise SecurityError(f"more than {self.allowed:,} units of work for one row")

    def weigh(self, value: Any) -> int:
        """Subtract and return the size of a value, which is what writing, comparing or looking it up reads.

        Raises:
            SecurityError: the value is too large, nested too deeply, or not data.
        """
        weight = 0
        for size in (len(value),) if value.__class__ is str else _sizes(value):
            weight += size
            self.spend(size)
        return weight

    def made(self, value: Any, each: int = ITEM) -> Any:
        """Count a new value and return it; an iterator is wrapped so that it counts what it yields.

        Args:
            each: units for each item.
        """
        if isinstance(value, str):
            self.left -= len(value)
            if self.left < 0:
                self.spend(0)
        elif isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                raise SecurityError(f"an integer has more than {MOST_BITS} bits")
        elif isinstance(value, (list, tuple, dict)):
            self.spend(len(value) * each)
        elif isinstance(value, set):
            # its order differs between processes, and so would the text
            raise SecurityError("a set has no order")
        elif is_iterator(value):
            self.spend(CALL)
            return self._yielded(value)
        return value

    def _yielded(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(2 * CALL)
            yield self.made(item)

    def weighed(self, value: Any) -> Any:
        """Count what is read of a value and return it."""
        kind = value.__class__
        if kind is str:
            self.left -= len(value)
            if self.left < 0:
                self.spend(0)
        elif kind is int:
            self.left -= value.bit_length()
        elif kind is not bool:
            self.weigh(value)
        return value

    def searched(self, value: Any) -> Any:
        """Count what `in` reads: nothing of an object's values, and an iterator as a list."""
        if value.__class__ is dict:
            return value
        return self.weighed(list(value) if is_iterator(value) else value)


_COUNTING = MeteredContext.spend, MeteredContext.weighed, MeteredContext.searched, MeteredContext.made
OPERATORS = {f"work of {known.__name__}": pass_context(known) for known in _COUNTING}
"""Filters that `Instrument` inserts, by names that no template can write."""


def is_iterator(value: Any) -> bool:
    """Return whether the value is an iterator, whose items are counted as they are read."""
    return hasattr(type(value), "__next__") and not isinstance(value, LoopContext | Cycler)


def _sizes(value: Any) -> Iterator[int]:
    """Yield the sizes of a value and of everything in it, field names included, without what each contains."""
    level = [value]
    for _ in range(MOST_DEPTH + 2):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                yield ITEM + len(item)
            elif isinstance(item, _SCALARS):
                yield ITEM + (item.bit_length() if isinstance(item, int) else 0)
            elif isinstance(item, _CONTAINERS):
                # paid before its items are listed: a list that holds another many times uses up units, not memory
                yield ITEM + ITEM * len(item)
                if isinstance(item, dict):  # without the methods of a subclass: to count is not to look
                    inner += [*dict.keys(item), *dict.values(item)]
                elif not isinstance(item, range):
                    inner += item
            elif isinstance(item, Namespace):
                inner.append(item._Namespace__attrs)
            elif isinstance(item, BuiltinMethodType):
                name = item.__name__
                raise SecurityError(f"{name} is a method here; write ['{name}'] for a field of that name")
            elif not isinstance(item, Undefined):
                raise SecurityError(f"a {type(item).__name__} is not data")
        if not inner:
            return
        level = inner
    raise SecurityError(f"a value is nested more than {MOST_DEPTH} levels deep")


class Instrument(NodeTransformer):
    """Adds work counting to a tree, in place.

    Raises:
        TemplateSyntaxError: the template uses other templates or HTML escaping.
    """

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        work = _work_of(node) if isinstance(node, n.For | n.Macro | n.CallBlock) else 0
        self.generic_visit(node)
        match node:
            case n.For() | n.Macro() | n.CallBlock():
                step = operator("spend", n.Const(work, lineno=node.lineno))
                node.body.insert(0, n.ExprStmt(step, lineno=node.lineno))
                if isinstance(node, n.For) and node.test:
                    # the test also runs for items that the body never sees; counting returns None, so `not` is true
                    node.test = n.And(n.Not(step), node.test, lineno=node.lineno)
            case n.Output() | n.Concat():
                node.nodes = [_counted(part) for part in node.nodes]
            case n.Add():
                terms = node.left, node.right
                node.left, node.right = (term if isinstance(term, n.Add) else _counted(term, "made") for term in terms)
            case n.Compare() if not all(_is_free(operand.expr) for operand in node.ops):
                for operand in (node, *node.ops):
                    searches = getattr(operand, "op", None) in ("in", "notin")
                    operand.expr = _counted(operand.expr, "searched" if searches else "weighed")
            case n.Getitem(arg=n.Slice()):
                return _counted(node, "made")
            case n.Getitem():
                node.arg = _counted(node.arg)
            case n.Pair():
                node.key = _counted(node.key)
            case n.EvalContextModifier():
                raise TemplateSyntaxError("autoescape is not available: prompts are not HTML", node.lineno or 1)
            case n.Extends() | n.Include() | n.Import() | n.FromImport() | n.Block():
                message = f"{type(node).__name__.lower()} is not available: a template cannot use other templates"
                raise TemplateSyntaxError(message, node.lineno)
        return node


def operator(name: str, node: Any, args: Sequence[Any] = ()) -> Any:
    """Return a node that calls a filter of `OPERATORS`, or one that the environment adds to them, on another node."""
    return n.Filter(node, f"work of {name}", [*args], [], None, None, lineno=node.lineno)


def _counted(node: Any, name: str = "weighed") -> Any:
    return node if _is_free(node) else operator(name, node)


def _is_free(node: Any) -> bool:
    """Return whether the size of an expression is a constant, or is counted with its parts."""
    match node:
        case n.List() | n.Tuple():
            return all(map(_is_free, node.items))
        case n.Add():  # of texts or of numbers, if one term is
            terms = node.left, node.right
            return any(isinstance(term, n.Const | n.Concat | n.Add) and _is_free(term) for term in terms)
    return isinstance(node, n.Const | n.TemplateData | n.Concat | n.Compare | n.Test | n.Not)


def _work_of(node: Any) -> int:
    """Return the work of an iteration of a loop or a call of a macro: of its nodes, and of literal text."""
    literal = sum(len(str(part.as_const())) for part in node.find_all((n.Const, n.TemplateData)))
    return literal + STEP * sum(1 for _ in node.find_all(n.Node))


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
        bound: dict[Any, Any] = {_PassArg.context: None, _PassArg.environment: (self,)}
        bound[_PassArg.eval_context] = (self.eval_context,)

        def metered(name: str, function: Any) -> Any:
            return pass_context(functools.partial(_run, name, function, bound.get(_PassArg.from_obj(function), ())))

        self.filters = {name: metered(name, function) for name, function in self.filters.items()} | OPERATORS
        self.filters["count"] = self.filters["length"]
        self.tests |= {name: metered(name, self.tests[name]) for name in self.tests.keys() - _FREE_TESTS}

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(Instrument().visit(source), *args, **kwargs)

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
        if context.depth > MOST_DEPTH:
            raise SecurityError(f"macros or loops call themselves more than {MOST_DEPTH} levels deep")
        try:
            return function(*args, **kwargs)
        finally:
            context.depth -= 1
