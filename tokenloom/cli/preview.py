"""`tokenloom preview`: shows rows with trained and masked tokens in different colours."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tokenloom.cli.build import build_target
from tokenloom.cli.options import add_command, add_compute, add_config, add_limit, add_store
from tokenloom.errors import ConfigError

SHOWN_ROWS = 3
"""Rows shown if none are named."""


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "preview", "show rows with trained and masked tokens in colour", run)
    add_config(parser, "a dataset")
    add_store(parser)
    add_limit(parser)
    add_compute(parser)
    text = f"raw rows to show, counted from 0 (default: the first {SHOWN_ROWS})"
    parser.add_argument("--row", metavar="N", type=int, nargs="+", help=text)
    parser.add_argument("--html", metavar="FILE", help="write a self-contained HTML page instead")
    text = "show the prompts that the model gets at inference, without the answers"
    parser.add_argument("--inference", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Build what is missing, and show rows on the terminal or in an HTML page."""
    from rich.console import Console

    from tokenloom.cli.output.targets import write_file
    from tokenloom.cli.terminal.marked_rows import html_preview, print_preview
    from tokenloom.cli.terminal.token_runs import RowReader
    from tokenloom.config import PipelineConfig

    config = PipelineConfig.from_file(args.config)
    target = build_target(args, config, Console(stderr=True, quiet=not sys.stderr.isatty())).target
    (build,) = target.builds.values()
    reader = RowReader(build.store, build.name)
    numbers = args.row if args.row is not None else range(min(SHOWN_ROWS, len(reader)))
    if outside := [row for row in numbers if not 0 <= row < len(reader)]:
        message = f"{outside[0]} is out of range: the dataset has {len(reader)} rows, 0 to {len(reader) - 1}"
        raise ConfigError.at("--row", message)
    build.restore(build.manifest("raw"), reader.raw_outputs(numbers, args.inference))
    rows = list(reader.read_prompts(config, numbers)) if args.inference else [reader.read(row) for row in numbers]
    if args.html:
        write_file("--html", args.html, html_preview(build.name, rows))
        print(f"wrote {args.html}")
    else:
        print_preview(Console(), build.name, rows)
    return 0
