"""Row conditions such as `len(output) > 0 and lang in ["de", "fr"]`, compiled to Arrow kernels.

A condition is a small part of Python's expressions. It is parsed with `ast` and compiled node by node: nothing is
evaluated by Python. Null stands for unknown: a row stays only where its condition is true.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.errors import ConfigError, Fault
from tokenloom.resources.tables.nested_paths import QUOTED, Path, evaluate, is_list, leads_somewhere, list_values, plain
from tokenloom.resources.tables.ragged import offsets_of, sum_rows

SETTING = "dataset.filters"
LONGEST, DEEPEST = 4000, 40
_ODD_NAMES = re.compile(rf"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|({QUOTED})")
_PLACEHOLDER = "_quoted_name_{}_"
NUMBER = r"^-?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$"
_COMPARISONS: dict[type, str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_TEXT_TESTS = {
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "contains": pc.match_substring,
}
_TEXT_CHANGES = {"lower": pc.utf8_lower, "upper": pc.utf8_upper, "strip": pc.utf8_trim_whitespace}

Value = Any
"""A pa.Array, one value a row, or a pa.Scalar."""
Evaluate = Callable[[pa.Table], Value]


@dataclass(frozen=True)
class Filter:
    """One row condition.

    `paths` are what it reads. Names with a dot, a space or other signs stand in backticks.
    """

    text: str
    paths: tuple[Path, ...]
    _evaluate: Evaluate = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Compile a condition.

        Raises:
            ConfigError: it is not one that this language has; the message says what and where.
        """
        compiler = _Compiler(text)
        evaluated = compiler.compile()
        return cls(text, tuple(compiler.paths), evaluated)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(dict.fromkeys(path.column for path in self.paths))

    def lacking(self, schema: pa.Schema) -> tuple[Path, ...]:
        """The paths that lead nowhere in tables of a schema."""
        return tuple(path for path in self.paths if not leads_somewhere(schema, path))

    def keep(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """bool [rows]: where the condition is true. A column that the table lacks is null.

        Raises:
            ConfigError: the condition asks of a column's type what it has not, such as a number's length.
        """
        try:
            found = _condition(self._evaluate(table))
        except (_Unfit, pa.ArrowException) as error:
            raise _fault(self.text, str(error).splitlines()[0]) from error
        if isinstance(found, pa.Scalar):
            return np.full(table.num_rows, found.as_py() is True)
        return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), bool)


class _Unfit(Exception):
    """An operation does not fit the types of its values."""


def _fault(text: str, message: str) -> ConfigError:
    shown = text if len(text) <= 80 else f"{text[:79]}…"
    return ConfigError([Fault(SETTING, f"{SETTING}: {shown!r}: {message}")])


