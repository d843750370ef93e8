"""`tokenloom remove`: removes a dataset or mixture from a store."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tokenloom.cli.options import add_command, add_json, add_store, named, open_store


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "remove", "remove a dataset or mixture from the store, with all its versions", run)
    parser.add_argument("dataset", metavar="NAME|CONFIG", help="name of a dataset or mixture, or its YAML file")
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Remove a dataset, and print how many versions it had. `gc` frees the space."""
    name, folder = named(args.dataset)
    versions = open_store(args, folder).remove(name)
    if args.json:
        print(json.dumps({"dataset": name, "versions": versions}))
    else:
        counted = f"{versions:,} version{'s' * (versions != 1)}"
        print(f"removed {name}, {counted}; free its space with: tokenloom gc --delete")
    return 0
