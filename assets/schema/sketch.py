"""Sketches: deterministic descriptions of the columns of a chunk, with the scripts of its texts and repeated
prompts.

A path leads from a column to its nested values: `a.b` is a field of a struct, `a[]` the items of a list. A sketch has
counts, histograms and maxima, which add up when chunks are merged.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tokenloom.assets.schema.column_statistics import (
    EXAMPLES,
    TextSample,
    examples,
    few_values,
    length_buckets,
    smallest_hashes,
    text_traits,
)
from tokenloom.assets.schema.doubts import PROMPTS
from tokenloom.assets.schema.profiles import SAID, likeness
from tokenloom.assets.stage.contract import column
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.json_text import is_json, json_column, json_texts
from tokenloom.resources.tables.json_values import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    LIST,
    NULL,
    OBJECT,
    TEXT,
    arrow_values,
    items_of,
    kinds_of,
    members_of,
    typed,
)
from tokenloom.resources.tables.nested_paths import Path, evaluate, is_list, plain, without_nan
from tokenloom.resources.tables.ragged import Ints, flags_of, one_array, text_parts
from tokenloom.resources.tables.stored_texts import is_binary, mostly_text

_BLOCKS: dict[str, tuple[tuple[int, int], ...]] = {
    "Latin": ((0x41, 0x2B8), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xAB30, 0xAB64), (0xFF21, 0xFF5A)),
    "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "Cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "Armenian": ((0x530, 0x58F),),
    "Hebrew": ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFE)),
    "Syriac": ((0x700, 0x74F), (0x860, 0x86F)),
    "Thaana": ((0x780, 0x7BF),),
    "Devanagari": ((0x900, 0x97F), (0xA8E0, 0xA8FF)),
    "Bengali": ((0x980, 0x9FF),),
    "Gurmukhi": ((0xA00, 0xA7F),),
    "Gujarati": ((0xA80, 0xAFF),),
    "Oriya": ((0xB00, 0xB7F),),
    "Tamil": ((0xB80, 0xBFF),),
    "Telugu": ((0xC00, 0xC7F),),
    "Kannada": ((0xC80, 0xCFF),),
    "Malayalam": ((0xD00, 0xD7F),),
    "Sinhala": ((0xD80, 0xDFF),),
    "Thai": ((0xE00, 0xE7F),),
    "Lao": ((0xE80, 0xEFF),),
    "Tibetan": ((0xF00, 0xFFF),),
    "Myanmar": ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),
    "Georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF), (0x2D00, 0x2D2F)),
    "Hangul": ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC)),
    "Ethiopic": ((0x1200, 0x139F), (0x2D80, 0x2DDF), (0xAB00, 0xAB2F)),
    "Cherokee": ((0x13A0, 0x13FF), (0xAB70, 0xABBF)),
    "Khmer": ((0x1780, 0x17FF),),
    "Mongolian": ((0x1800, 0x18AF),),
    "Hiragana": ((0x3041, 0x309F), (0x1B001, 0x1B11F)),
    "Katakana": ((0x30A1, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "Bopomofo": ((0x3105, 0x312F), (0x31A0, 0x31BF)),
    "Han": ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
}  # fmt: skip

SCRIPTS = (*_BLOCKS, "other")
"""The scripts that are counted; `other` counts the letters of all other scripts."""

UNICODE = unicodedata.unidata_version
"""The version of Unicode, which defines what a letter is."""

_LATIN, _NO_LETTER = SCRIPTS.index("Latin"), len(SCRIPTS)
_SLICE_BYTES = 1 << 20


def count_letters(data: npt.NDArray[np.uint8]) -> Ints:
    """Count the letters of each script in valid UTF-8; about 2 GB/s for ASCII.

    Args:
        data: uint8 [bytes].

    Returns:
        int64 [len(SCRIPTS)].
    """
    counts = np.zeros(len(SCRIPTS) + 1, np.int64)
    for start in range(0, len(data), _SLICE_BYTES):
        # ASCII letters are counted by arithmetic on bytes; only what is beyond ASCII is decoded.
        part = data[start : start + _SLICE_BYTES]
        counts[_LATIN] += np.count_nonzero(((part | 0x20) - np.uint8(97)) < 26)
    beyond = data[data >= 128]  # without ASCII, valid UTF-8 stays valid
    if len(beyond):
        points = np.frombuffer(beyond.tobytes().decode("utf-8").encode("utf-32-le"), np.uint32)
        table = _script_of()
        counts += np.bincount(table[np.minimum(points, len(table) - 1)], minlength=len(counts))
    return counts[:-1]


@cache
def _script_of() -> npt.NDArray[np.uint8]:
    """Return the index of each code point's script, `_NO_LETTER` if it is not a letter; the last is for all others."""
    end = max(last for blocks in _BLOCKS.values() for _, last in blocks) + 2
    scripts = np.full(end, SCRIPTS.index("other"), np.uint8)
    for index, blocks in enumerate(_BLOCKS.values()):
        for first, last in blocks:
            scripts[first : last + 1] = index
    is_letter = np.fromiter(map(str.isalpha, map(chr, range(end))), bool, end)
    scripts[~is_letter] = _NO_LETTER
    return scripts