class _Compiler:
    def __init__(self, text: str):
        self.text = text
        self.paths: list[Path] = []
        self.names: dict[str, str] = {}

    def compile(self) -> Evaluate:
        if len(self.text) > LONGEST:
            self.refuse(f"longer than {LONGEST} characters")
        try:
            tree = ast.parse(_ODD_NAMES.sub(self._placeholder, self.text.strip()), mode="eval")
        except SyntaxError as error:
            self.refuse(f"not a condition: {error.msg}")
        except (ValueError, RecursionError, MemoryError):
            self.refuse("not a condition")
        try:
            return self.node(tree.body, 0)
        except RecursionError:
            self.refuse("nested too deeply")

    def _placeholder(self, match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group()
        name = _PLACEHOLDER.format(len(self.names))
        self.names[name] = match.group(1)[1:-1].replace("``", "`")
        return name

    def refuse(self, message: str) -> NoReturn:
        raise _fault(self.text, message)

    def shown(self, node: ast.AST) -> str:
        text = ast.unparse(node)
        for name, column in self.names.items():
            text = text.replace(name, f"`{column}`")
        return text

    def node(self, node: ast.expr, depth: int) -> Evaluate:
        if depth > DEEPEST:
            self.refuse("nested too deeply")
        match node:
            case ast.Constant(value):
                return self._constant(value)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
                return self._constant(-value)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                path = self._path(node)
                return lambda table: evaluate(table, path)
            case ast.BoolOp(op, values):
                parts = [self.node(value, depth + 1) for value in values]
                return _all_of(parts) if isinstance(op, ast.And) else _any_of(parts)
            case ast.UnaryOp(ast.Not(), operand):
                inner = self.node(operand, depth + 1)
                return lambda table: pc.invert(_condition(inner(table)))
            case ast.UnaryOp(ast.USub(), operand):
                inner = self.node(operand, depth + 1)
                return lambda table: pc.negate_checked(_number(inner(table)))
            case ast.BinOp(left, op, right) if type(op) in _SIGNS:
                first, second = self.node(left, depth + 1), self.node(right, depth + 1)
                return lambda table: _arithmetic(_SIGNS[type(op)], first(table), second(table))
            case ast.Compare(left, ops, comparators):
                sides = [left, *comparators]
                return _all_of([self._compare(sides[at], op, sides[at + 1], depth) for at, op in enumerate(ops)])
            case ast.Call():
                return self._call(node, depth)
        self.refuse(f"{self.shown(node)} is nothing that a condition may hold")

    def _constant(self, value: Any) -> Evaluate:
        if value is None:
            self.refuse("write `is None` or `is not None` to compare with None")
        if type(value) not in (bool, int, float, str) or (type(value) is int and not -(2**63) <= value < 2**63):
            self.refuse(f"{value!r} is no text, number, True or False that Arrow knows")
        try:
            scalar = pa.scalar(value)
        except UnicodeEncodeError:
            self.refuse(f"{value!r} holds half of a surrogate pair")
        return lambda table: scalar

    def _path(self, node: ast.expr) -> Path:
        steps: list[str | int] = []
        while not isinstance(node, ast.Name):
            match node:
                case ast.Attribute(value, attr):
                    steps.append(self.names.get(attr, attr))
                    node = value
                case ast.Subscript(value, ast.Constant(index)) if type(index) is int:
                    steps.append(index)
                    node = value
                case ast.Subscript(value, ast.UnaryOp(ast.USub(), ast.Constant(index))) if type(index) is int:
                    steps.append(-index)
                    node = value
                case _:
                    self.refuse(f"{self.shown(node)} is no column or path; an index is a whole number")
        path = Path(self.names.get(node.id, node.id), tuple(reversed(steps)))
        if path not in self.paths:
            self.paths.append(path)
        return path

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, depth: int) -> Evaluate:
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                self.refuse("`is` stands before None only; use == for values")
            inner, wanted = self.node(left, depth + 1), isinstance(op, ast.Is)
            return lambda table: pc.is_null(inner(table)) if wanted else pc.is_valid(inner(table))
        if isinstance(op, ast.In | ast.NotIn):
            found = self._membership(left, right, depth)
            return found if isinstance(op, ast.In) else lambda table: pc.invert(found(table))
        first, second = self.node(left, depth + 1), self.node(right, depth + 1)
        return lambda table: _compared(_COMPARISONS[type(op)], first(table), second(table))

    def _membership(self, left: ast.expr, right: ast.expr, depth: int) -> Evaluate:
        if isinstance(right, ast.List | ast.Tuple | ast.Set):
            inner = self.node(left, depth + 1)
            choices = [self._choice(item, depth + 1) for item in right.elts]
            if len({_sort(choice(_NOTHING).type) for choice in choices}) > 1:
                self.refuse(f"{self.shown(right)} mixes text and other values")
            return lambda table: _is_one_of(inner(table), [choice(table) for choice in choices])
        item, inner = self.node(left, depth + 1), self.node(right, depth + 1)
        if not isinstance(left, ast.Constant):
            self.refuse(f"{self.shown(left)} in {self.shown(right)}: before `in` a column needs a list of constants")
        return lambda table: _holds(inner(table), item(table))

    def _choice(self, node: ast.expr, depth: int) -> Evaluate:
        match node:
            case ast.Constant() | ast.UnaryOp(ast.USub(), ast.Constant()):
                return self.node(node, depth)
        self.refuse(f"{self.shown(node)}: a list behind `in` holds constants only")

    def _call(self, node: ast.Call, depth: int) -> Evaluate:
        if node.keywords:
            self.refuse(f"{self.shown(node)}: arguments have no names here")
        match node:
            case ast.Call(ast.Name("len"), [value]):
                inner = self.node(value, depth + 1)
                return lambda table: _length(inner(table))
            case ast.Call(ast.Name("number"), [value]):
                inner = self.node(value, depth + 1)
                return lambda table: _as_number(inner(table))
            case ast.Call(ast.Name("matches"), [value, pattern]):
                inner, regex = self.node(value, depth + 1), self._text(pattern, node)
                try:
                    pc.match_substring_regex(pa.array([""]), regex)
                except pa.ArrowInvalid as error:
                    self.refuse(f"{regex!r} is no regular expression of RE2: {str(error).splitlines()[0]}")
                return lambda table: pc.match_substring_regex(_text(inner(table)), regex)
            case ast.Call(ast.Attribute(value, name), [argument]) if name in _TEXT_TESTS:
                inner, wanted = self.node(value, depth + 1), self._text(argument, node)
                return lambda table: _TEXT_TESTS[name](_text(inner(table)), wanted)
            case ast.Call(ast.Attribute(value, name), []) if name in _TEXT_CHANGES:
                inner = self.node(value, depth + 1)
                return lambda table: _TEXT_CHANGES[name](_text(inner(table)))
        known = [*(f".{name}(text)" for name in _TEXT_TESTS), *(f".{name}()" for name in _TEXT_CHANGES)]
        self.refuse(
            f"no such call: {self.shown(node)}; there are len(x), number(x), matches(x, regex), {', '.join(known)}"
        )

    def _text(self, node: ast.expr, call: ast.Call) -> str:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            self.refuse(f"{self.shown(call)}: its last argument is a text in quotes")
        return node.value


_NOTHING = pa.table({})


