"""JSON columns: each value's own JSON text as in the source, as the Arrow extension type `arrow.json`.

A column of a JSON source is a JSON column if its values are not all scalars of one kind that an Arrow type holds
exactly. Numbers, the order of keys, nulls and empty values stay as they are written. The value `null` is an Arrow null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.json_text import (
    MAX_DEPTH,
    is_json,
    json_column,
    json_texts,
    read_json,
    which_deeper,
    without_dates,
)
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    list_array,
    offsets_of,
    one_array,
    row_of,
    text_array,
    text_parts,
)

Kinds = npt.NDArray[np.uint8]
NULL, TEXT, BOOLEAN, INTEGER, FLOAT, LIST, OBJECT = range(7)
"""Kinds of JSON values, as `kinds_of` returns them."""

MAX_DIGITS = 4300
"""Python reads no integer with more digits."""

MAX_CELLS = 1 << 26
"""Objects times paths of values that are read with Arrow, which needs some bytes for each path that an object lacks."""

MAX_NAMES = 1 << 16
"""Names of a value, as often as they occur, that pyarrow reads."""

_PART = 1 << 15
"""Bytes of JSON whose objects times names are always few."""

_OBJECT, _LIST = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])
_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"
_NEWLINE = ord("\n")
_KIND = np.full(256, INTEGER, np.uint8)
for _kind, _starts in ((TEXT, b'"'), (BOOLEAN, b"tf"), (NULL, b"n"), (LIST, b"["), (OBJECT, b"{")):
    _KIND[list(_starts)] = _kind
_HAS_POINT = "[.eENI]"
_LONG = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))


def as_json(array: pa.Array | pa.ChunkedArray) -> pa.ExtensionArray:
    """Return values of any type that JSON has as a JSON column."""
    if is_json(array.type):
        return one_array(array)
    return json_column([None if each is None else json.dumps(each, ensure_ascii=False) for each in array.to_pylist()])


def kinds_of(texts: pa.Array) -> Kinds:
    """Return the kind of each JSON text, uint8 [rows]; NULL for an Arrow null.

    NaN and Infinity, which Python's json reads too, are floats.
    """
    texts = texts.fill_null("null") if texts.null_count else texts
    offsets, data = text_parts(texts)
    kinds = _KIND[data[offsets[:-1]]]
    numbers = np.flatnonzero(kinds == INTEGER)
    if len(numbers):
        written = texts if len(numbers) == len(texts) else texts.take(pa.array(numbers))
        has_point = pc.match_substring_regex(written, _HAS_POINT).to_numpy(zero_copy_only=False)
        kinds[numbers[np.asarray(has_point, bool)]] = FLOAT
    return kinds


def typed(texts: pa.Array) -> pa.Array:
    """Return the values of JSON texts as a typed array if that holds them exactly, else as a JSON column.

    Typed arrays are strings, booleans, integers of 64 bits, floats that are all written as floats, and nulls.
    """
    kinds = set(np.unique(kinds_of(texts)).tolist()) - {NULL}
    if not kinds:
        return pa.nulls(len(texts))
    if len(kinds) == 1:
        kind = kinds.pop()
        if kind == TEXT:
            if b"\\" in text_parts(texts.fill_null("") if texts.null_count else texts)[1].tobytes():
                return read_values(texts, pa.string())
            return pc.binary_slice(texts.cast(pa.binary()), 1, -1).cast(pa.string())  # without their quotes
        if kind == BOOLEAN:
            return pc.equal(texts, "true")
        if kind in (INTEGER, FLOAT):
            try:
                return texts.cast(pa.int64() if kind == INTEGER else pa.float64())
            except pa.ArrowInvalid:
                pass
    return json_column(texts)


def read_values(texts: pa.Array, kind: pa.DataType | None = None, closed: bool = False) -> pa.Array:
    """Read JSON texts with pyarrow in one pass. The result must be validated: lists whose type is inferred lose nulls.

    Args:
        texts: strings; null for the value `null`.
        kind: the type of the values; default: pyarrow infers it.
        closed: whether fields that `kind` lacks are an error.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: pyarrow cannot read the texts.
    """
    lines = pc.binary_join_element_wise('{"v":', texts.fill_null("null") if texts.null_count else texts, "}\n", "")
    data = text_parts(lines)[1]
    schema = None if kind is None else pa.schema([("v", kind)])
    table = read_json(pa.py_buffer(data), int(np.count_nonzero(data == _NEWLINE)) != len(texts), schema, closed)
    # a crafted text can close its object and open another one
    if len(table) != len(texts):
        raise pa.ArrowInvalid(f"{len(texts):,} texts hold {len(table):,} values")
    return one_array(table["v"])


def arrow_values(texts: pa.Array) -> pa.Array | None:
    """Return JSON values as Arrow lists, structs and scalars if these hold all of them exactly, else None.

    There are none for a path with values of several kinds, or with numbers that are not integers of 64 bits, or if
    they would have more than `MAX_CELLS` cells. A field that an object lacks is null; a path with only nulls has the
    type null or string.
    """
    if too_deep(texts, MAX_DEPTH).any() or _has_many_names(texts):
        return None
    if (alike := _values_alike(texts)) is not None:
        return alike
    try:
        if _has_too_many_cells(texts):
            return None
        values = read_values(texts)
        kind = without_dates(values.type, null_items=pa.string())
        # strings that look like dates were read as timestamps: read again, as strings
        if kind != values.type or not _is_valid(values):
            values = read_values(texts, kind)
            values.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return values if _is_exact(kind) else None


def _has_many_names(texts: pa.Array) -> bool:
    """Return whether a text can have so many names that pyarrow takes seconds to find their types."""
    offsets, data = text_parts(texts.fill_null("") if texts.null_count else texts)
    large = np.flatnonzero(np.diff(offsets) > 4 * MAX_NAMES)
    return any(np.count_nonzero(data[offsets[row] : offsets[row + 1]] == ord(":")) > MAX_NAMES for row in large)


def _values_alike(texts: pa.Array) -> pa.Array | None:
    """Return what `arrow_values` does if all values have the paths and types of the first ones, else None."""
    offsets, _ = text_parts(texts.fill_null("") if texts.null_count else texts)
    # most columns are alike: types from the first part save reading all of it twice
    first = int(np.searchsorted(offsets, offsets[0] + _PART))
    if first >= len(texts) or offsets[first] - offsets[0] > 2 * _PART:
        return None
    try:
        kind = without_dates(read_values(texts.slice(0, first)).type, null_items=pa.string())
        if not _is_exact(kind):
            return None
        values = read_values(texts, kind, closed=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return values if _is_valid(values) else None


def _has_too_many_cells(texts: pa.Array) -> bool:
    """Return whether JSON values could have more than `MAX_CELLS` cells: a cell per object and path inside objects.
    Counts the paths in the types of parts of the texts, each of which has few cells."""
    offsets, data = text_parts(texts.fill_null("") if texts.null_count else texts)
    objects, names = (np.count_nonzero(data == ord(char)) for char in "{:")
    if objects * names <= MAX_CELLS:
        return False
    ends = np.searchsorted(offsets, np.arange(_PART, offsets[-1] + _PART, _PART), side="right")
    joined: pa.DataType = pa.null()  # of the parts so far: it has the paths of all of them
    for start, end in pairwise(np.unique([0, *np.minimum(ends, len(texts))]).tolist()):
        part = data[offsets[start] : offsets[end]]
        if (
            len(part) > 2 * _PART
            and np.count_nonzero(part == ord("{")) * np.count_nonzero(part == ord(":")) > MAX_CELLS
        ):
            return True  # one text, which cannot be split
        if (kind := read_values(texts.slice(start, end - start)).type) != joined:
            schemas = [pa.schema([("v", joined)]), pa.schema([("v", kind)])]
            joined = pa.unify_schemas(schemas, promote_options="permissive")[0].type
            if objects * _paths(joined) > MAX_CELLS:
                return True
    return False


def _paths(kind: pa.DataType) -> int:
    return kind.num_fields + sum(_paths(kind.field(index).type) for index in range(kind.num_fields))


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether pyarrow's JSON reader converts values to this type without loss."""
    if pa.types.is_list(kind) or pa.types.is_struct(kind):
        return all(_is_exact(kind.field(index).type) for index in range(kind.num_fields))
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_int64, pa.types.is_boolean, pa.types.is_null))