FIRST_ROWS = 16
"""Rows that are compared before all others, because few columns repeat another one."""


def repeated_conversations(table: pa.Table) -> dict[str, list[str]]:
    """Return, for each column of prompts as text, the columns whose conversations start with them in every row.

    A system message can come before. A prompt that is null or empty repeats any conversation.
    """
    alike = [name for name in table.column_names if likeness(name, PROMPTS).score >= 0.87]
    named = {name: plain(one_array(table[name])) for name in alike if table.column_names.count(name) == 1}
    texts = {name: column for name, column in named.items() if pa.types.is_string(column.type)}
    talks = [name for name in table.column_names if is_json(table[name].type) or is_list(table[name].type)]
    first = table.slice(0, FIRST_ROWS)
    return {
        name: [talk for talk in talks if _repeats(text[:FIRST_ROWS], first, talk) and _repeats(text, table, talk)]
        for name, text in texts.items()
    }


def _repeats(texts: pa.Array, table: pa.Table, talk: str) -> bool:
    same = flags_of(pc.equal(texts.fill_null(""), ""))
    for step, field in ((step, field) for step in (0, 1) for field in SAID[:2]):
        # Fields of all rows are slow to read: no more than needed to explain every row.
        if not same.all() and pa.types.is_string((said := plain(evaluate(table, Path(talk, (step, field))))).type):
            same |= flags_of(pc.equal(texts, said))
    return bool(same.all())


MAX_DEPTH, MAX_PATHS = 8, 256
"""Steps of a path, and paths within a JSON column. Deeper and further values are not described."""
COUNTABLE = ("text", "number", "boolean")
MEASURED = ("text", "list")
UNKNOWN_TYPE = "json"
"""The type of JSON values that are not described any further, or that are of several kinds."""
JSON_TYPES = {"list", "struct", UNKNOWN_TYPE}
"""Types of lists and objects in JSON columns."""
_KINDS_OF_JSON = {
    "text": (TEXT,),
    "number": (INTEGER, FLOAT),
    "boolean": (BOOLEAN,),
    "list": (LIST,),
    "struct": (OBJECT,),
}

_NUMBER, _NUMBERS, _TEXT, _TEXTS = pa.int64(), pa.list_(pa.int64()), pa.string(), pa.list_(pa.string())

COLUMNS = {
    "steps": column(
        "The path: a column, then fields; null for the items of a list. Empty for the chunk itself.", _TEXTS
    ),
    "type": column("Arrow type of the values, as text; list, struct or json for lists and objects of JSON.", _TEXT),
    "kind": column("Kind of the values: text, number, boolean, list, struct, null, binary or other.", _TEXT),
    "rows": column("Number of places: rows for a column, items for a list, non-null structs for a field.", _NUMBER),
    "nulls": column("Number of null places.", _NUMBER),
    "empty": column("Number of empty texts or lists.", _NUMBER),
    "longest": column("Maximum length, in characters or items.", _NUMBER),
    "lengths": column("Histogram of lengths.", _NUMBERS),
    "letters": column("Number of letters in each script.", _NUMBERS),
    "hashes": column(
        "The smallest 64-bit hashes of the values, which estimate the number of distinct values.", pa.binary()
    ),
    "few": column("Whether `values` lists all values.", pa.bool_()),
    "values": column("All values, if they are few and short.", _TEXTS),
    "counts": column("How often each of `values` occurs.", _NUMBERS),
    "sampled": column("Number of texts sampled for traits.", _NUMBER),
    "traits": column("Number of sampled texts that have each trait.", _NUMBERS),
    "examples": column("The first values, as text.", _TEXTS),
    "repeats": column("For prompts as text: columns whose conversations start with them in every row.", _TEXTS),
}
"""The columns of a sketch, one row per path and, in JSON columns, kind of value. `json` is the type of lists and
objects of JSON if the paths inside are not described. Kinds are as in `kind_of`, histograms as in `length_buckets`."""

SKETCH = pa.schema([(name, each.types[0]) for name, each in COLUMNS.items()])

Steps = tuple[str | None, ...]


