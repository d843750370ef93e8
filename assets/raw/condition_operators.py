"""The operators of row conditions as Arrow kernels, with checks of the values' types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.flags import any_of, flags_of
from tokenloom.resources.tables.json_text import is_json, json_texts
from tokenloom.resources.tables.json_values import INTEGER, LIST, OBJECT, Kinds, as_lists, kinds_of, typed
from tokenloom.resources.tables.nested_paths import is_list, list_values, plain

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
    long = np.flatnonzero((kinds == INTEGER) & np.asarray(pc.greater(pc.binary_length(texts), 18).fill_null(False)))
    for row, text in zip(long, texts.take(pa.array(long)).to_pylist(), strict=True):
        kinds[row] = INTEGER if -(2**63) <= int(text) < 2**63 else _BIG_INTEGER
    return kinds


def of_one_kind(array: pa.Array) -> pa.Array:
    """Return the values of a JSON column that are of one kind with their type; other arrays and objects unchanged."""
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
    found = kind_of(value.type)
    if found == "null":
        return value.cast(null_type)
    if found != expected:
        raise UnfitError(f"expected {expected}, got {found}{remedy}")
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
    trimmed = pc.utf8_trim_whitespace(value)
    is_number = pc.match_substring_regex(trimmed, NUMBER)
    return pc.if_else(is_number, trimmed, pa.scalar(None, pa.string())).cast(pa.float64())


def compare(name: str, left: Value, right: Value) -> Value:
    """Compare two values by the Arrow function of that name.

    Text is compared with a time as a time, an integer with a float as a float.
    """
    kinds = {kind_of(left.type), kind_of(right.type)}
    if "null" in kinds:
        known = left.type if pa.types.is_null(right.type) else right.type
        left, right = (side.cast(known) if pa.types.is_null(side.type) else side for side in (left, right))
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
        inexact = pc.and_(
            pc.not_equal(pc.multiply(quotient, right), left), pc.not_equal(pc.less(left, 0), pc.less(right, 0))
        )
        quotient = pc.subtract(quotient, inexact.cast(pa.int64()))
    return quotient if sign == "//" else pc.subtract(left, pc.multiply(quotient, right))


def length(value: Value) -> Value:
    """Return the characters of text, or the items of a list."""
    if isinstance(value, pa.Array) and is_list(value.type):
        return pc.list_value_length(value).cast(pa.int64())
    return pc.utf8_length(_check(value, "text", pa.string(), "; len takes text and lists")).cast(pa.int64())


def is_one_of(value: Value, choices: list[Value]) -> Value:
    """Return whether each value equals one of the constants; null if the value is null."""
    found = pc.if_else(pc.is_valid(value), pa.scalar(False), pa.scalar(None, pa.bool_()))
    for choice in choices:
        found = pc.or_kleene(found, compare("equal", value, choice))
    return found


def contains(value: Value, item: Value) -> Value:
    """Return whether each text contains the item as a substring, or each list contains it as an item."""
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not (isinstance(value, pa.Array) and is_list(value.type)):
        if kind_of(item.type) != "text":
            raise UnfitError(f"{item.as_py()!r} cannot be a substring of text")
        return pc.match_substring(as_text(value), item.as_py())
    lengths, items = list_values(value)
    found = pa.array(any_of(flags_of(_equal(plain(items), item)), lengths))
    return pc.if_else(value.is_valid(), found, pa.scalar(None, pa.bool_()))


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