@dataclass(frozen=True)
class Members:
    """The members of JSON objects, one after the other.

    Args:
        names: the distinct names, in the order of their first occurrence.
        name: int64 [members], indices into `names`.
        row: int64 [members], ascending: the object of each member.
        values: string [members], the JSON text of each value; null for `null`.
        rows: the number of objects.
    """

    names: list[str]
    name: Ints
    row: Ints
    values: pa.Array
    rows: int

    def columns(self) -> dict[str, pa.Array]:
        """Return the JSON texts of each name, one per object; null where an object lacks it."""
        return {name: self._texts(where) for name, where in self.places().items()}

    def column(self, name: str) -> pa.Array:
        """Return the JSON texts of one name, one per object."""
        index = self.names.index(name) if name in self.names else -1
        return self._texts(np.flatnonzero(self.name == index))

    def places(self) -> dict[str, Ints]:
        """Return int64 indices of the members of each name."""
        order = np.argsort(self.name, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(self.name, minlength=len(self.names))))
        return dict(zip(self.names, parts, strict=False))

    def _texts(self, places: Ints) -> pa.Array:
        if len(places) == self.rows:
            return self.values.take(pa.array(places))
        index = np.full(self.rows, -1, np.int64)
        # the last of several members with one name counts, as for `json.loads`
        index[self.row[places]] = places
        return self.values.take(pa.array(index, mask=index < 0))


