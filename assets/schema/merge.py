"""Profiles: the sketches of all chunks, merged into one description per path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.formats.parsed_chunk import MAX_COLUMNS
from tokenloom.assets.schema.column_statistics import (
    EXAMPLES,
    FEW_VALUES,
    KEPT_HASHES,
    TRAITS,
    estimate_distinct,
    percentile,
)
from tokenloom.assets.schema.profiles import FEW_ODD, MOST_ODD
from tokenloom.assets.schema.sketch import COUNTABLE, JSON_TYPES, MAX_PATHS, MEASURED, SCRIPTS, UNKNOWN_TYPE, Steps
from tokenloom.errors import SourceError
from tokenloom.resources.tables.ragged import Ints

_SUMMED = ("lengths", "letters", "traits")


@dataclass
class _Merged:
    types: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """How many values have each kind, in the order of their first occurrence."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("rows", "nulls", "empty", "sampled"), 0))
    longest: int = 0
    sums: dict[str, Ints] = field(default_factory=lambda: dict.fromkeys(_SUMMED, np.zeros(0, np.int64)))
    hashes: list[bytes] = field(default_factory=list)
    values: Counter[str] | None = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    repeats: set[str] | None = None
    structs: int = 0
    fields: list[str | None] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Add one row of a sketch."""
        if row["kind"] != "null":
            self.types += [] if row["type"] in self.types else [row["type"]]
            self.kinds[row["kind"]] += row["rows"] - row["nulls"]
        for name in self.counts:
            self.counts[name] += row[name]
        self.longest = max(self.longest, row["longest"])
        self.sums = {name: _sum(counts, row[name]) for name, counts in self.sums.items()}
        self.hashes.append(row["hashes"])
        if self.values is not None and row["kind"] in COUNTABLE:
            counts = Counter(dict(zip(row["values"], row["counts"], strict=True)))
            # None stands for too many values, in this chunk or in all together.
            self.values = self.values + counts if row["few"] else None
            self.values = None if self.values and len(self.values) > FEW_VALUES else self.values
        self.examples = (self.examples + row["examples"])[:EXAMPLES]
        # A chunk of nulls repeats any conversation and says nothing.
        if row["kind"] != "null":
            self.repeats = {*row["repeats"]} & ({*row["repeats"]} if self.repeats is None else self.repeats)
        if row["kind"] == "struct":
            self.structs += row["rows"] - row["nulls"]

    def kind(self) -> tuple[str, dict[str, int]]:
        """Return the one kind of the values, or of all but a few odd ones, and how many of these have which kind."""
        kinds = Counter({kind: count for kind, count in self.kinds.items() if count} or self.kinds)
        # Scalars of several kinds are all read as text, so together they count as text.
        if len(scalars := [kind for kind in kinds if kind in COUNTABLE]) > 1:
            kinds["text"] = sum(kinds.pop(kind) for kind in scalars)
        if len(kinds) <= 1:
            return next(iter(kinds), "null"), {}
        usual, count = kinds.most_common(1)[0]
        # A few odd values do not change how all others are read.
        odd = kinds.total() - count
        if odd > min(max(FEW_ODD, MOST_ODD * count), count / 10):
            return "other", {}
        return usual, {kind: count for kind, count in kinds.items() if kind != usual}

    def profile(self, steps: Steps, occurrences: int | None) -> dict[str, Any]:
        """Return the profile as JSON.

        Args:
            occurrences: how often the path could occur, if known; chunks without the path count as nulls.
        """
        rows, nulls = self.counts["rows"], self.counts["nulls"]
        if occurrences is not None:
            rows, nulls = occurrences, nulls + occurrences - rows
        kind, odd = self.kind()
        # `np.unique` builds a hash table, which takes several times as long as to sort.
        hashes = np.sort(np.frombuffer(b"".join(self.hashes), np.uint64))
        hashes = hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]][:KEPT_HASHES]
        is_counted = len(hashes) or nulls == rows
        lengths, letters, traits = self.sums.values()
        scripts = _fractions(SCRIPTS, letters, int(letters.sum()))
        values = dict(sorted(self.values.items())) if self.values and kind in COUNTABLE else None
        measured = lengths.any() and any(name in MEASURED for name in self.kinds)
        percentiles = {p: percentile(lengths, int(p[1:]) / 100, self.longest) for p in _PERCENTILES if measured}
        repeats = {"repeats": sorted(self.repeats)} if self.repeats else {}
        kinds = [*self.kinds, *(UNKNOWN_TYPE for described in self.types if described == UNKNOWN_TYPE)]
        return {
            "column": steps[0],
            "path": path_text(steps),
            "steps": list(steps),
            "type": " | ".join(self.types) or "null",
            "kind": kind,
            "rows": rows,
            "nulls": nulls,
            "empty": self.counts["empty"],
            "distinct": min(estimate_distinct(hashes), rows - nulls) if is_counted else None,
            "lengths": percentiles | {"longest": self.longest} if measured else None,
            "scripts": {name: part for name, part in sorted(scripts.items(), key=lambda item: -item[1]) if part},
            "values": list(values) if values else None,
            "counts": list(values.values()) if values else None,
            "traits": _fractions(TRAITS, traits, self.counts["sampled"]),
            "examples": self.examples,
            **repeats,
            **({"odd": odd} if odd else {}),
            **({"kinds": kinds} if len(kinds) > 1 else {}),
        }


_PERCENTILES = ("p50", "p90", "p99")


def _fractions(names: Iterable[str], counts: Ints, total: int) -> dict[str, float]:
    return {name: round(int(count) / total, 4) for name, count in zip(names, counts, strict=False) if count}


def _sum(one: Ints, other: Sequence[int]) -> Ints:
    short, long = sorted((one, np.array(other, np.int64)), key=len)
    # Histograms end at their longest length, so those of two chunks differ in size.
    return long + np.append(short, np.zeros(len(long) - len(short), np.int64))


def path_text(steps: Steps) -> str:
    """Return a path as text: `a.b` for a field, `a[]` for the items of a list."""
    return (steps[0] or "") + "".join("[]" if step is None else f".{step}" for step in steps[1:])


def merge(sketches: Sequence[pa.Table]) -> list[dict[str, Any]]:
    """Merge the sketches of all chunks into profiles, one per path. A build keeps them while the sketches are the same:
    increase the stage's version when they change.

    Returns:
        The profiles as JSON, depth first, columns and fields in order of their first occurrence. The keys:

        - column; path: its text (for a column its name); steps: the same as a list, with null for a list's items.
        - type: as in a sketch, several joined by " | "; kind: as in `kind_of`.
        - rows: occurrences of the path, such as the items of a list or structs that are not null.
        - nulls: including those of chunks without the path; empty.
        - distinct: null if not counted. A null in a list counts as an empty value, a null field does not count.
        - lengths: p50, p90, p99 and longest, in characters or items.
        - scripts: fraction of the letters per script.
        - values, counts: all values and how often each occurs, if there are few and they are short.
        - traits: fraction of a sample of the texts that has each trait.
        - examples.
        - repeats: for prompts as text, the columns whose conversations start with them in every row, if there are any.
        - odd: how many values have another kind, if a few do.
        - kinds: all kinds, if there are several; `json` for values that are not described any further.

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
        # JSON with keys that differ in every row would otherwise have as many paths as rows.
        if inside[steps[0]] >= MAX_PATHS:
            above.types = [UNKNOWN_TYPE]
            return False
    above.fields.append(steps[-1])
    return True


def _profiles(steps: Steps, merged: dict[Steps, _Merged]) -> Iterator[dict[str, Any]]:
    above = merged[steps]
    for step in above.fields:
        if above.kind()[0] not in ("other", "list" if step is None else "struct"):
            continue  # inside a few odd values
        inner = (*steps, step)
        yield merged[inner].profile(inner, None if step is None else above.structs)
        yield from _profiles(inner, merged)
