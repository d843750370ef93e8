"""Writes docs/internals/contracts.md from the contracts of the stages: `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from pandera.pyarrow import DataFrameSchema

from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.stage.contract import allows_pairs, contract_rows

PAGE = Path(__file__).parents[1] / "internals" / "contracts.md"

HEAD = """# Contracts

The columns of each stage's output. A contract is a [pandera](https://pandera.readthedocs.io) schema, `CONTRACT` in
`assets/<stage>/contract.py`. A build validates every chunk that it computes, and the Dagster check `contract` validates
the stored chunks again. A chunk that breaks its contract fails the build with exit code 3.

Types are [Arrow types](https://arrow.apache.org/docs/python/api/datatypes.html). `_row` is the position of a row within
its raw chunk; it links the rows of all stages. In Dagster, each asset shows its columns with these descriptions.
"""

PAIRS = """Chunks of preference pairs have all columns but `_row` and `rows` twice, prefixed with `chosen_` and
`rejected_`. Each side satisfies the contract.
"""


def contracts_of(stage: str) -> Mapping[str, DataFrameSchema]:
    """Return the contracts of a stage by form, or its only one under ""."""
    module = import_module(f"tokenloom.assets.{stage}.contract")
    return module.CONTRACTS if hasattr(module, "CONTRACTS") else {"": module.CONTRACT}


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for stage in STAGES:
        parts.append(f"\n## {stage}\n")
        for form, contract in contracts_of(stage).items():
            parts += [f"\n### {form}\n"] if form else []
            parts += _contract(contract)
    return "".join(parts)


def _contract(contract: DataFrameSchema) -> Iterator[str]:
    yield f"\n{contract.description}\n\n| column | type | nullable | meaning |\n|---|---|---|---|\n"
    for row in contract_rows(contract):
        name = f"`{row.name}`" if row.required else f"`{row.name}` (optional)"
        yield f"| {name} | `{row.type}` | {'yes' if row.nullable else 'no'} | {row.description} |\n"
    if allows_pairs(contract):
        yield f"\n{PAIRS}"
    if contract.checks:
        yield "\nChecks:\n\n" + "".join(f"- {check.name}\n" for check in contract.checks)


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
