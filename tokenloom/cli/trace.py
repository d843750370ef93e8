"""What `tokenloom trace` prints: the raw rows that the samples of a batch come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console

from tokenloom.cli.visible import say
from tokenloom.loaders import TracedRow


def print_trace(found: Mapping[int, Sequence[TracedRow]], step: int, world_size: int, as_json: bool) -> None:
    """Print where the samples of each rank's batch come from."""
    if as_json:
        batches = [{"rank": rank, "rows": [asdict(row) for row in rows]} for rank, rows in found.items()]
        print(json.dumps({"step": step, "world_size": world_size, "batches": batches}, ensure_ascii=False))
        return
    console = Console() if Console().is_terminal else Console(width=160)
    for rank, rows in found.items():
        say(console, f"step {step}, rank {rank} of {world_size}: {len(rows)} rows")
        for row in rows:
            say(console, f"  {row.dataset} {row.split} row {row.row}: {', '.join(row.places)}")
