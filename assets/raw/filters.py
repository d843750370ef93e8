"""Row conditions such as `len(output) > 0 and lang in ["de", "fr"]`, compiled to Arrow kernels.

Conditions use a small subset of Python's expression syntax. They are parsed with `ast` and compiled node by node;
Python never evaluates them. Null means unknown: a row is kept only if its condition is true.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.errors import ConfigError
from tokenloom.resources.tables.json_text import is_json, json_texts
from tokenloom.resources.tables.json_values import INTEGER, LIST, OBJECT, Kinds, as_lists, kinds_of, typed
from tokenloom.resources.tables.nested_paths import QUOTED, Path, evaluate, is_list, leads_somewhere, list_values, plain
from tokenloom.resources.tables.ragged import Flags, Ints, any_of, flags_of

Value = Any
"""A pa.Array with one value per row, or a pa.Scalar."""

_BIG_INTEGER = 255
"""Kind of JSON integers beyond 64 bits, in addition to those of `json_values`. They are compared as floats."""
NUMBER = r"^-?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$"


class UnfitError(Exception):
    """An operator does not support the types of its values."""


def kind_of(kind: pa.DataType) -> str:
    """Return the kind of values of a type, as messages call it; operators take values by kind."""
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
    if is_json(kind):
        return "an object"
    return "a list" if is_list(kind) else str(kind).split("<")[0]


def kinds_to_compare(texts: pa.Array) -> Kinds:
    """Return a kind for each JSON text, uint8 [rows]; values of one kind have one type for operators."""
    kinds = kinds_of(texts)
    # integers of up to 18 characters fit 64 bits for sure; only longer ones are read
    long = np.flatnonzero((kinds == INTEGER) & np.asarray(pc.greater(pc.binary_length(texts), 18).fill_null(False)))
    for row, text in zip(long, texts.take(pa.array(long)).to_pylist(), strict=True):
        kinds[row] = INTEGER if -(2**63) <= int(text) < 2**63 else _BIG_INTEGER
    return kinds


def of_one_kind(array: pa.Array) -> pa.Array:
    """Convert a JSON column, whose values are all of one kind, to that type. Objects and other arrays are unchanged."""
    if not is_json(array.type):
        return array
    values = typed(json_texts(array))
    if not is_json(values.type):
        return values
    (kind,) = np.unique(kinds_of(json_texts(values)))
    if kind == LIST:
        return as_lists(values)
    return values if kind == OBJECT else pa.array(map(float, json_texts(values).to_pylist()), pa.float64())


def _check(value: Value, expected: str, null_type: pa.DataType, remedy: str = "") -> Value:
    """Return the value if it is of the expected kind; a null becomes a null of `null_type`."""
    kind = kind_of(value.type)
    if kind == "null":
        return value.cast(null_type)
    if kind != expected:
        raise UnfitError(f"expected {expected}, got {kind}{remedy}")
    return value


def as_condition(value: Value) -> Value:
    """Return a boolean value, or raise UnfitError."""
    return _check(value, "true or false", pa.bool_(), "; compare it, e.g. len(x) > 0 or x == 1")


def as_text(value: Value) -> Value:
    """Return a text value, or raise UnfitError."""
    return _check(value, "text", pa.string())


def as_number(value: Value) -> Value:
    """Return a number as int64 if that holds every value of its type, else as float64, or raise UnfitError."""
    value = _check(value, "a number", pa.int64())
    small = pa.types.is_integer(value.type) and value.type != pa.uint64()
    return value.cast(pa.int64()) if small else value.cast(pa.float64())


def parse_number(value: Value) -> Value:
    """Return numbers unchanged, and text as the number that it contains, ignoring white space around it.

    Text that is not a number is null.
    """
    if kind_of(value.type) != "text":
        return as_number(value)
    # the cast would raise for the whole column, so text that is not a number is set to null before it
    trimmed = pc.utf8_trim_whitespace(value)
    is_number = pc.match_substring_regex(trimmed, NUMBER)
    return pc.if_else(is_number, trimmed, pa.scalar(None, pa.string())).cast(pa.float64())


def compare(name: str, left: Value, right: Value) -> Value:
    """Compare two values by the Arrow function of that name.

    Text is compared with a time as a time, an integer with a float as a float.
    """
    kinds = {kind_of(left.type), kind_of(right.type)}
    if "null" in kinds:
        other_type = left.type if pa.types.is_null(right.type) else right.type
        left, right = (side.cast(other_type) if pa.types.is_null(side.type) else side for side in (left, right))
    elif kinds == {"a time", "text"}:
        timed = left.type if kind_of(left.type) == "a time" else right.type
        left, right = left.cast(timed), right.cast(timed)
    elif len(kinds) > 1 or not kinds <= {"text", "a number", "true or false", "a time"}:
        remedy = "; number(x) reads a number in text" if kinds == {"text", "a number"} else ""
        raise UnfitError(f"cannot compare {kind_of(left.type)} with {kind_of(right.type)}{remedy}")
    elif pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        left, right = (
            side.cast(pa.float64(), safe=False) if pa.types.is_integer(side.type) else side for side in (left, right)
        )
    return pc.call_function(name, [left, right])


def arithmetic(sign: str, left: Value, right: Value) -> Value:
    """Compute `left sign right` as Python does; a division by zero is null, an overflow raises ArrowInvalid."""
    left, right = as_number(left), as_number(right)
    if sign in ("+", "-", "*"):
        return {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[sign](left, right)
    right = pc.if_else(pc.equal(right, 0), pa.scalar(None, right.type), right)
    if sign == "/":
        return pc.divide(left.cast(pa.float64()), right.cast(pa.float64()))
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        quotient = pc.floor(pc.divide(left.cast(pa.float64()), right.cast(pa.float64())))
    else:
        quotient = pc.divide(left, right)
        # Arrow divides towards zero, Python rounds down: one less if the signs differ and there is a remainder
        signs_differ = pc.not_equal(pc.less(left, 0), pc.less(right, 0))
        inexact = pc.and_(signs_differ, pc.not_equal(pc.multiply(quotient, right), left))
        quotient = pc.subtract(quotient, inexact.cast(pa.int64()))
    return quotient if sign == "//" else pc.subtract(left, pc.multiply(quotient, right))


def length(value: Value) -> Value:
    """Return the characters of text, or the items of a list."""
    if isinstance(value, pa.Array) and is_list(value.type):
        return pc.list_value_length(value).cast(pa.int64())
    return pc.utf8_length(_check(value, "text", pa.string(), "; len takes text and lists")).cast(pa.int64())


def is_one_of(value: Value, choices: list[Value]) -> Value:
    """Return whether each value equals one of the constants; null if the value is null."""
    equals_any = pc.if_else(pc.is_valid(value), pa.scalar(False), pa.scalar(None, pa.bool_()))
    for choice in choices:
        equals_any = pc.or_kleene(equals_any, compare("equal", value, choice))
    return equals_any


def contains(value: Value, item: Value) -> Value:
    """Return whether each text contains the item as a substring, or each list contains it as an item."""
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not (isinstance(value, pa.Array) and is_list(value.type)):
        if kind_of(item.type) != "text":
            raise UnfitError(f"{item.as_py()!r} cannot be a substring of text")
        return pc.match_substring(as_text(value), item.as_py())
    lengths, items = list_values(value)
    is_member = pa.array(any_of(flags_of(_equal(plain(items), item)), lengths))
    return pc.if_else(value.is_valid(), is_member, pa.scalar(None, pa.bool_()))


def _equal(items: pa.Array, item: Value) -> Value:
    """Return which items equal a constant; items of JSON are compared kind by kind."""
    if not is_json(items.type):
        return compare("equal", items, item)
    equal = np.zeros(len(items), bool)
    kinds = kinds_to_compare(json_texts(items))
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        equal[rows] = flags_of(compare("equal", of_one_kind(items.take(pa.array(rows))), item))
    return pa.array(equal)


SETTING = "dataset.filters"
MAX_CHARACTERS, MAX_DEPTH = 4000, 40
_STRINGS_AND_QUOTED_NAMES = re.compile(rf"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|({QUOTED})")
_PLACEHOLDER = "_quoted_name_{}_"
_COMPARISONS: dict[type, str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_TEXT_TESTS = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}
_TEXT_CHANGES = {"lower": pc.utf8_lower, "upper": pc.utf8_upper, "strip": pc.utf8_trim_whitespace}

Values = Mapping[Path, pa.Array]
"""The values of each path that a condition reads, for some rows."""
Evaluate = Callable[[Values], Value]
"""A compiled part of a condition: computes its value from the values of paths."""


@dataclass(frozen=True)
class Filter:
    """One row condition.

    Args:
        text: the condition. Names with a dot, a space or other special characters are in backticks.
        paths: the columns and nested fields that it reads.
    """

    text: str
    paths: tuple[Path, ...]
    _evaluate: Evaluate = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Compile a condition.

        Raises:
            ConfigError: the text is not a condition; the message gives the text and what is wrong.
        """
        compiler = _Compiler(text)
        evaluated = compiler.compile()
        return cls(text, tuple(compiler.paths), evaluated)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition reads."""
        return tuple(dict.fromkeys(path.column for path in self.paths))

    def lacking(self, table: pa.Table) -> tuple[Path, ...]:
        """Return the paths that do not exist in a table."""
        return tuple(path for path in self.paths if not leads_somewhere(table, path))

    def keep(self, table: pa.Table) -> Flags:
        """Return bool [rows]: which rows the condition is true for. A missing column is null.

        Raises:
            ConfigError: an operator does not fit the type of a column, such as the length of a number.
        """
        keep = np.zeros(table.num_rows, bool)
        try:
            for rows, values in _by_kind({path: evaluate(table, path) for path in self.paths}, table.num_rows):
                value = as_condition(self._evaluate(values))
                keep[rows] = value.as_py() is True if isinstance(value, pa.Scalar) else flags_of(value)
        except (UnfitError, pa.ArrowException) as error:
            raise _fault(self.text, str(error).splitlines()[0]) from error
        return keep


def _by_kind(values: Values, count: int) -> Iterator[tuple[Ints | slice, Values]]:
    """Group rows by the kinds of their JSON values, so that each column of a group can have one type.

    A row's verdict then does not depend on the kinds that other rows have.
    """
    kinds = [kinds_to_compare(json_texts(array)) for array in values.values() if is_json(array.type)]
    if not kinds:
        yield slice(None), values
        return
    # rows whose values have the same kinds, column by column, are evaluated together
    patterns, which = np.unique(np.stack(kinds, axis=1), axis=0, return_inverse=True)
    for number in range(len(patterns)):
        rows = np.flatnonzero(which == number)
        taken = {path: array.take(pa.array(rows)) for path, array in values.items()}
        yield rows, {path: of_one_kind(array) for path, array in taken.items()}


def _fault(text: str, message: str) -> ConfigError:
    shown = text if len(text) <= 80 else f"{text[:79]}…"
    return ConfigError.at(SETTING, f"{shown!r}: {message}")


class _Compiler:
    def __init__(self, text: str):
        self.text = text
        self.paths: list[Path] = []
        self.names: dict[str, str] = {}

    def compile(self) -> Evaluate:
        """Return the compiled condition, or raise ConfigError."""
        if len(self.text) > MAX_CHARACTERS:
            self.refuse(f"the condition is longer than {MAX_CHARACTERS} characters")
        try:
            # backticks are not Python: each name in them becomes an identifier, except within strings
            tree = ast.parse(_STRINGS_AND_QUOTED_NAMES.sub(self._placeholder, self.text.strip()), mode="eval")
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
        """Raise a ConfigError about this condition."""
        raise _fault(self.text, message)

    def shown(self, node: ast.AST) -> str:
        """Return a part of the condition as text, with the names as written."""
        text = ast.unparse(node)
        for name, column in self.names.items():
            text = text.replace(name, f"`{column}`")
        return text

    def node(self, node: ast.expr, depth: int) -> Evaluate:
        """Compile one node of the syntax tree."""
        if depth > MAX_DEPTH:
            self.refuse("nested too deeply")
        match node:
            case ast.Constant(value):
                return self._constant(value)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
                return self._constant(-value)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                path = self._path(node)
                return lambda values: values[path]
            case ast.BoolOp(op, values):
                parts = [self.node(value, depth + 1) for value in values]
                return _folded(parts, pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene)
            case ast.UnaryOp(ast.Not(), operand):
                inner = self.node(operand, depth + 1)
                return lambda values: pc.invert(as_condition(inner(values)))
            case ast.UnaryOp(ast.USub(), operand):
                inner = self.node(operand, depth + 1)
                return lambda values: pc.negate_checked(as_number(inner(values)))
            case ast.BinOp(left, op, right) if type(op) in _SIGNS:
                first, second = self.node(left, depth + 1), self.node(right, depth + 1)
                return lambda values: arithmetic(_SIGNS[type(op)], first(values), second(values))
            case ast.Compare(left, ops, comparators):
                sides = [left, *comparators]
                parts = [self._compare(sides[at], op, sides[at + 1], depth) for at, op in enumerate(ops)]
                return _folded(parts, pc.and_kleene)
            case ast.Call():
                return self._call(node, depth)
        self.refuse(f"{self.shown(node)} is not supported in a condition")

    def _constant(self, value: Any) -> Evaluate:
        if value is None:
            self.refuse("use `is None` or `is not None` to compare with None")
        if type(value) not in (bool, int, float, str) or (type(value) is int and not -(2**63) <= value < 2**63):
            self.refuse(f"{value!r} is not text, True, False, or a number that fits 64 bits")
        try:
            scalar = pa.scalar(value)
        except UnicodeEncodeError:
            self.refuse(f"{value!r} contains a lone surrogate")
        return lambda values: scalar

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
                    self.refuse(f"{self.shown(node)} is not a column or path; an index must be an integer")
        path = Path(self.names.get(node.id, node.id), tuple(reversed(steps)))
        if path not in self.paths:
            self.paths.append(path)
        return path

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, depth: int) -> Evaluate:
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                self.refuse("`is` only compares with None; use == for values")
            inner, test = self.node(left, depth + 1), pc.is_null if isinstance(op, ast.Is) else pc.is_valid
            return lambda values: test(inner(values))
        if isinstance(op, ast.In | ast.NotIn):
            is_member = self._membership(left, right, depth)
            return is_member if isinstance(op, ast.In) else lambda values: pc.invert(is_member(values))
        first, second = self.node(left, depth + 1), self.node(right, depth + 1)
        return lambda values: compare(_COMPARISONS[type(op)], first(values), second(values))

    def _membership(self, left: ast.expr, right: ast.expr, depth: int) -> Evaluate:
        if isinstance(right, ast.List | ast.Tuple | ast.Set):
            inner = self.node(left, depth + 1)
            choices = [self._choice(item, depth + 1) for item in right.elts]
            if len({kind_of(choice({}).type) for choice in choices}) > 1:
                self.refuse(f"{self.shown(right)} mixes text and other values")
            return lambda values: is_one_of(inner(values), [choice(values) for choice in choices])
        item, inner = self.node(left, depth + 1), self.node(right, depth + 1)
        if not isinstance(left, ast.Constant):
            self.refuse(f"{self.shown(left)} in {self.shown(right)}: a column needs a list of constants after `in`")
        return lambda values: contains(inner(values), item(values))

    def _choice(self, node: ast.expr, depth: int) -> Evaluate:
        match node:
            case ast.Constant() | ast.UnaryOp(ast.USub(), ast.Constant()):
                return self.node(node, depth)
        self.refuse(f"{self.shown(node)}: a list after `in` can contain constants only")

    def _call(self, node: ast.Call, depth: int) -> Evaluate:
        if node.keywords:
            self.refuse(f"{self.shown(node)}: keyword arguments are not supported")
        match node:
            case ast.Call(ast.Name("len" | "number" as name), [value]):
                inner, function = self.node(value, depth + 1), length if name == "len" else parse_number
                return lambda values: function(inner(values))
            case ast.Call(ast.Name("matches"), [value, pattern]):
                inner, regex = self.node(value, depth + 1), self._literal(pattern, node)
                try:
                    pc.match_substring_regex(pa.array([""]), regex)
                except pa.ArrowInvalid as error:
                    reason = str(error).splitlines()[0]
                    self.refuse(f"{regex!r} is not a regular expression that RE2 supports: {reason}")
                return lambda values: pc.match_substring_regex(as_text(inner(values)), regex)
            case ast.Call(ast.Attribute(value, name), [argument]) if name in _TEXT_TESTS:
                inner, text = self.node(value, depth + 1), self._literal(argument, node)
                return lambda values: _TEXT_TESTS[name](as_text(inner(values)), text)
            case ast.Call(ast.Attribute(value, name), []) if name in _TEXT_CHANGES:
                inner = self.node(value, depth + 1)
                return lambda values: _TEXT_CHANGES[name](as_text(inner(values)))
        known = [*(f".{name}(text)" for name in _TEXT_TESTS), *(f".{name}()" for name in _TEXT_CHANGES)]
        self.refuse(f"unknown call {self.shown(node)}; use len(x), number(x), matches(x, regex), {', '.join(known)}")

    def _literal(self, node: ast.expr, call: ast.Call) -> str:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            self.refuse(f"{self.shown(call)}: the last argument must be text in quotes")
        return node.value


def _folded(parts: list[Evaluate], join: Callable[[Value, Value], Value]) -> Evaluate:
    def evaluate_parts(values: Values) -> Value:
        value = as_condition(parts[0](values))
        for part in parts[1:]:
            value = join(value, as_condition(part(values)))
        return value

    return evaluate_parts
