"""`tokenloom diff`: prints the rows, tokens and settings in which two datasets or versions differ."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json, add_store, open_store

if TYPE_CHECKING:
    from tokenloom.assets.building.diff import DatasetDiff


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "diff", "compare two datasets or versions", run)
    text = "name of a dataset, or NAME@VERSION, where VERSION is a digest prefix or a date"
    parser.add_argument("a", metavar="A", help=text)
    parser.add_argument("b", metavar="B", help="the same; rows only in B are reported as added")
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what differs: counts per split, settings, and examples of rows."""
    from tokenloom.assets.building.diff import diff_datasets
    from tokenloom.cli.tables import setting_table, split_table
    from tokenloom.cli.terminal import open_console, say

    difference = diff_datasets(open_store(args), args.a, args.b)
    if args.json:
        print(json.dumps(difference.to_json(), ensure_ascii=False))
        return 0
    console = open_console()
    for name, side in (("A", difference.a), ("B", difference.b)):
        say(console, f"{name}: {side.dataset}, version {side.version}")
    console.print(split_table(difference.splits), highlight=False)
    if difference.settings:
        console.print(setting_table(difference.settings), highlight=False)
    for line in _lines(difference):
        say(console, line)
    return 0


def _lines(difference: DatasetDiff) -> Iterator[str]:
    """Yield examples of rows, what could not be compared, and whether anything differs."""
    for split in difference.splits:
        for kind, places in split.examples.items():
            if places:
                count = f" {split.rows[kind]:,}" if kind in ("dropped", "restored", "images") else ""
                yield f"{split.split}, {kind}{count}: e.g. {', '.join(places)}"
    yield from difference.notes
    if difference.a.version.digest == difference.b.version.digest:
        yield "A and B hold the same sequences"
    elif not difference.settings and all(split.is_empty for split in difference.splits):
        yield "A and B hold the same rows in a different order or in different chunks"
