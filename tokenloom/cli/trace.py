"""`tokenloom trace`: prints the raw rows that a training batch comes from."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from tokenloom.cli.options import (
    add_command,
    add_config,
    add_json,
    add_store,
    nonnegative_integer,
    open_store,
    positive_integer,
)
from tokenloom.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "trace", "print the raw rows that a training batch comes from", run)
    add_config(parser)
    text = "training step, counted from 0 across epochs"
    parser.add_argument("--step", metavar="N", type=nonnegative_integer, required=True, help=text)
    parser.add_argument("--split", metavar="SPLIT", default="train", help="split to trace (default: train)")
    parser.add_argument("--rank", metavar="R", type=nonnegative_integer, help="only this rank (default: all ranks)")
    text = "number of ranks (default: 1)"
    parser.add_argument("--world-size", metavar="W", type=positive_integer, default=1, help=text)
    opened = parser.add_mutually_exclusive_group()
    text = "trace the version that a training run pinned (default: the latest version)"
    opened.add_argument("--pin", metavar="RUN", help=text)
    text = "trace this version (digest prefix or date)"
    opened.add_argument("--version", metavar="VERSION", help=text)
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print where each row of a step comes from, rank by rank."""
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.config.dataset import load_config
    from tokenloom.loaders import TokenLoader
    from tokenloom.pipeline import DataPipeline

    step, world_size = args.step, args.world_size
    ranks = [args.rank] if args.rank is not None else range(world_size)
    if ranks[-1] >= world_size:
        raise ConfigError.at("--rank", f"must be less than --world-size {world_size}, got {args.rank}")
    config = load_config(args.config)
    pipeline = DataPipeline.from_config(config, open_store(args, config.folder).address).unwrap()
    if args.pin is not None:
        try:
            pipeline.store.pins.require(pipeline.config.dataset_name, args.pin)
        except ValueError as error:
            raise ConfigError.at("--pin", str(error)) from error
    loader = pipeline.get_dataloader(
        args.split, rank=ranks[0], world_size=world_size, version=args.version, pin=args.pin, build=False
    ).unwrap()
    if not isinstance(loader, TokenLoader):
        message = "batches of a streaming dataset cannot be traced; set it to false"
        raise pipeline.config.fault("dataset.streaming", message)
    traced = {rank: loader.trace(step, rank) for rank in ranks}
    if args.json:
        batches = [{"rank": rank, "rows": [asdict(row) for row in rows]} for rank, rows in traced.items()]
        print(json.dumps({"step": step, "world_size": world_size, "batches": batches}, ensure_ascii=False))
        return 0
    console = open_console(width=160)
    for rank, rows in traced.items():
        say(console, f"step {step}, rank {rank} of {world_size}: {len(rows)} rows")
        for row in rows:
            say(console, f"  {row.dataset} {row.split} row {row.row}: {', '.join(row.places)}")
            if row.images:
                say(console, f"    images: {', '.join(row.images)}")
    return 0
