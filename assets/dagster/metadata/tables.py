"""Arrow tables and rows of text as tables in Dagster's UI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

MAX_CELL_CHARACTERS = 160
MAX_EXACT_INTEGER = 1 << 53
"""Larger integers lose digits in the browser."""


def text_table(rows: Sequence[Mapping[str, str]]) -> dg.TableMetadataValue:
    """Return a table of texts."""
    columns = [dg.TableColumn(name) for name in (rows[0] if rows else ())]
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows], schema=dg.TableSchema(columns=columns))


def arrow_table(table: pa.Table) -> dg.TableMetadataValue:
    """Return the rows of an Arrow table, with long values shortened."""
    records = [dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in table.to_pylist()]
    columns = [dg.TableColumn(field.name, _cell_type(field.type)) for field in table.schema]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def _cell_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "string"


def _cell(value: Any) -> str | int | float | bool | None:
    """Return a value as a table cell: unchanged if JSON holds it exactly, else as shortened text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= MAX_EXACT_INTEGER:
        return value
    if isinstance(value, float) and value - value == 0.0:  # neither infinite nor NaN
        return value
    if isinstance(value, bytes):
        text = value[: 4 * (MAX_CELL_CHARACTERS + 1)].decode("utf-8", "replace")
    elif isinstance(value, list):
        shown = ", ".join(str(_cell(item)) for item in value[:MAX_CELL_CHARACTERS])
        text = f"[{shown}]"
    else:
        text = str(value)
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[: MAX_CELL_CHARACTERS - 1]}…"