def _all_of(parts: list[Evaluate]) -> Evaluate:
    return _folded(parts, pc.and_kleene)


def _any_of(parts: list[Evaluate]) -> Evaluate:
    return _folded(parts, pc.or_kleene)


def _folded(parts: list[Evaluate], join: Callable[[Value, Value], Value]) -> Evaluate:
    def evaluated(table: pa.Table) -> Value:
        found = _condition(parts[0](table))
        for part in parts[1:]:
            found = join(found, _condition(part(table)))
        return found

    return evaluated


def _sort(kind: pa.DataType) -> str:
    """What an operation may do with values of a type."""
    if pa.types.is_null(kind):
        return "null"
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "true or false"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "a number"
    if pa.types.is_temporal(kind):
        return "a time"
    return "a list" if is_list(kind) else str(kind).split("<")[0]


def _as(value: Value, wanted: str, kind: pa.DataType, remedy: str = "") -> Value:
    found = _sort(value.type)
    if found == "null":
        return value.cast(kind)
    if found != wanted:
        raise _Unfit(f"found {found} where {wanted} is needed{remedy}")
    return value


def _condition(value: Value) -> Value:
    return _as(value, "true or false", pa.bool_(), "; compare it, e.g. len(x) > 0 or x == 1")


def _text(value: Value) -> Value:
    return _as(value, "text", pa.string())


def _number(value: Value) -> Value:
    value = _as(value, "a number", pa.int64())
    small = pa.types.is_integer(value.type) and value.type != pa.uint64()
    return value.cast(pa.int64()) if small else value.cast(pa.float64())


def _as_number(value: Value) -> Value:
    """The number that a text holds, white space around it apart; null where it holds none."""
    if _sort(value.type) != "text":
        return _number(value)
    trimmed = pc.utf8_trim_whitespace(value)
    held = pc.match_substring_regex(trimmed, NUMBER)
    return pc.if_else(held, trimmed, pa.scalar(None, pa.string())).cast(pa.float64())


def _compared(name: str, left: Value, right: Value) -> Value:
    sorts = {_sort(left.type), _sort(right.type)}
    if "null" in sorts:
        kind = left.type if pa.types.is_null(right.type) else right.type
        left, right = (side.cast(kind) if pa.types.is_null(side.type) else side for side in (left, right))
    elif sorts == {"a time", "text"}:
        timed = left.type if _sort(left.type) == "a time" else right.type
        left, right = left.cast(timed), right.cast(timed)
    elif len(sorts) > 1 or not sorts <= {"text", "a number", "true or false", "a time"}:
        remedy = "; number(x) reads a number in text" if sorts == {"text", "a number"} else ""
        raise _Unfit(f"cannot compare {_sort(left.type)} with {_sort(right.type)}{remedy}")
    return pc.call_function(name, [left, right])


def _arithmetic(sign: str, left: Value, right: Value) -> Value:
    left, right = _number(left), _number(right)
    if sign in ("+", "-", "*"):
        return {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[sign](left, right)
    right = pc.if_else(pc.equal(right, 0), pa.scalar(None, right.type), right)
    if sign == "/":
        return pc.divide(left.cast(pa.float64()), right.cast(pa.float64()))
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        quotient = pc.floor(pc.divide(left.cast(pa.float64()), right.cast(pa.float64())))
    else:
        quotient = pc.divide(left, right)
        inexact = pc.and_(
            pc.not_equal(pc.multiply(quotient, right), left), pc.not_equal(pc.less(left, 0), pc.less(right, 0))
        )
        quotient = pc.subtract(quotient, inexact.cast(pa.int64()))
    return quotient if sign == "//" else pc.subtract(left, pc.multiply(quotient, right))


def _length(value: Value) -> Value:
    if isinstance(value, pa.Array) and is_list(value.type):
        return pc.list_value_length(value).cast(pa.int64())
    return pc.utf8_length(_as(value, "text", pa.string(), " (len is for text and lists)")).cast(pa.int64())


def _is_one_of(value: Value, choices: list[Value]) -> Value:
    """Equal to one of the constants; null where the value is null."""
    found = pc.if_else(pc.is_valid(value), pa.scalar(False), pa.scalar(None, pa.bool_()))
    for choice in choices:
        found = pc.or_kleene(found, _compared("equal", value, choice))
    return found


def _holds(value: Value, item: Value) -> Value:
    """Whether each text holds the item as a part, or each list as an item."""
    if not (isinstance(value, pa.Array) and is_list(value.type)):
        if _sort(item.type) != "text":
            raise _Unfit(f"{item.as_py()!r} cannot be part of a text")
        return pc.match_substring(_text(value), item.as_py())
    lengths, items = list_values(value)
    same = np.asarray(_compared("equal", plain(items), item).fill_null(False).to_numpy(zero_copy_only=False), bool)
    found = pa.array(sum_rows(same.astype(np.int64), offsets_of(lengths)) > 0)
    return pc.if_else(value.is_valid(), found, pa.scalar(None, pa.bool_()))
