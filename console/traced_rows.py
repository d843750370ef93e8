"""What `tokenloom trace` prints: the raw rows that the samples of a batch come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from tokenloom.console.visible import say
from tokenloom.pipeline import DataPipeline


def run_trace(
    config: str, step: int, split: str, ranks: Sequence[int], world_size: int, store: str | None, as_json: bool
) -> int:
    """Print where a batch comes from, as the YAML's loader deals rows out; returns the exit code. Builds what is
    missing.

    Raises:
        TokenloomError: the dataset cannot be built or opened.
    """
    from tokenloom.loaders import TokenLoader

    pipeline = DataPipeline.from_config(config, store).unwrap()
    loader = pipeline.get_dataloader(split, rank=ranks[0], world_size=world_size).unwrap()
    if not isinstance(loader, TokenLoader):
        message = "dataset.streaming: a stream's batches cannot be traced; set it to false"
        raise pipeline.config.fault("dataset.streaming", message)
    found = {rank: loader.trace(step, rank) for rank in ranks}
    if as_json:
        batches = [{"rank": rank, "rows": [asdict(row) for row in rows]} for rank, rows in found.items()]
        print(json.dumps({"step": step, "world_size": world_size, "batches": batches}, ensure_ascii=False))
        return 0
    console = Console() if Console().is_terminal else Console(width=160)
    for rank, rows in found.items():
        console.print(f"step {step}, rank {rank} of {world_size}: {len(rows)} rows", highlight=False)
        for row in rows:
            line = f"  {row.dataset} {row.split} row {row.row}: {', '.join(row.places)}"
            say(console, line)
    return 0