def members_of(texts: pa.Array | bytes) -> Members:
    """Return the members of JSON objects. The last of several members with one name counts.

    Args:
        texts: strings, all of them objects; or UTF-8 of objects, with white space or nothing between them.

    Raises:
        ValueError: bytes are not valid JSON objects.
    """
    objects = _decoded(texts, _OBJECT, _object)
    names = pa.array(chain.from_iterable(objects), pa.string()).dictionary_encode()
    counts = np.fromiter(map(len, objects), np.int64, len(objects))
    values = _texts_of(list(chain.from_iterable(map(dict.values, objects))))
    indices = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Members(names.dictionary.to_pylist(), indices, row_of(counts), values, len(objects))


def member_texts(texts: pa.Array | bytes, name: str) -> pa.Array:
    """Return the JSON text of one member of each object, null where an object lacks it or has `null`.

    Args:
        texts: as for `members_of`.

    Raises:
        ValueError: bytes are not valid JSON objects.
    """
    try:
        objects = _field_decoder(name).decode_lines(texts if isinstance(texts, bytes) else text_parts(texts)[1].data)
    except (msgspec.DecodeError, ValueError):  # a value such as NaN, or a name that msgspec does not take
        return members_of(texts).column(name)
    return _texts_of([member.value for member in objects])


@lru_cache(maxsize=64)
def _field_decoder(name: str) -> Any:
    """Return a decoder of objects that skips all members but one, which is b"" where it is missing."""
    fields = [("value", msgspec.Raw, b"")]
    return msgspec.json.Decoder(msgspec.defstruct("Field", fields, rename={"value": name}, gc=False))


