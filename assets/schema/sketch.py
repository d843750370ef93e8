"""Sketches: a description of one chunk with one row per path, and how the sketches of all chunks merge.

A path leads from a column to its nested values: `a.b` is a field of a struct, `a[]` the items of a list. A sketch has
counts, histograms and maxima, which add up when chunks are merged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.parsed_chunk import MAX_COLUMNS
from tokenloom.assets.schema.column_statistics import (
    EXAMPLES,
    FEW_VALUES,
    KEPT_HASHES,
    TRAITS,
    estimate_distinct,
    examples,
    few_values,
    length_buckets,
    percentile,
    smallest_hashes,
    text_traits,
)
from tokenloom.assets.schema.repeated_prompts import repeated_conversations
from tokenloom.assets.schema.unicode_scripts import SCRIPTS, count_letters
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import SourceError
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
from tokenloom.resources.tables.ragged import Ints, one_array, text_parts

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

SKETCH = pa.schema(
    [
        ("steps", pa.list_(pa.string())),
        ("type", pa.string()),
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("nulls", pa.int64()),
        ("empty", pa.int64()),
        ("longest", pa.int64()),
        ("lengths", pa.list_(pa.int64())),
        ("letters", pa.list_(pa.int64())),
        ("hashes", pa.binary()),
        ("few", pa.bool_()),
        ("values", pa.list_(pa.string())),
        ("counts", pa.list_(pa.int64())),
        ("sampled", pa.int64()),
        ("traits", pa.list_(pa.int64())),
        ("examples", pa.list_(pa.string())),
        ("repeats", pa.list_(pa.string())),
    ]
)
"""The columns of a sketch, one row per path and, in JSON columns, kind of value.

- steps: the column, then field names, with null for a list's items; empty for the chunk itself.
- type, kind: the Arrow type as text, and its kind as in `kind_of`. Lists and objects of JSON have the types `list` and
  `struct`, or `json` if the paths inside are not described.
