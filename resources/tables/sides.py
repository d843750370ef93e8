"""The two sides of a preference pair, as tables of their own."""

from __future__ import annotations

import pyarrow as pa

SIDES = ("chosen", "rejected")


def sides(table: pa.Table) -> dict[str, pa.Table]:
    """What lies under `chosen_` and `rejected_`, by side, each beside the columns that both share.

    A table without such columns comes back whole, under the name "".
    """
    own = {name: side for name in table.column_names for side in SIDES if name.startswith(f"{side}_")}
    if not own:
        return {"": table}
    found = {}
    for side in SIDES:
        kept = [name for name in table.column_names if own.get(name, side) == side]
        found[side] = table.select(kept).rename_columns([name.removeprefix(f"{side}_") for name in kept])
    return found
