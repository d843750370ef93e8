"""Writes docs/internals/contracts.md from the contracts of the stages: `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from tokenloom.assets.building.chain import STAGES, stage_named
from tokenloom.assets.columns.contract import CONTRACTS
from tokenloom.assets.prompts import segments
from tokenloom.assets.stage.contract import Contract

PAGE = Path(__file__).parents[1] / "internals" / "contracts.md"

HEAD = """# Contracts

The columns of each stage's output: `CONTRACT` in `assets/<stage>/stage.py`. A build checks every chunk that it
computes with Arrow's kernels. The Dagster check `contract` checks the stored chunks again, also by
[pandera](https://pandera.readthedocs.io): `CONTRACT.schema()` is the contract as a pandera schema, and tests hold that
both accept and refuse the same tables. A chunk that breaks its contract fails the build with exit code 3.

Types are [Arrow types](https://arrow.apache.org/docs/python/api/datatypes.html). `_row` is the position of a row within
its raw chunk; it links the rows of all stages. In Dagster, each asset shows its columns with these descriptions.
"""

PAIRS = """Chunks of preference pairs have all columns but `_row` and `rows` twice, prefixed with `chosen_` and
`rejected_`. Each side satisfies the contract.
"""


def contracts_of(stage: str) -> Mapping[str, Contract]:
    """Return the contracts of a stage by form, or its only one under ""."""
    own = stage_named(stage).contract(pa.schema([]))
    if stage == "prompts":
        return {"texts": own, "token ids": segments.CONTRACT}
    return CONTRACTS if stage == "columns" else {"": own}


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for stage in STAGES:
        parts.append(f"\n## {stage}\n")
        if replaced := stage_named(stage).replaces:
            parts.append(
                f"\nOptional. Fewer rows, in the columns of [{replaced}](#{replaced}), with the same checks.\n"
            )
            continue
        for form, contract in contracts_of(stage).items():
            parts += [f"\n### {form}\n"] if form else []
            parts += _contract(contract)
    return "".join(parts)


def _contract(contract: Contract) -> Iterator[str]:
    yield f"\n{contract.description}\n\n| column | type | nullable | meaning |\n|---|---|---|---|\n"
    for row in contract.rows():
        name = f"`{row.name}`" if row.required else f"`{row.name}` (optional)"
        yield f"| {name} | `{row.type}` | {'yes' if row.nullable else 'no'} | {row.description} |\n"
    if contract.pairs:
        yield f"\n{PAIRS}"
    if contract.checks:
        yield "\nChecks:\n\n" + "".join(f"- {name}\n" for name in contract.checks)


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
