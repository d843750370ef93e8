"""Writes docs/prepare/rejects.md from the codes and remedies of rejected rows: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenloom.assets.building.chain import STAGES, stage_named

PAGE = Path(__file__).parents[1] / "prepare" / "rejects.md"

HEAD = """# Rejected rows

What to change in the data or in the YAML, for each code of a rejected row.

A row that cannot be used is rejected, counted, and stored with its stage, code, message and place. `tokenloom build`
prints the most frequent codes, each with an example and the remedy. `tokenloom preview data.yaml --row N` shows why a
row has no sequence. In Dagster, each stage lists its rejects.

A build fails (exit code 3) if a stage rejects more than the fraction `validation.max_reject_fraction` of its rows, by
default 1%. Correct the rows, or raise the fraction to build without them. The message of a build is more specific than
the remedy here where it can be.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for stage, remedies in ((name, stage_named(name).remedies) for name in STAGES if stage_named(name).remedies):
        parts.append(f"\n## {stage}\n\n| code | remedy |\n|---|---|\n")
        parts += [f"| `{code}` | {remedy.replace('|', chr(92) + '|')} |\n" for code, remedy in remedies.items()]
    return "".join(parts)


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
