"""Raw rows for on-the-fly encoding, some of them bad, and engines to encode them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from support.loaded_rows import settings
from tokenloom import PipelineConfig, PromptEngine
from tokenloom.loaders.reading.batch import Row

Plain = tuple[tuple[str, tuple[int, ...]], ...]


def good_rows(count: int) -> list[dict[str, Any]]:
    """Return rows that all differ."""
    return [{"q": f"question {n}", "a": "because " * (n % 4) + f"{n}"} for n in range(count)]


def rows_with_bad(count: int, bad: set[int]) -> list[dict[str, Any]]:
    """Return the same rows, some without an answer."""
    return [{**row, "a": None} if number in bad else row for number, row in enumerate(good_rows(count))]


def engine_of(tokenizer_folder: Path, **sections: Any) -> PromptEngine:
    config = {"dataset": {"name": "rows.jsonl"}, **settings(tokenizer_folder), **sections}
    return PromptEngine(PipelineConfig.from_mapping(config))


def plain(row: Row) -> Plain:
    """Return a row in a form that can be compared and counted."""
    return tuple((name, tuple(value.reshape(-1).tolist())) for name, value in sorted(row.items()))


def plain_rows(rows: list[Row]) -> list[Plain]:
    """Collate rows to a form that worker processes send without a file for each tensor."""
    return [*map(plain, rows)]


class LengthEngine:
    """A custom engine that repeats a row's number as its ids, and records the rows of each call."""

    def __init__(self) -> None:
        self.tables: list[list[int]] = []

    def encode(self, table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        self.tables.append([row["n"] for row in rows])
        if any(row["n"] < 0 for row in rows):
            raise ValueError("a negative number among these rows")
        return pa.table({"input_ids": [[row["n"]] * row["times"] for row in rows]})


def numbers(count: int, negative: set[int] = frozenset()) -> list[dict[str, int]]:  # type: ignore[assignment]
    """Return rows for a `LengthEngine`."""
    return [{"n": -n - 1 if n in negative else n, "times": 1 + n % 5} for n in range(count)]


class Again:
    """An iterable that is not a sequence."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)
