"""JSON text and Arrow: the type of JSON columns, reading JSON with pyarrow, writing values as JSON text, and its
depth.

Parsers recurse into lists and objects: pyarrow's ends the process at some depth, Python's raises RecursionError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import json as arrow_json

from tokenloom.resources.tables.ragged import Flags, Ints, one_array

MAX_DEPTH = 64
"""The levels of lists and objects that a JSON value can have."""
PARSED_DEPTH = 1000
"""The levels that every parser survives."""
TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} levels deep"
LONE_SURROGATE = "a string contains a lone surrogate"

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Surrogates, also of a pair, and what only looks like one after an escaped backslash."""
_OPENING, _CLOSING = ord("["), ord("]")
_LARGE = 1 << 20
_INDEXED = 1 << 24
"""Size of the largest text whose quotes are indexed; the index takes several times its size."""


def read_json_value(text: str | bytes) -> Any:
    """Return what `json.loads` returns.

    Raises:
        ValueError: the text is not valid JSON, is nested more than `MAX_DEPTH` levels deep, or contains a surrogate
            without its other half, which UTF-8 cannot represent.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if is_deeper(data, MAX_DEPTH):
        raise ValueError(TOO_DEEP)
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))  # json.loads itself lets surrogates pass
    value = json.loads(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{LONE_SURROGATE}, \\u{ord(error.object[error.start]):x}; remove it") from error
    return value


def is_deeper(data: bytes, levels: int) -> bool:
    """Return whether JSON text, valid or not, has more than `levels` levels of lists and objects.

    Text with at most that many opening brackets needs no closer look.
    """
    if len(data) <= levels or data.count(b"[") + data.count(b"{") <= levels:
        return False
    bare, depth = _brackets(data) if len(data) < _INDEXED else None, 0
    if bare is None:
        bare = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    for start in range(0, len(bare), _LARGE):
        brackets = _without_case(bare[start : start + _LARGE])
        depths = depth + np.cumsum((brackets == _OPENING).astype(np.int64) - (brackets == _CLOSING))
        if depths.max() > levels:
            return True
        depth = int(depths[-1])
    return False


def _brackets(data: bytes) -> npt.NDArray[np.uint8] | None:
    """Return the brackets outside strings, as `_STRING` finds strings, but faster; None if the text is no JSON."""
    text = np.frombuffer(data, np.uint8)
    quotes, slashes = np.flatnonzero(text == ord('"')), np.flatnonzero(text == ord("\\"))
    if len(slashes):
        breaks = np.diff(slashes) != 1
        first, last = slashes[np.append(True, breaks)], slashes[np.append(breaks, True)]
        escaped = np.zeros(len(text) + 1, bool)
        # an odd number of backslashes escapes what follows
        escaped[last[(last - first) % 2 == 0] + 1] = True
        quotes = quotes[~escaped[quotes]]
        # a backslash outside a string
        if (np.searchsorted(quotes, slashes) % 2 == 0).any():
            return None
    folded = _without_case(text)
    places = np.flatnonzero((folded == _OPENING) | (folded == _CLOSING))
    # with an even number of quotes before it, a bracket is outside strings
    return text[places[np.searchsorted(quotes, places) % 2 == 0]]


def which_deeper(data: npt.NDArray[np.uint8], bounds: Ints, levels: int) -> Flags:
    """Return bool [texts]: which of several JSON texts have more than `levels` levels of lists and objects.

    Args:
        data: uint8 [bytes].
        bounds: int64 [texts + 1] into `data`.
    """
    sizes = np.diff(bounds)
    deep = np.zeros(len(sizes), bool)
    suspects = np.flatnonzero(sizes > levels)
    if 8 * len(suspects) > len(sizes) and sizes.max() < _LARGE:  # an index of the brackets of a large text is larger
        opening = np.flatnonzero(_without_case(data) == _OPENING)
        suspects = np.flatnonzero(np.diff(np.searchsorted(opening, bounds)) > levels)
    for text in suspects.tolist():
        deep[text] = is_deeper(data[bounds[text] : bounds[text + 1]].tobytes(), levels)
    return deep


def _without_case(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    # the two kinds of brackets differ in one bit, which is that of case
    return data & np.uint8(0xDF)


_JSON = pa.json_()


def is_json(kind: pa.DataType) -> bool:
    """Return whether a type is that of JSON columns."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def json_column(texts: pa.Array | Sequence[str | None]) -> pa.ExtensionArray:
    """Return JSON texts as a JSON column.

    Args:
        texts: strings; null for the value `null`.
    """
    storage = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return pa.ExtensionArray.from_storage(_JSON, storage)


def json_texts(array: pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """Return the JSON texts of a JSON column as strings; null for the value `null`."""
    return one_array(array).storage


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of an array of any type as Python objects: `json.loads` of JSON texts, else `to_pylist`."""
    if not is_json(array.type):
        return array.to_pylist()
    return [None if text is None else json.loads(text) for text in json_texts(array).to_pylist()]


def read_json(
    data: bytes | pa.Buffer, multi_line: bool = False, schema: pa.Schema | None = None, closed: bool = False
) -> pa.Table:
    """Read newline-delimited JSON objects with pyarrow in one pass.

    Args:
        data: UTF-8.
        multi_line: whether objects can contain line breaks.
        schema: the types of known columns; default: pyarrow infers all types.
        closed: whether columns and fields that the schema lacks are an error.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: pyarrow cannot read the data.
    """
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    unexpected = "error" if closed else "infer"
    parse = arrow_json.ParseOptions(
        newlines_in_values=multi_line, explicit_schema=schema, unexpected_field_behavior=unexpected
    )
    return arrow_json.read_json(pa.BufferReader(data), read, parse)


def without_dates(kind: pa.DataType, null_items: pa.DataType | None = None) -> pa.DataType:
    """Return a type inferred by pyarrow with strings in place of timestamps: strings that look like dates.

    Args:
        null_items: the item type for lists in which all items are null; default: null.
    """
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        if null_items is not None and pa.types.is_null(kind.value_type):
            return pa.list_(null_items)
        return pa.list_(without_dates(kind.value_type, null_items))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_dates(field.type, null_items)) for field in kind])
    return kind


def without_nulls(value: Any) -> Any:
    """Return a value without its null fields: Arrow gives every struct all fields that any row has."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def rows_table(rows: Sequence[Mapping[Any, Any]]) -> pa.Table:
    """Return Python rows as a table with every column that any row has.

    Columns whose values have no one Arrow type that holds them exactly, such as lists and objects, become JSON columns.

    Raises:
        ArrowInvalid: the values of a column have neither a common type nor a JSON form.
    """
    names = dict.fromkeys(chain.from_iterable(rows))
    return pa.table({str(name): _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    # an int64 cannot hold them, and a float would change them
    is_wide = kinds == {int} and not all(-(2**63) <= value < 2**63 for value in values if value is not None)
    if len(kinds) > 1 or kinds & {dict, list, tuple} or is_wide:
        try:
            texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))
        except TypeError:  # a value that JSON does not have, such as bytes or a NumPy array
            pass
    return pa.array(values)


def to_json_text(value: Any) -> str:
    """Return a value as JSON text without ASCII escapes; values without a JSON form become their `str`."""
    return json.dumps(value, ensure_ascii=False, default=str)


def strings_in(value: Any) -> Iterator[str]:
    """Yield all strings in nested lists and objects, field names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from (name, *strings_in(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_in(inner)