def items_of(texts: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the number of items of each JSON list, int64 [rows], and the flat JSON texts of all items.

    Args:
        texts: strings, all of them lists. An item that is `null` is null.
    """
    lists = _decoded(texts, _LIST, _list)
    return np.fromiter(map(len, lists), np.int64, len(lists)), _texts_of(list(chain.from_iterable(lists)))


def as_lists(array: pa.Array) -> pa.Array:
    """Return the lists of a JSON column as a list array, with items as `typed` returns them; other values are null."""
    texts = json_texts(array)
    is_list = kinds_of(texts) == LIST
    lengths = np.zeros(len(texts), np.int64)
    lengths[is_list], items = items_of(texts.filter(pa.array(is_list)))
    lists = list_array(offsets_of(lengths), typed(items))
    return lists if is_list.all() else lists.take(pa.array(np.arange(len(lists)), mask=~is_list))


def field_texts(texts: pa.Array, name: str) -> pa.Array:
    """Return the JSON text of one member of each object. For a list of objects, it is the list of their members.

    Null for other values, and for objects without the member.
    """

    def of_lists(lists: pa.Array) -> pa.Array:
        lengths, items = items_of(lists)
        inner = field_texts(items, name).fill_null("null")
        return pc.binary_join_element_wise("[", pc.binary_join(list_array(offsets_of(lengths), inner), ","), "]", "")

    return by_kind(texts, {OBJECT: lambda objects: member_texts(objects, name), LIST: of_lists})


def item_texts(texts: pa.Array, index: int) -> pa.Array:
    """Return the JSON text of one item of each list; negative indices count from its end. Null for other values."""

    def item(lists: pa.Array) -> pa.Array:
        lengths, items = items_of(lists)
        within = np.full(len(lengths), index) + (lengths if index < 0 else 0)
        outside = (within < 0) | (within >= lengths)
        return items.take(pa.array(np.where(outside, 0, offsets_of(lengths)[:-1] + within), mask=outside))

    return by_kind(texts, {LIST: item})


def by_kind(texts: pa.Array, functions: dict[int, Callable[[pa.Array], pa.Array]]) -> pa.Array:
    """Apply a function to the texts of each kind; the texts of other kinds become null."""
    kinds = kinds_of(texts)
    index = np.full(len(texts), -1, np.int64)
    parts, done = [], 0
    for kind, function in functions.items():
        rows = np.flatnonzero(kinds == kind)
        if len(rows) == len(texts):
            return function(texts)
        if len(rows):
            parts.append(function(texts.take(pa.array(rows))))
            index[rows] = done + np.arange(len(rows))
            done += len(rows)
    if not parts:
        return pa.nulls(len(texts), pa.string())
    return pa.concat_arrays(parts).take(pa.array(index, mask=index < 0))


def _texts_of(values: Sequence[Any]) -> pa.Array:
    """Return slices of JSON as strings; null for `null` and for nothing."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    texts = text_array(offsets_of(lengths), np.frombuffer(b"".join(values), np.uint8))
    is_null = lengths == 0
    if len(values):
        # only slices of four bytes can be `null`
        four = np.flatnonzero(lengths == 4)
        is_null[four] = np.asarray(pc.equal(texts.take(pa.array(four)), "null").to_numpy(zero_copy_only=False), bool)
    return pc.if_else(pa.array(is_null), pa.scalar(None, pa.string()), texts) if is_null.any() else texts


def _decoded(texts: pa.Array | bytes, decoder: Any, by_python: Callable[[str], Any]) -> list[Any]:
    """Cut texts into slices of their JSON with msgspec, or with Python if msgspec refuses one, for example for NaN."""
    if isinstance(texts, bytes):
        return decoder.decode_lines(texts)
    try:
        return decoder.decode_lines(text_parts(texts)[1].data)
    except msgspec.DecodeError:
        return [_slices(text, decoder, by_python) for text in texts.to_pylist()]


def object_slices(text: str) -> dict[str, bytes]:
    """Return the JSON of each member of an object that `json.loads` reads."""
    return {name: bytes(value) for name, value in _slices(text, _OBJECT, _object).items()}


def _slices(text: str, decoder: Any, by_python: Callable[[str], Any]) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        return by_python(text)


def _object(text: str) -> dict[str, bytes]:
    members, at = {}, _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        members[name] = text[start:at].encode()
        at = _next(text, at)
    return members


def _list(text: str) -> list[bytes]:
    items, at = [], _skip(text, _skip(text, 0) + 1)
    while text[at] != "]":
        start = at
        _, at = _DECODER.raw_decode(text, start)
        items.append(text[start:at].encode())
        at = _next(text, at)
    return items


def _next(text: str, at: int) -> int:
    """Return the position of the next member or item, or of the closing bracket."""
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def too_deep(texts: pa.Array, levels: int) -> Flags:
    """Return bool [rows]: which JSON texts have more than `levels` levels of lists and objects."""
    offsets, data = text_parts(texts.fill_null("") if texts.null_count else texts)
    return which_deeper(data, offsets, levels)


def has_long_integer(texts: pa.Array) -> bool:
    """Return whether JSON texts could hold an integer with more than `MAX_DIGITS` digits."""
    data = text_parts(texts.fill_null("") if texts.null_count else texts)[1]
    # a run of so many digits has ten samples in a row: nearly all texts need no search
    sampled = data[:: MAX_DIGITS // 10]
    others = np.flatnonzero((sampled < ord("0")) | (sampled > ord("9")))
    longest = np.diff(np.concatenate([[-1], others, [len(sampled)]])).max() - 1
    return longest >= 10 and _LONG.search(data.tobytes()) is not None
