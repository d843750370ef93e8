"""A sketch of one chunk: one row a column, of counts that add up and extremes that merge."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.rejects import ROW

EXAMPLES = 3
EXAMPLE_CHARACTERS = 120

SKETCH = pa.schema(
    [
        ("column", pa.string()),
        ("type", pa.string()),
        ("rows", pa.int64()),
        ("nulls", pa.int64()),
        ("empty", pa.int64()),
        ("characters", pa.int64()),
        ("longest", pa.int64()),
        ("examples", pa.list_(pa.string())),
    ]
)


def sketch(table: pa.Table) -> pa.Table:
    """Describe every column of a raw chunk."""
    described = [_column(name, table[name]) for name in table.column_names if name != ROW]
    return pa.Table.from_pylist(described, SKETCH)


def _column(name: str, array: pa.ChunkedArray) -> dict[str, Any]:
    kind = array.type
    lengths = _lengths(array)
    filled = array.drop_null()
    examples = [str(value)[:EXAMPLE_CHARACTERS] for value in filled.slice(0, EXAMPLES).to_pylist()]
    return {
        "column": name,
        "type": str(kind),
        "rows": len(array),
        "nulls": array.null_count,
        "empty": _total(pc.equal(lengths, 0)) if lengths is not None else 0,
        "characters": _total(lengths) if lengths is not None else 0,
        "longest": (pc.max(lengths).as_py() or 0) if lengths is not None else 0,
        "examples": examples,
    }


def _lengths(array: pa.ChunkedArray) -> Any:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return pc.utf8_length(array)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return pc.list_value_length(array)
    return None


def _total(array: Any) -> int:
    return pc.sum(array.cast(pa.int64())).as_py() or 0


def merge(sketches: list[pa.Table]) -> list[dict[str, Any]]:
    """The sketches of all chunks as one: a dict for each column, in the order in which columns first occur.

    `type` is the type found, or several joined by " | "; `nulls`, `empty` and `characters` are sums, a column that a
    chunk lacks counting as null there; `examples` are the first ones.
    """
    merged: dict[str, dict[str, Any]] = {}
    rows = 0
    for table in sketches:
        found = table.to_pylist()
        here = max((column["rows"] for column in found), default=0)
        for column in found:
            into = merged.setdefault(
                column["column"],
                {"types": [], "rows": rows, "nulls": rows, "empty": 0, "characters": 0, "longest": 0, "examples": []},
            )
            if column["type"] not in into["types"] and column["type"] != "null":
                into["types"].append(column["type"])
            for count in ("rows", "nulls", "empty", "characters"):
                into[count] += column[count]
            into["longest"] = max(into["longest"], column["longest"])
            into["examples"] = (into["examples"] + column["examples"])[:EXAMPLES]
        rows += here
        for column in merged.values():
            column["nulls"] += rows - column["rows"]
            column["rows"] = rows
    return [
        {"column": name, "type": " | ".join(found.pop("types")) or "null", **found} for name, found in merged.items()
    ]