- rows, nulls, empty: occurrences of the path, and how many are null or empty.
- longest, lengths: the longest value, and a histogram of lengths as in `length_buckets`.
- letters: the number of letters per script.
- hashes: the smallest hashes of the values, uint64.
- few, values, counts: whether there are few distinct values; if so, all of them and how often each occurs.
- sampled, traits: the number of sampled texts, and for each trait the number of texts that have it.
- examples: the first values.
- repeats: for prompts as text, the columns whose conversations start with them in every row.
"""

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
    return pa.Table.from_pylist(described, SKETCH)


def _row(steps: Steps, declared: str, kind: str) -> dict[str, Any]:
    counts = dict.fromkeys(("rows", "nulls", "empty", "longest", "sampled"), 0)
    lists: dict[str, Any] = {
        name: [] for name in ("lengths", "letters", "values", "counts", "traits", "examples", "repeats")
    }
    return {"steps": list(steps), "type": declared, "kind": kind, **counts, **lists, "hashes": b"", "few": True}


def _describe(steps: Steps, array: pa.Array) -> Iterator[dict[str, Any]]:
    """Yield the sketch of a path, then of all paths inside it."""
    if is_json(array.type):
        yield from _describe_json(steps, array)
        return
    declared, array = str(array.type), _decoded(array)
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
    row["examples"] = examples(
        array, np.arange(min(len(array), EXAMPLES)) if lengths is None else np.flatnonzero(lengths)
    )
    if kind == "text":
        row["letters"] = count_letters(text_parts(array)[1])
        texts = array if not row["empty"] else array.filter(pc.not_equal(array, ""))
        row["sampled"], row["traits"] = text_traits(texts)
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
    waiting, known = deque([(column, array if values is None else values, 0)]), 1
    while waiting:
        steps, array, missing = waiting.popleft()
        parts, nulls = _parts(array)
        rows, inside = [], []
        for kind, part in parts.items():
            row, inner = _json_part(steps, kind, part, texts)
            if inner and (len(steps) >= MAX_DEPTH or known + len(inner) > MAX_PATHS):
                row["type"], inner = UNKNOWN_TYPE, []
            known += len(inner)
            rows.append(row)
            inside += inner
        rows = rows or [_row(steps, "null", "null")]
        for name in ("rows", "nulls"):
            rows[0][name] += missing + nulls
        yield from rows
        waiting.extend(inside)


def _parts(array: pa.Array) -> tuple[dict[str, pa.Array], int]:
    """Return the values of each kind, without nulls, and the number of nulls."""
    if not is_json(array.type):
        values = array.drop_null() if array.null_count else array
        return {kind_of(array.type): values} if len(values) else {}, len(array) - len(values)
    kinds = kinds_of(json_texts(array))
    members = {kind: np.isin(kinds, codes) for kind, codes in _KINDS_OF_JSON.items()}
    parts = {kind: array.filter(pa.array(flags)) for kind, flags in members.items() if flags.any()}
    return parts, int((kinds == NULL).sum())


def _json_part(
    steps: Steps, kind: str, values: pa.Array, column: pa.Array
) -> tuple[dict[str, Any], list[tuple[Steps, pa.Array, int]]]:
    """Return the sketch of JSON values of one kind, and the paths inside them.

    Each path inside has the values that it leads to, and the number of objects that do not have it.

    Args:
        values: JSON texts, or the Arrow values of JSON texts that they hold exactly.
        column: the texts of the whole column.
    """
    if kind == "list":
        lengths, inside = _items(steps, values)
    elif kind == "struct":
        lengths, inside = None, _members(steps, values)
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


def _members(steps: Steps, objects: pa.Array) -> list[tuple[Steps, pa.Array, int]]:
    if not is_json(objects.type):
        return [((*steps, name), values, 0) for name, values in _within(objects, "struct")]
    members = members_of(json_texts(objects))
    return [
        ((*steps, name), json_column(members.values.take(pa.array(places))), len(objects) - len(places))
        for name, places in members.places().items()
    ]


def _decoded(array: pa.Array) -> pa.Array:
    """Return the values without extension types, dictionaries, run-end encoding, or views."""
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
        else:
            return array


def kind_of(arrow: pa.DataType) -> str:
    """Return the kind of a type: text, number, boolean, list, struct, null, binary, or other."""
    kinds = pa.types
    if kinds.is_string(arrow) or kinds.is_large_string(arrow):
        return "text"
    if kinds.is_integer(arrow) or kinds.is_floating(arrow) or kinds.is_decimal(arrow):
        return "number"
    if kinds.is_boolean(arrow):
        return "boolean"
    if any(test(arrow) for test in (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)):
        return "list"
    if kinds.is_list_view(arrow) or kinds.is_large_list_view(arrow):
        return "list"
    if kinds.is_struct(arrow):
        return "struct"
    if kinds.is_null(arrow):
        return "null"
    binary = kinds.is_binary(arrow) or kinds.is_large_binary(arrow) or kinds.is_fixed_size_binary(arrow)
    return "binary" if binary else "other"


def _lengths(array: pa.Array) -> Ints:
    """Return int64: characters of text, or items of lists, of the values that are not null."""
    array = array.drop_null() if array.null_count else array
    count = pc.utf8_length if kind_of(array.type) == "text" else pc.list_value_length
    return np.asarray(count(array).to_numpy(zero_copy_only=False), np.int64)


def _within(array: pa.Array, kind: str) -> Iterator[tuple[str | None, pa.Array]]:
    """Yield the steps into a list or struct, with the values they lead to."""
    if kind == "list":
        yield None, array.flatten()
    elif kind == "struct":
        names = [inner.name for inner in array.type]
        for index, (name, inner) in enumerate(zip(names, array.flatten(), strict=True)):
            if name not in names[:index]:
                yield name, inner


@dataclass
class _Merged:
    """The merged sketches of one path."""

    types: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("rows", "nulls", "empty", "sampled"), 0))
    longest: int = 0
    lengths: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    letters: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    traits: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    hashes: list[bytes] = field(default_factory=list)
    values: Counter[str] | None = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    repeats: set[str] | None = None
    structs: int = 0
    fields: list[str | None] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Add one row of a sketch."""
        for seen, new in ((self.types, row["type"]), (self.kinds, row["kind"])):
            if new not in seen and row["kind"] != "null":
                seen.append(new)
        for name in self.counts:
            self.counts[name] += row[name]
        self.longest = max(self.longest, row["longest"])
        self.lengths, self.letters = _sum(self.lengths, row["lengths"]), _sum(self.letters, row["letters"])
        self.traits = _sum(self.traits, row["traits"])
        self.hashes.append(row["hashes"])
        if self.values is not None:
            counts = Counter(dict(zip(row["values"], row["counts"], strict=True)))
            self.values = self.values + counts if row["few"] else None
            self.values = None if self.values and len(self.values) > FEW_VALUES else self.values
        self.examples = (self.examples + row["examples"])[:EXAMPLES]
        if row["kind"] != "null":
            self.repeats = {*row["repeats"]} & ({*row["repeats"]} if self.repeats is None else self.repeats)
        if row["kind"] == "struct":
            self.structs += row["rows"] - row["nulls"]

    def profile(self, steps: Steps, described: str, occurrences: int | None) -> dict[str, Any]:
        """Return the profile as JSON.

        Args:
            described: the types as text.
            occurrences: how often the path could occur, if known; chunks without the path count as nulls.
        """
        rows, nulls = self.counts["rows"], self.counts["nulls"]
        if occurrences is not None:
            rows, nulls = occurrences, nulls + occurrences - rows
        kind = _one_kind(self.kinds)
        hashes = np.unique(np.frombuffer(b"".join(self.hashes), np.uint64))[:KEPT_HASHES]
        is_counted = len(hashes) or nulls == rows
        letters, sampled = int(self.letters.sum()), self.counts["sampled"]
        scripts = {
            name: round(int(count) / letters, 4) for name, count in zip(SCRIPTS, self.letters, strict=False) if count
        }
        values = dict(sorted(self.values.items())) if self.values and kind in COUNTABLE else None
        measured = [name for name in self.kinds if name in MEASURED]
        repeats = {"repeats": sorted(self.repeats)} if self.repeats else {}
        return {
            "column": steps[0],
            "path": path_text(steps),
            "steps": list(steps),
            "type": described,
            "kind": kind,
            "rows": rows,
            "nulls": nulls,
            "empty": self.counts["empty"],
            "distinct": min(estimate_distinct(hashes), rows - nulls) if is_counted else None,
            "lengths": self._lengths() if measured and self.lengths.any() else None,
            "scripts": {name: part for name, part in sorted(scripts.items(), key=lambda item: -item[1]) if part},
            "values": list(values) if values else None,
            "counts": list(values.values()) if values else None,
            "traits": {
                name: round(int(count) / sampled, 4) for name, count in zip(TRAITS, self.traits, strict=False) if count
            },
            "examples": self.examples,
            **repeats,
        }

    def _lengths(self) -> dict[str, int]:
        percentiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        return {
            **{name: percentile(self.lengths, fraction, self.longest) for name, fraction in percentiles.items()},
            "longest": self.longest,
        }


