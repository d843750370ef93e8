"""`tokenloom explain`: prints what a build would compute and why, without computing anything."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokenloom.cli.build import stored_lines
from tokenloom.cli.options import add_command, add_config, add_json, add_limit, add_store, open_store

if TYPE_CHECKING:
    from tokenloom.assets.building.explain import StageExplanation


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "explain", "show what a build would compute and why, without computing it", run)
    add_config(parser)
    add_store(parser)
    add_limit(parser, "explain a build with this --limit")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print, for every dataset, which stages would reuse or compute chunks, and why."""
    from tokenloom.assets.building.explain import explain
    from tokenloom.assets.building.target import open_target
    from tokenloom.cli.tables import explanation_table
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.config.dataset import load_config

    config = load_config(args.config)
    target = open_target(config, open_store(args, config.folder, read_only=True), limit=args.limit)
    console, printed = open_console(stderr=args.json), list[dict[str, Any]]()
    for dataset, build in target.builds.items():
        stages = explain(build)
        console.print(explanation_table(build.name, stages))
        for line in _reasons(stages):
            say(console, line)
        printed += [
            {**asdict(stage), "name": target.label(dataset, stage.name), "state": stage.state} for stage in stages
        ]
    for line in stored_lines(target):
        say(console, line)
    if args.json:
        print(json.dumps({"dataset": target.name, "stages": printed}, ensure_ascii=False))
    return 0


def _reasons(stages: Sequence[StageExplanation]) -> Iterator[str]:
    yield from (f"{stage.name}: {reason}" for stage in stages for reason in stage.reasons)
    if all(stage.state == "hit" for stage in stages):
        yield "nothing would be computed"
