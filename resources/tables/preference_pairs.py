"""Preference pairs: a table of pairs split into one table per side."""

from __future__ import annotations

import pyarrow as pa

SIDES = ("chosen", "rejected")


def sides(table: pa.Table) -> dict[str, pa.Table]:
    """Split a table of preference pairs into one table per side, keyed by side.

    Each has the side's columns without their prefix (`chosen_` or `rejected_`), and the columns that both sides share.
    A table without such columns is returned whole under the key "".
    """
    side_of = {name: side for name in table.column_names for side in SIDES if name.startswith(f"{side}_")}
    if not side_of:
        return {"": table}
    tables = {}
    for side in SIDES:
        names = [name for name in table.column_names if side_of.get(name, side) == side]
        tables[side] = table.select(names).rename_columns([name.removeprefix(f"{side}_") for name in names])
    return tables