def _sum(one: Ints, other: Sequence[int]) -> Ints:
    short, long = sorted((one, np.asarray(other, np.int64)), key=len)
    return np.pad(short, (0, len(long) - len(short))) + long


def _one_kind(kinds: Sequence[str]) -> str:
    """Return the kind of a path that has these kinds in different chunks."""
    if len(kinds) <= 1:
        return kinds[0] if kinds else "null"
    return "text" if set(kinds) <= set(COUNTABLE) else "other"


def path_text(steps: Steps) -> str:
    """Return a path as text: `a.b` for a field, `a[]` for the items of a list."""
    return (steps[0] or "") + "".join("[]" if step is None else f".{step}" for step in steps[1:])


def merge(sketches: Sequence[pa.Table]) -> list[dict[str, Any]]:
    """Merge the sketches of all chunks into profiles, one per path.

    Returns:
        The profiles as JSON, depth first, columns and fields in order of their first occurrence. The keys:

        - column; path: its text (for a column its name); steps: the same as a list, with null for a list's items.
        - type: several types are joined by " | "; kind: as in `kind_of`.
        - rows: occurrences of the path, such as the items of a list or structs that are not null.
        - nulls: including those of chunks without the path; empty.
        - distinct: null if not counted. A null in a list counts as an empty value, a null field does not count.
        - lengths: p50, p90, p99 and longest, in characters or items.
        - scripts: fraction of the letters per script.
        - values, counts: all values and how often each occurs, if there are few and they are short.
        - traits: fraction of a sample of the texts that has each trait.
        - examples.
        - repeats: for prompts as text, the columns whose conversations start with them in every row, if there are any.

    Raises:
        SourceError: there are more than `MAX_COLUMNS` columns.
    """
    merged: dict[Steps, _Merged] = {(): _Merged()}
    inside: Counter[str | None] = Counter()
    for table in sketches:
        for row in table.to_pylist():
            steps = tuple(row["steps"])
            if steps and steps not in merged and not _added(steps, merged, inside):
                continue
            merged.setdefault(steps, _Merged()).add(row)
    return list(_profiles((), merged))


