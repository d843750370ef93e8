"""A sketch of one chunk: one row a path, of counts that add up, histograms and extremes that merge.

A path leads from a column into what is nested in it: `a.b` is a field of a struct, `a[]` the items of a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.schema.measures import (
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
from tokenloom.assets.schema.scripts import SCRIPTS, count_letters
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.ragged import Ints, one_array, text_parts

MAX_DEPTH = 8
COUNTABLE = ("text", "number", "boolean")
MEASURED = ("text", "list")

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
    ]
)
"""Of each path: its steps (a column, then fields, null for a list's items; none for the chunk itself), type and kind;
places, nulls and empty ones; the longest value and a histogram of lengths; letters by script; the smallest hashes; all
values where they are few, and how often each occurs; how many texts were sampled, and of how many each trait holds; the
first values."""

Steps = tuple[str | None, ...]


def sketch(table: pa.Table) -> pa.Table:
    """Describe every path of a raw chunk: a table of `SKETCH`, the chunk itself first, then depth first."""
    described = [{**_row((), pa.struct([]), "struct"), "rows": table.num_rows}]
    for place, name in enumerate(table.column_names):
        if name != ROW and name not in table.column_names[:place]:
            described += _describe((name,), one_array(table.column(place)))
    return pa.Table.from_pylist(described, SKETCH)


def _row(steps: Steps, arrow: pa.DataType, kind: str) -> dict[str, Any]:
    counts = dict.fromkeys(("rows", "nulls", "empty", "longest", "sampled"), 0)
    lists: dict[str, Any] = {name: [] for name in ("lengths", "letters", "values", "counts", "traits", "examples")}
    return {"steps": list(steps), "type": str(arrow), "kind": kind, **counts, **lists, "hashes": b"", "few": True}


def _describe(steps: Steps, array: pa.Array) -> Iterator[dict[str, Any]]:
    """The path, then all within it."""
    declared, array = array.type, _plain(array)
    kind = kind_of(array.type)
    row = _row(steps, declared, kind)
    row["rows"], row["nulls"] = len(array), len(array) if kind == "null" else array.null_count
    array = array.drop_null() if row["nulls"] else array
    filled = np.arange(min(len(array), EXAMPLES))
    if kind in MEASURED:
        lengths = _lengths(array)
        filled = np.flatnonzero(lengths)
        row["empty"] = len(lengths) - len(filled)
        row["longest"], row["lengths"] = int(lengths.max(initial=0)), length_buckets(lengths)
    row["examples"] = examples(array, filled)
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
    yield row
    if len(steps) < MAX_DEPTH:
        for step, inner in _within(array, kind):
            yield from _describe((*steps, step), inner)


def _plain(array: pa.Array) -> pa.Array:
    """The values themselves, however they are stored."""
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
    """text, number, boolean, list, struct, null, binary, or other."""
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
    """int64 [rows]: characters of texts, items of lists."""
    count = pc.utf8_length if kind_of(array.type) == "text" else pc.list_value_length
    return np.asarray(count(array).to_numpy(zero_copy_only=False), np.int64)


def _within(array: pa.Array, kind: str) -> Iterator[tuple[str | None, pa.Array]]:
    if kind == "list":
        yield None, array.flatten()
    elif kind == "struct":
        names = [inner.name for inner in array.type]
        for place, (name, inner) in enumerate(zip(names, array.flatten(), strict=True)):
            if name not in names[:place]:
                yield name, inner


@dataclass
class _Merged:
    """The sketches of one path, added up."""

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
    structs: int = 0
    fields: list[str | None] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        for known, found in ((self.types, row["type"]), (self.kinds, row["kind"])):
            if found not in known and row["kind"] != "null":
                known.append(found)
        for name in self.counts:
            self.counts[name] += row[name]
        self.longest = max(self.longest, row["longest"])
        self.lengths, self.letters = _sum(self.lengths, row["lengths"]), _sum(self.letters, row["letters"])
        self.traits = _sum(self.traits, row["traits"])
        self.hashes.append(row["hashes"])
        if self.values is not None:
            found = Counter(dict(zip(row["values"], row["counts"], strict=True)))
            self.values = self.values + found if row["few"] else None
            self.values = None if self.values and len(self.values) > FEW_VALUES else self.values
        self.examples = (self.examples + row["examples"])[:EXAMPLES]
        if row["kind"] == "struct":
            self.structs += row["rows"] - row["nulls"]

    def profile(self, steps: Steps, places: int | None) -> dict[str, Any]:
        """As JSON; `places` are those that there are, if known: where the path was not found it counts as null."""
        rows, nulls = self.counts["rows"], self.counts["nulls"]
        if places is not None:
            rows, nulls = places, nulls + places - rows
        kind = _one_kind(self.kinds)
        found = np.unique(np.frombuffer(b"".join(self.hashes), np.uint64))[:KEPT_HASHES]
        counted = len(found) or nulls == rows
        letters, sampled = int(self.letters.sum()), self.counts["sampled"]
        shares = {
            name: round(int(count) / letters, 4) for name, count in zip(SCRIPTS, self.letters, strict=False) if count
        }
        values = dict(sorted(self.values.items())) if self.values and kind in COUNTABLE else None
        measured = [name for name in self.kinds if name in MEASURED]
        return {
            "column": steps[0],
            "path": path_text(steps),
            "steps": list(steps),
            "type": " | ".join(self.types) or "null",
            "kind": kind,
            "rows": rows,
            "nulls": nulls,
            "empty": self.counts["empty"],
            "distinct": min(estimate_distinct(found), rows - nulls) if counted else None,
            "lengths": self._lengths() if measured and self.lengths.any() else None,
            "scripts": {name: share for name, share in sorted(shares.items(), key=lambda found: -found[1]) if share},
            "values": list(values) if values else None,
            "counts": list(values.values()) if values else None,
            "traits": {
                name: round(int(count) / sampled, 4) for name, count in zip(TRAITS, self.traits, strict=False) if count
            },
            "examples": self.examples,
        }

    def _lengths(self) -> dict[str, int]:
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        return {
            **{name: percentile(self.lengths, share, self.longest) for name, share in shares.items()},
            "longest": self.longest,
        }


def _sum(one: Ints, other: Sequence[int]) -> Ints:
    short, long = sorted((one, np.asarray(other, np.int64)), key=len)
    return np.pad(short, (0, len(long) - len(short))) + long


def _one_kind(kinds: Sequence[str]) -> str:
    if len(kinds) <= 1:
        return kinds[0] if kinds else "null"
    return "text" if set(kinds) <= set(COUNTABLE) else "other"


def path_text(steps: Steps) -> str:
    """`a.b` for a field, `a[]` for the items of a list."""
    return (steps[0] or "") + "".join("[]" if step is None else f".{step}" for step in steps[1:])


def merge(sketches: Sequence[pa.Table]) -> list[dict[str, Any]]:
    """The sketches of all chunks as one: a profile for each path, depth first, columns and fields as they first occur.

    A profile is JSON: `column`, `path` (the column itself for a column), `steps` (the same, null for a list's items),
    `type` (several joined by " | "), `kind`, `rows` (places: items of a list, structs that are there), `nulls` (what a
    chunk lacks counts as null there), `empty`, `distinct` (null where not counted; a null in a list counts as empty, a
    null field as none), `lengths` (p50, p90, p99, longest: characters or items), `scripts` (share of letters), `values`
    (all, where few and short), `counts` (how often each of them occurs), `traits` (share of a sample) and `examples`.
    """
    merged: dict[Steps, _Merged] = {(): _Merged()}
    for table in sketches:
        for row in table.to_pylist():
            steps = tuple(row["steps"])
            if steps and steps not in merged:
                merged[steps[:-1]].fields.append(steps[-1])
            merged.setdefault(steps, _Merged()).add(row)
    return list(_profiles((), merged))


def _profiles(steps: Steps, merged: dict[Steps, _Merged]) -> Iterator[dict[str, Any]]:
    above = merged[steps]
    for step in above.fields:
        inner = (*steps, step)
        yield merged[inner].profile(inner, None if step is None else above.structs)
        yield from _profiles(inner, merged)


def top_level(columns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The profiles of columns, without those of what is nested in them."""
    return [column for column in columns if column.get("path", column["column"]) == column["column"]]