def sketch(table: pa.Table) -> pa.Table:
    """Describe every path of a raw chunk.

    Returns:
        A table with the schema `SKETCH`: the chunk itself, then all paths, each after the path that contains it.
    """
    described = [{**_row((), str(pa.struct([])), "struct"), "rows": table.num_rows}]
    repeats = repeated_conversations(table)
    first: dict[str, int] = {}
    for index, name in enumerate(table.column_names):
        first.setdefault(name, index)
    for name, index in first.items():
        if name != ROW:
            column, *inside = _describe((name,), one_array(table.column(index)))
            described += [{**column, "repeats": repeats.get(name, [])}, *inside]
    sampled = [row for row in described if "sample" in row]
    for row, traits in zip(sampled, text_traits([row["sample"] for row in sampled]), strict=True):
        row["sampled"], row["traits"] = len(row.pop("sample").heads), traits
    return pa.Table.from_pylist(described, SKETCH)


def _row(steps: Steps, declared: str, kind: str) -> dict[str, Any]:
    counts = dict.fromkeys(("rows", "nulls", "empty", "longest", "sampled"), 0)
    lists = {name: [] for name in ("lengths", "letters", "values", "counts", "traits", "examples", "repeats")}
    return {"steps": list(steps), "type": declared, "kind": kind, **counts, **lists, "hashes": b"", "few": True}


def _describe(steps: Steps, array: pa.Array) -> Iterator[dict[str, Any]]:
    """Yield the sketch of a path, then of all paths inside it."""
    if is_json(array.type):
        yield from _describe_json(steps, array)
        return
    declared, array = str(array.type), without_nan(_decoded(array))
    if is_binary(array.type) and (texts := mostly_text(array)) is not None:
        declared, array = "string", texts
    kind = kind_of(array.type)
    yield _measured(steps, declared, kind, array, _lengths(array) if kind in MEASURED else None)
    if len(steps) < MAX_DEPTH:
        for step, inner in _within(array.drop_null() if array.null_count else array, kind):
            yield from _describe((*steps, step), inner)


def _measured(steps: Steps, declared: str, kind: str, array: pa.Array, lengths: Ints | None) -> dict[str, Any]:
    """Return the sketch of one path.

    Args:
        declared: the type as text.
        array: the values; for lists and objects of JSON their texts.
        lengths: int64, the lengths of the values that are not null, if the kind is measured.
    """
    row = _row(steps, declared, kind)
    row["rows"], row["nulls"] = len(array), len(array) if kind == "null" else array.null_count
    array = array.drop_null() if row["nulls"] else array
    row |= _counted(row["rows"], lengths)
    filled = np.arange(min(len(array), EXAMPLES)) if lengths is None else np.flatnonzero(lengths)
    row["examples"] = examples(array, filled)
    if kind == "text":
        row["letters"] = count_letters(text_parts(array)[1])
        row["sample"] = TextSample.of(array.filter(pc.not_equal(array, "")) if row["empty"] else array)
    # Lists and structs inside others are not hashed: what is in them is, and hashing them again is slow.
    if kind != "null" and (kind not in ("list", "struct") or len(steps) == 1):
        hashes = smallest_hashes(array)
        row["hashes"] = hashes.tobytes()
        values = few_values(array, len(hashes)) if kind in COUNTABLE else None
        row["few"] = values is not None or not len(array)
        row["values"], row["counts"] = list(values or {}), list((values or {}).values())
    return row


def _counted(rows: int, lengths: Ints | None) -> dict[str, Any]:
    """Return the number of values, and the empty ones, the longest and the histogram of lengths where measured."""
    if lengths is None:
        return {"rows": rows}
    empty, longest = len(lengths) - int(np.count_nonzero(lengths)), int(lengths.max(initial=0))
    return {"rows": rows, "empty": empty, "longest": longest, "lengths": length_buckets(lengths)}


def _describe_json(column: Steps, array: pa.Array) -> Iterator[dict[str, Any]]:
    """Yield the sketches of a JSON column and of the paths inside it, breadth first, up to `MAX_PATHS` of them.

    A path with values of several kinds has one row for each, as if they were in different chunks. Lists and objects
    inside the column have no examples.
    """
    texts = json_texts(array)
    values = arrow_values(texts)
    # Breadth first, so that a wide path deep inside does not use up the paths of its siblings.
    waiting, known = deque([(column, array if values is None else values, 0)]), 1
    while waiting:
        steps, array, missing = waiting.popleft()
        parts, nulls = _values_by_kind(array)
        rows, inside = [], []
        for kind, part in parts.items():
            room = MAX_PATHS - known if len(steps) < MAX_DEPTH else 0
            row, inner = _json_part(steps, kind, part, texts, room)
            if inner is None:
                row["type"], inner = UNKNOWN_TYPE, []
            known += len(inner)
            rows.append(row)
            inside += inner
        rows = rows or [_row(steps, "null", "null")]
        for name in ("rows", "nulls"):
            rows[0][name] += missing + nulls
        yield from rows
        waiting.extend(inside)