def _added(steps: Steps, merged: dict[Steps, _Merged], inside: Counter[str | None]) -> bool:
    """Add a path to the fields of the path that contains it, unless that is JSON with `MAX_PATHS` paths already.

    Args:
        inside: the number of JSON paths of each column.
    """
    if (above := merged.get(steps[:-1])) is None:
        return False
    if len(steps) == 1 and len(above.fields) >= MAX_COLUMNS:
        raise SourceError(
            f"the data has more than {MAX_COLUMNS:,} columns, the most that are supported; the rows have different "
            f"columns, such as {steps[0]!r}, which not all of them have"
        )
    if JSON_TYPES & set(above.types):
        inside[steps[0]] += 1
        if inside[steps[0]] >= MAX_PATHS:
            above.types = [UNKNOWN_TYPE]
            return False
    above.fields.append(steps[-1])
    return True


def _profiles(steps: Steps, merged: dict[Steps, _Merged]) -> Iterator[dict[str, Any]]:
    """Yield the profiles of all paths inside a path."""
    above = merged[steps]
    for step in above.fields:
        inner = (*steps, step)
        described = " | ".join(_types_of(inner, merged)) or "null"
        yield merged[inner].profile(inner, described, None if step is None else above.structs)
        yield from _profiles(inner, merged)


def _types_of(steps: Steps, merged: dict[Steps, _Merged]) -> list[str]:
    """Return the types of a path as text; lists and objects of JSON as Arrow's list and struct types."""
    found = merged[steps]
    types = []
    for described in found.types:
        if described == "list":
            described = f"list<item: {_inner_type((*steps, None), merged)}>"
        elif described == "struct":
            fields = [step for step in found.fields if step is not None]
            described = f"struct<{', '.join(f'{name}: {_inner_type((*steps, name), merged)}' for name in fields)}>"
        types.append(described)
    return types


def _inner_type(steps: Steps, merged: dict[Steps, _Merged]) -> str:
    """Return the one type of a path, or `json` for several."""
    types = _types_of(steps, merged) if steps in merged else []
    if set(types) == {"int64", "double"}:
        return "double"
    return types[0] if len(types) == 1 else UNKNOWN_TYPE if types else "null"
