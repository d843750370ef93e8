"""Counts a template's work while it runs: the context, and the operations that `instrument` inserts.

Work is counted, not timed, so that every machine accepts the same templates. One unit is one node of a loop's or
macro's body per iteration, or one item or character that is made or read. Each row has `ALLOWANCE` units, plus
`ALLOWANCE_EACH` for each value and character of its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping, ValuesView
from types import BuiltinMethodType
from typing import Any

import jinja2.nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.utils import Cycler, Namespace, pass_context

from tokenloom.resources.templates import costs, instrument

ALLOWANCE = 1_000_000
ALLOWANCE_EACH = 256
MOST_DEPTH = 64
"""Largest nesting depth of macro calls and recursive loops, and of lists and objects in a value."""
MOST_BITS = 4096
"""Largest size of an integer."""

_SCALARS = (int, float, bool, type(None))
_VIEWS = (list, tuple, KeysView, ValuesView, type({}.items()))


class MeteredContext(Context):
    """A template's variables and its remaining work units."""

    allowed = left = ALLOWANCE
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
        """Subtract work units.

        Raises:
            SecurityError: no work units are left.
        """
        if amount > 0:
            self.left -= amount
            if self.left < 0:
                self.exhausted()

    def exhausted(self) -> None:
        """Add the allowance for the row's data, once.

        Raises:
            SecurityError: no work units are left.
        """
        if self.given is not None:
            size = sum(map(_amount, _items(dict(self.given))))
            self.left += ALLOWANCE_EACH * size
            self.allowed += ALLOWANCE_EACH * size
            self.given = None
        if self.left < 0:
            raise SecurityError(f"more than {self.allowed:,} steps and characters for one row")

    def weigh(self, value: Any) -> int:
        """Subtract and return the size of a value, which is what writing, comparing or looking it up reads.

        Raises:
            SecurityError: the value is too large, nested too deeply, or not data.
        """
        if value.__class__ is str:
            self.left -= len(value)
            if self.left < 0:
                self.exhausted()
            return len(value)
        weight = 0
        for item in (value,) if value.__class__ in _SCALARS else _items(value):
            amount = _amount(item)
            weight += amount
            self.spend(amount)
        return weight

    def counted(self, value: Any) -> Any:
        """Count a new value and return it; an iterator is wrapped so that it counts what it yields."""
        kind = type(value)
        if kind is str or isinstance(value, str | list | tuple | dict):
            self.left -= len(value)
            if self.left < 0:
                self.exhausted()
        elif kind is int:
            _bounded(value)
        elif is_iterator(value):
            return self._yielded(value)
        return value

    def _yielded(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            self.weigh(item)
            yield item


def _amount(item: Any) -> int:
    """Return a value's own size, without what it contains: characters, numbers in a range, bits."""
    if isinstance(item, str | range):
        return 1 + len(item)
    return 1 + (item.bit_length() if item.__class__ is int else 0)


def _items(value: Any) -> Iterator[Any]:
    """Yield a value and everything in it, field names included.

    Raises:
        SecurityError: the value is nested too deeply, or not data.
    """
    pending = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        yield item
        if isinstance(item, str) or item.__class__ in _SCALARS:
            continue
        if depth > MOST_DEPTH:
            raise SecurityError(f"a value is nested more than {MOST_DEPTH} levels deep")
        if isinstance(item, dict):
            pending += [(inner, depth + 1) for pair in item.items() for inner in pair]
        elif isinstance(item, _VIEWS):
            pending += [(inner, depth + 1) for inner in item]
        elif isinstance(item, Namespace):
            pending.append((item._Namespace__attrs, depth + 1))
        elif isinstance(item, BuiltinMethodType):
            name = item.__name__
            raise SecurityError(f"{name} is a method here; write ['{name}'] for a field of that name")
        elif not isinstance(item, Undefined | range):
            raise SecurityError(f"a {type(item).__name__} is not data")


def is_iterator(value: Any) -> bool:
    """Return whether the value is an iterator, whose items are counted as they are read."""
    return hasattr(type(value), "__next__") and not isinstance(value, LoopContext | Cycler)


def _bounded(*numbers: Any) -> None:
    for number in numbers:
        if isinstance(number, int) and number.bit_length() > MOST_BITS:
            raise SecurityError(f"an integer has more than {MOST_BITS} bits")


@pass_context
def _step(context: MeteredContext, work: int) -> bool:
    context.left -= work
    if context.left < 0:
        context.exhausted()
    return True


@pass_context
def _written(context: MeteredContext, value: Any) -> Any:
    if value.__class__ is str:
        context.left -= len(value)
        if context.left < 0:
            context.exhausted()
    else:
        context.weigh(value)
    return value


@pass_context
def _joined(context: MeteredContext, *parts: Any) -> str:
    try:
        text = "".join(parts)
    except TypeError:
        for part in parts:
            context.weigh(part)
        text = "".join(map(str, parts))
    context.left -= len(text)
    if context.left < 0:
        context.exhausted()
    return text


@pass_context
def _added(context: MeteredContext, total: Any, *terms: Any) -> Any:
    for term in terms:
        total = total + term
    if total.__class__ is str:
        context.left -= len(total)
        if context.left < 0:
            context.exhausted()
        return total
    return context.counted(total)


@pass_context
def _weighed(context: MeteredContext, value: Any) -> Any:
    context.weigh(value)
    return value


@pass_context
def searched(context: MeteredContext, value: Any) -> Any:
    if value.__class__ is not dict and not is_iterator(value):
        context.weigh(value)
    return value


@pass_context
def _sliced(context: MeteredContext, value: Any) -> Any:
    return context.counted(value)


@pass_context
def _subtracted(context: MeteredContext, left: Any, right: Any) -> Any:
    return context.counted(left - right)


@pass_context
def _multiplied(context: MeteredContext, left: Any, right: Any) -> Any:
    _bounded(left, right)
    context.spend(costs.repeated(left, right))
    return left * right


@pass_context
def _power(context: MeteredContext, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MOST_BITS:
        raise SecurityError(f"an integer has more than {MOST_BITS} bits")
    return left**right


@pass_context
def _remainder(context: MeteredContext, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        context.spend(len(left) + costs.formatted(left, right, context.weigh(right)))
        return context.counted(left % right)
    return left % right


OPERATIONS: dict[str, Callable[..., Any]] = {
    instrument.STEP: _step,
    instrument.WRITTEN: _written,
    instrument.JOINED: _joined,
    instrument.ADDED: _added,
    instrument.WEIGHED: _weighed,
    instrument.SEARCHED: searched,
    instrument.SLICED: _sliced,
    instrument.ARITHMETIC[jinja2.nodes.Sub]: _subtracted,
    instrument.ARITHMETIC[jinja2.nodes.Mul]: _multiplied,
    instrument.ARITHMETIC[jinja2.nodes.Pow]: _power,
    instrument.ARITHMETIC[jinja2.nodes.Mod]: _remainder,
}