def _values_by_kind(array: pa.Array) -> tuple[dict[str, pa.Array], int]:
    """Return the values of each kind, without nulls, and the number of nulls."""
    if not is_json(array.type):
        values = array.drop_null() if array.null_count else array
        return {kind_of(array.type): values} if len(values) else {}, len(array) - len(values)
    array = without_nan(array)
    kinds = kinds_of(json_texts(array))
    members = {kind: np.isin(kinds, codes) for kind, codes in _KINDS_OF_JSON.items()}
    parts = {kind: array.filter(pa.array(flags)) for kind, flags in members.items() if flags.any()}
    return parts, int((kinds == NULL).sum())


def _json_part(
    steps: Steps, kind: str, values: pa.Array, column: pa.Array, room: int
) -> tuple[dict[str, Any], list[tuple[Steps, pa.Array, int]] | None]:
    """Return the sketch of JSON values of one kind, and the paths inside them, or None if these are more than `room`.

    Each path inside has the values that it leads to, and the number of objects that do not have it.

    Args:
        values: JSON texts, or the Arrow values of JSON texts that they hold exactly.
        column: the texts of the whole column.
    """
    if kind == "list":
        lengths, inside = _items(steps, values)
        inside = inside if len(inside) <= room else None
    elif kind == "struct":
        lengths, inside = None, _members(steps, values, room)
    else:
        array = typed(json_texts(values)) if is_json(values.type) else values
        if is_json(array.type):  # numbers that no type holds exactly
            return _measured(steps, "double", kind, json_texts(array), None), []
        return _measured(steps, str(array.type), kind, array, _lengths(array) if kind == "text" else None), []
    if len(steps) > 1:
        return _row(steps, kind, kind) | _counted(len(values), lengths), inside
    written = json_texts(values) if is_json(values.type) else column.drop_null()
    return _measured(steps, kind, kind, written, lengths), inside


def _items(steps: Steps, lists: pa.Array) -> tuple[Ints, list[tuple[Steps, pa.Array, int]]]:
    if is_json(lists.type):
        lengths, texts = items_of(json_texts(lists))
        items = json_column(texts)
    else:
        lengths, items = _lengths(lists), lists.flatten()
    return lengths, [((*steps, None), items, 0)] if len(items) else []


def _members(steps: Steps, objects: pa.Array, room: int) -> list[tuple[Steps, pa.Array, int]] | None:
    if not is_json(objects.type):
        if objects.type.num_fields > room:
            return None
        return [((*steps, name), values, 0) for name, values in _within(objects, "struct")]
    members = members_of(json_texts(objects))
    if len(members.names) > room:
        return None
    return [
        ((*steps, name), json_column(members.values.take(pa.array(places))), len(objects) - len(places))
        for name, places in members.places().items()
    ]


def _decoded(array: pa.Array) -> pa.Array:
    """Return the values without extension types, dictionaries, run-end encoding, or views; maps as lists of pairs."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif pa.types.is_string_view(array.type):
            array = array.cast(pa.large_string())
        elif pa.types.is_binary_view(array.type):
            array = array.cast(pa.large_binary())
        elif pa.types.is_map(array.type):
            array = plain(array)
        else:
            return array


def kind_of(arrow: pa.DataType) -> str:
    """Return the kind of a type: text, number, boolean, list, struct, null, binary, or other."""
    return next((kind for kind, tests in _TESTS.items() if any(test(arrow) for test in tests)), "other")


_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
_TESTS: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (types.is_string, types.is_large_string),
    "number": (types.is_integer, types.is_floating, types.is_decimal),
    "boolean": (types.is_boolean,),
    "list": _LISTS,
    "struct": (types.is_struct,),
    "null": (types.is_null,),
    "binary": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
}


def _lengths(array: pa.Array) -> Ints:
    """Return int64: characters of text, or items of lists, of the values that are not null."""
    array = array.drop_null() if array.null_count else array
    count = pc.utf8_length if kind_of(array.type) == "text" else pc.list_value_length
    return np.asarray(count(array).to_numpy(zero_copy_only=False), np.int64)


def _within(array: pa.Array, kind: str) -> Iterator[tuple[str | None, pa.Array]]:
    if kind == "list":
        yield None, array.flatten()
    elif kind == "struct":
        first: dict[str, pa.Array] = {}
        for field, inner in zip(array.type, array.flatten(), strict=True):
            first.setdefault(field.name, inner)
        yield from first.items()
